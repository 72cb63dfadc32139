"""Files into and out of a program's scratch directory, by Python that runs there with the program.

SandboxFusion's requests carry files; the sandbox takes only code. So the program is given a frame that writes them
first and prints the wanted ones last, behind a mark that only this request knows. A program that forges them forges
its own result and nobody else's; paths lead nowhere but into its own sandbox.
"""

import base64
import binascii
import json
import secrets
from collections.abc import Mapping, Sequence

_FRAME = """
def _framed(code, files, wanted, mark):
    import base64, json, linecache, os, sys
    for path, content in files.items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(content))
    try:
        if code is not None:
            linecache.cache["main.py"] = (len(code), None, code.splitlines(True), "main.py")
            exec(compile(code, "main.py", "exec"), {{"__name__": "__main__", "__file__": "main.py"}})
    finally:
        if wanted:
            found = {{}}
            for path in filter(os.path.isfile, wanted):
                with open(path, "rb") as file:
                    found[path] = base64.b64encode(file.read()).decode()
            sys.stdout.write(mark + json.dumps(found))
            sys.stdout.flush()
_framed({code!r}, {files!r}, {wanted!r}, {mark!r})
del _framed
"""


def new_mark() -> str:
    return f"\n--- files {secrets.token_hex(16)} ---\n"


def framed(code: str | None, files: Mapping[str, str | None], wanted: Sequence[str], mark: str) -> str:
    """A program that writes the files, runs the code if there is some, and prints what is wanted behind the mark.
    ValueError if a file is not base64."""
    given = {path: content for path, content in files.items() if content is not None}
    for path, content in given.items():
        try:
            base64.b64decode(content)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"files: {path!r} is not base64: {error}") from None
    return _FRAME.format(code=code, files=given, wanted=list(wanted), mark=mark)


def split_output(stdout: str, mark: str) -> tuple[str, dict[str, str]]:
    """What the program printed, and the files behind the mark; none if it never came that far."""
    printed, found_mark, found = stdout.rpartition(mark)
    if not found_mark:
        return stdout, {}
    try:
        return printed, dict(json.loads(found))
    except ValueError:
        return printed, {}
