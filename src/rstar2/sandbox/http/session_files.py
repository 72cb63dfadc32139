"""Endpoints that put, read and list a notebook's files."""

from functools import partial

from aiohttp import web

from rstar2.errors import UserError
from rstar2.sandbox.http import schema
from rstar2.sandbox.http.errors import ApiError
from rstar2.sandbox.http.operations import ApiAnswer, Operation, json_response, read_body
from rstar2.sandbox.http.schema import FileList, FileResult, PutFileRequest, SessionInfo
from rstar2.sandbox.http.service import Service
from rstar2.sandbox.http.session_change import change_once
from rstar2.sandbox.http.session_table import HeldSession, SessionTable


class SessionFilesApi:
    def __init__(self, service: Service, sessions: SessionTable) -> None:
        self._service = service
        self._sessions = sessions

    def operations(self) -> list[Operation]:
        files = "/v1/sessions/{session_id}/files"
        post = partial(Operation, "POST", refusals=(404, 409))
        put = (ApiAnswer("The session: the file counts as a cell.", schema.SESSION_INFO),)
        read, found = (ApiAnswer("The file.", schema.FILE_RESULT),), (ApiAnswer("The files.", schema.FILE_LIST),)
        return [
            post(files, self.put_file, "Put a file into a notebook's working directory.", put, schema.PUT_FILE),
            post(f"{files}/read", self.read_file, "Read a file of a notebook.", read, schema.READ_FILE),
            Operation("GET", files, self.list_files, "List a notebook's files.", found, refusals=(404, 409, 503)),
        ]

    async def put_file(self, request: web.Request) -> web.Response:
        async def put(held: HeldSession, file: PutFileRequest) -> tuple[bytes, bool]:
            async with self._sessions.turn(held) as session:
                try:
                    await session.put_file(file.path, file.content)
                except UserError as error:
                    raise _refused(error) from None
                return schema.SESSION_INFO.dump_json(SessionInfo(session.id, session.num_cells)), True

        return json_response(await change_once(self._service, self._sessions, request, schema.PUT_FILE, put))

    async def read_file(self, request: web.Request) -> web.Response:
        held = self._sessions.get(request.match_info["session_id"])
        wanted = await read_body(self._service, request, schema.READ_FILE)
        with self._service.admitted():
            async with self._sessions.turn(held) as session:
                try:
                    found = FileResult(wanted.path, await session.read_file(wanted.path))
                except UserError as error:
                    raise _refused(error) from None
        return json_response(schema.FILE_RESULT.dump_json(found))

    async def list_files(self, request: web.Request) -> web.Response:
        held = self._sessions.get(request.match_info["session_id"])
        with self._service.admitted():
            async with self._sessions.turn(held) as session:
                try:
                    found = FileList(await session.list_files())
                except UserError as error:
                    raise _refused(error) from None
        return json_response(schema.FILE_LIST.dump_json(found))


def _refused(error: UserError) -> ApiError:
    return ApiError(409, "invalid", str(error))
