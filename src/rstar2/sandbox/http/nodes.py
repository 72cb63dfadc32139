"""The nodes behind a gateway: how they join and leave, and what operators see of them."""

from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from rstar2.errors import UserError
from rstar2.sandbox.http.errors import ApiError
from rstar2.sandbox.http.operation import Answer, Operation, json_response, read_body
from rstar2.sandbox.http.schema import NODE, NODE_INFO, NodeInfo
from rstar2.sandbox.http.service import Service


class Nodes(Protocol):
    """Who keeps the nodes."""

    def nodes(self) -> Sequence[NodeInfo]: ...

    def join(self, url: str) -> NodeInfo:
        """Known from now on; asked at once, and given calls when it has answered. Joining again changes nothing.
        UserError if it cannot be a node's address."""
        ...

    def leave(self, url: str) -> NodeInfo | None:
        """No new calls from now on, and forgotten when it has finished what it has; None if it is not known."""
        ...


class NodesApi:
    def __init__(self, service: Service, nodes: Nodes) -> None:
        self._service = service
        self._nodes = nodes

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/nodes",
                self.join,
                "Join, or say again that one is there.",
                {200: Answer("The node as the gateway knows it.", NODE_INFO)},
                NODE,
                tag="nodes",
            ),
            Operation(
                "DELETE",
                "/nodes",
                self.leave,
                "Leave: no new calls; what is running is finished first.",
                {202: Answer("It drains.", NODE_INFO)},
                NODE,
                refusals=(404,),
                tag="nodes",
            ),
        ]

    async def join(self, request: web.Request) -> web.Response:
        url = (await read_body(self._service, request, NODE)).url
        try:
            return json_response(NODE_INFO.dump_json(self._nodes.join(url)))
        except UserError as error:
            raise ApiError(422, "invalid", str(error)) from None

    async def leave(self, request: web.Request) -> web.Response:
        url = (await read_body(self._service, request, NODE)).url
        info = self._nodes.leave(url)
        if info is None:
            raise ApiError(404, "no_node", "there is no node with this url")
        return json_response(NODE_INFO.dump_json(info), 202)
