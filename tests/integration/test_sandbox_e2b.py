"""E2B's own client, unmodified, in debug mode, pointed here."""

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest
from sandbox_service import service_on_thread

from rstar2.sandbox.http import ServiceSettings

pytest.importorskip("e2b_code_interpreter")
from e2b.exceptions import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

pytestmark = pytest.mark.integration
TOKEN = "open-sesame"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with service_on_thread(ServiceSettings(token=TOKEN)) as running:
        yield f"http://:{TOKEN}@127.0.0.1:{running.port}"


@pytest.fixture(scope="module")
def sandbox(url: str) -> Sandbox:
    return Sandbox.create(debug=True, sandbox_url=url)


def test_code_runs_and_state_is_kept(sandbox: Sandbox) -> None:
    heard: list[str] = []
    execution = sandbox.run_code(
        "x = 41\nprint('a\\u2028b')\nx + 1", on_stdout=lambda message: heard.append(message.line)
    )
    assert (execution.text, "".join(heard), execution.error) == ("42", "a\u2028b\n", None)
    assert sandbox.run_code("x").text == "41"
    count = sandbox.run_code("1").execution_count
    assert count is not None and sandbox.run_code("1").execution_count == count + 1


def test_an_error_has_its_parts(sandbox: Sandbox) -> None:
    execution = sandbox.run_code("print('before')\nraise ValueError('no')")
    assert execution.logs.stdout == ["before\n"] and execution.logs.stderr == []
    assert execution.error is not None
    assert (execution.error.name, execution.error.value) == ("ValueError", "no")
    assert execution.error.traceback.startswith("Traceback")


def test_charts_and_tables_are_results(sandbox: Sandbox) -> None:
    pytest.importorskip("matplotlib")
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nimport pandas\npandas.DataFrame({'a': [1]})"
    chart, table = sandbox.run_code(code).results
    assert chart.png is not None and chart.png.startswith("iVBOR") and not chart.is_main_result
    assert table.html is not None and "<table" in table.html and table.is_main_result
    latex = sandbox.run_code("import sympy\nsympy.sqrt(2)").results[0].latex
    assert latex is not None and "sqrt{2}" in latex


def test_contexts_are_separate_notebooks(sandbox: Sandbox) -> None:
    sandbox.run_code("where = 'default'")
    context = sandbox.create_code_context(cwd="work")
    assert context.language == "python" and context.cwd.endswith("/work")
    assert context.id in {known.id for known in sandbox.list_code_contexts()}
    missing = sandbox.run_code("where", context=context).error
    assert missing is not None and missing.name == "NameError"
    sandbox.run_code("where = 'here'", context=context)
    sandbox.restart_code_context(context)
    assert sandbox.run_code("where", context=context).error is not None
    assert sandbox.run_code("where").text == "'default'"
    sandbox.remove_code_context(context)
    with pytest.raises(NotFoundException):
        sandbox.run_code("1", context=context)


def test_files_of_a_context_go_in_and_out_by_the_native_api(sandbox: Sandbox, url: str) -> None:
    context = sandbox.create_code_context()
    root = f"{url.replace(f':{TOKEN}@', '')}/v1/sessions/{context.id}/files"

    async def put_and_read() -> dict[str, str]:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            async with http.post(root, json={"path": "data/in.txt", "content": "aGk="}) as response:
                assert response.status == 200
            sandbox.run_code("open('out.txt', 'w').write(open('data/in.txt').read() * 2)", context=context)
            async with http.post(f"{root}/read", json={"path": "out.txt"}) as response:
                found: dict[str, str] = await response.json()
                return found

    assert asyncio.run(put_and_read())["content"] == "aGloaQ=="
    sandbox.remove_code_context(context)


def test_variables_are_set_for_one_execution(sandbox: Sandbox) -> None:
    assert sandbox.run_code("import os\nos.environ['A']", envs={"A": "b"}).text == "'b'"
    assert sandbox.run_code("import os\nos.environ.get('A', 'none')").text == "'none'"


def test_a_timeout_of_the_client_ends_the_cell_and_keeps_the_state(sandbox: Sandbox) -> None:
    sandbox.run_code("kept = 1")
    with pytest.raises(TimeoutException):
        sandbox.run_code("import time\ntime.sleep(600)", timeout=1)
    assert sandbox.run_code("kept").text == "1"


def test_what_is_not_here_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxException, match="only python"):
        sandbox.run_code("1", language="javascript")
    with pytest.raises(SandboxException, match="cwd"):
        sandbox.create_code_context(cwd="/etc/mine")
    assert sandbox.is_running()


def test_without_the_token_nobody_gets_in(url: str) -> None:
    stranger = Sandbox.create(debug=True, sandbox_url=url.replace(f":{TOKEN}@", ""))
    with pytest.raises(SandboxException, match="401"):
        stranger.run_code("1")


def test_the_asynchronous_client(url: str) -> None:
    async def use() -> str | None:
        sandbox = await AsyncSandbox.create(debug=True, sandbox_url=url)
        await sandbox.run_code("y = 20")
        return (await sandbox.run_code("y + 1")).text

    assert asyncio.run(use()) == "21"


def test_the_first_page_says_where_to_go(url: str) -> None:
    async def look() -> str:
        async with aiohttp.ClientSession() as http, http.get(url.replace(f":{TOKEN}@", "")) as response:
            assert response.status == 200
            return await response.text()

    assert "/v1/run" in asyncio.run(look())
