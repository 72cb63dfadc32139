"""A real browser, driven over its DevTools protocol: just enough of it to open pages, ask them and photograph them."""

import asyncio
import base64
import itertools
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
START_TIMEOUT_S = 240.0
WAIT_TIMEOUT_S = 240.0

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Page:
    """One tab. What it logs and what it throws is kept."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            return await self._answers[number]

    async def _read(self) -> None:
        async for message in self._socket:
            event = message.json()
            if "id" in event:
                answer = self._answers.pop(event["id"])
                if "error" in event:
                    answer.set_exception(RuntimeError(str(event["error"])))
                else:
                    answer.set_result(event["result"])
                continue
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                self.complaints.append(params["entry"]["text"])
            elif event["method"] == "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    async def open(self, url: str) -> None:
        """A fresh document, also where only the part after `#` differs."""
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=url)
        await self.wait("document.querySelector('main h1') && !document.querySelector('main[aria-busy]')")
        await self.drawn()

    async def drawn(self) -> None:
        """Until a frame has been drawn: charts and lists draw themselves when they are told their size in one."""
        await self.ask("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    async def ask(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def wait(self, expression: str) -> Any:
        """Until it is true. Fails by the deadline with what the page shows instead."""
        deadline_s = time.monotonic() + WAIT_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if value := await self.ask(expression):
                return value
            await asyncio.sleep(0.01)
        text = await self.ask("document.body?.innerText.slice(0, 600)")
        raise AssertionError(f"never true: {expression}\n{self.complaints}\n{text}")

    async def texts(self, selector: str) -> list[str]:
        """Of every element that it finds, in order."""
        found = await self.ask(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")
        return list(found)

    async def text(self, selector: str = "main") -> str:
        """Of the first element that it finds."""
        found = await self.texts(selector)
        assert found, f"there is no {selector}"
        return found[0]

    async def shows(self, selector: str, expected: list[str]) -> None:
        """Until the texts of every element that it finds are these."""
        await self._until(lambda: self.texts(selector), lambda found: found == expected, f"{selector}: {expected}")

    async def shows_first(self, selector: str, expected: str) -> None:
        """Until this is the text of the first element that it finds."""
        await self._until(
            lambda: self.texts(selector), lambda found: found[:1] == [expected], f"{selector}: {expected!r}"
        )

    async def shows_within(self, selector: str, expected: str) -> None:
        """Until this is part of the text of the first element that it finds."""
        is_there = lambda found: bool(found) and expected in found[0]  # noqa: E731
        await self._until(lambda: self.texts(selector), is_there, f"{expected!r} in {selector}")

    async def is_true(self, expression: str, expected: Any) -> None:
        """Until this is the value of an expression."""
        await self._until(lambda: self.ask(expression), lambda found: found == expected, f"{expression}: {expected!r}")

    async def _until(self, look: Callable[[], Awaitable[Any]], is_right: Callable[[Any], bool], wanted: str) -> None:
        """What it looks at is drawn in its own time. Fails by the deadline with what is there instead."""
        deadline_s = time.monotonic() + WAIT_TIMEOUT_S
        while not is_right(found := await look()):
            assert time.monotonic() < deadline_s, f"never shown: {wanted}; instead: {found}; {self.complaints}"
            await asyncio.sleep(0.01)

    async def click(self, selector: str, text: str = "") -> None:
        """The first one that starts with `text`."""
        await self.ask(
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".find((e) => e.textContent.startsWith({json.dumps(text)})).click()"
        )

    async def wait_for(self, selector: str, count: int | None = None) -> None:
        """Until it finds so many; any number but 0 if none is said."""
        found = f"document.querySelectorAll({json.dumps(selector)}).length"
        await self.wait(found if count is None else f"{found} === {count}")

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def look(self, width: int, height: int, scheme: str = "light") -> None:
        """The size of the screen, and whether it is dark."""
        is_phone = width < 600
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def photograph(self) -> bytes:
        """A PNG of what is on the screen."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    async def close(self) -> None:
        await self._socket.close()
        await self._reader


@asynccontextmanager
async def browser_page(folder: Path) -> AsyncIterator[Page]:
    """A browser with a profile of its own in `folder`, and its one tab; both are gone afterwards."""
    assert EXECUTABLE is not None
    process = await asyncio.create_subprocess_exec(
        EXECUTABLE,
        *_FLAGS,
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        address = await asyncio.wait_for(_devtools_address(process), START_TIMEOUT_S)
        # What it says later is read, too, or it would wait for a reader one day.
        rest = asyncio.create_task(process.communicate())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/json/list") as response:
                tabs = await response.json()
            tab = next(tab for tab in tabs if tab["type"] == "page")
            socket = await session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0)
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.call(f"{domain}.enable")
            yield page
            await page.close()
        process.terminate()
        await rest
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _devtools_address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    said = ""
    async for line in process.stderr:
        said += line.decode(errors="replace")
        if found := re.search(r"DevTools listening on ws://([^/]+)/", said):
            return found[1]
    raise AssertionError(f"{EXECUTABLE} ended: {said}")
