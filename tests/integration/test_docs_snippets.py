"""Every Python block of the pages runs as it is shown: the blocks of a page one after the other, in one process.

A page's blocks share their names, as cells of a notebook do, and may `await`. They run in a folder that holds a recipe
(my-run.toml), a file of problems (mine.jsonl), examples/ of this repository and a run (runs/demo). What needs a GPU, a
network, another library or minutes has the comment `<!-- not run: WHY -->` above it, and is counted here.
"""

import ast
import asyncio
import doctest
import json
from pathlib import Path
from typing import Any

import pytest

from docs_pages import PAGES, ROOT, Block, blocks
from rstar2.web.demo import unpack_demo

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

NOT_RUN = {
    "agent.md": 1,
    "environments-foreign.md": 2,
    "harness.md": 1,
    "own-trainer.md": 3,
    "sandbox-mcp.md": 2,
    "serve.md": 3,
}
"""How many blocks of a page are only compiled, and their imports of rstar2 tried."""

RECIPE = next(path for path in ROOT.glob("[rs]*/**/quickstart.toml") if path.parent.name == "recipes")
WITH_PYTHON = [page for page in PAGES if blocks(page, "python", "pycon")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "my-run.toml").symlink_to(RECIPE)
    problems = [{"id": f"p{n}", "problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(4)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    unpack_demo(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for block in blocks(page, "python", "pycon"):
            if block.not_run:
                only_imports(block)
            elif block.language == "pycon":
                run_session(block, names)
            else:
                run_block(block, names, runner)


def run_block(block: Block, names: dict[str, Any], runner: asyncio.Runner) -> None:
    code = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    awaited = eval(code, names)
    if asyncio.iscoroutine(awaited):
        runner.run(awaited)


def run_session(block: Block, names: dict[str, Any]) -> None:
    """A block with `>>>`: what it prints is compared."""
    session = doctest.DocTestParser().get_doctest(block.text, names, str(block), None, None)
    report: list[str] = []
    doctest.DocTestRunner().run(session, out=report.append, clear_globs=False)
    names.update(session.globs)
    assert session.examples and not report, "".join(report)


def only_imports(block: Block) -> None:
    tree = ast.parse(block.text)
    ours = [part for part in tree.body if isinstance(part, ast.ImportFrom) and (part.module or "").startswith("rstar2")]
    exec(compile(ast.Module(ours, type_ignores=[]), str(block), "exec"), {})


def test_few_blocks_are_not_run() -> None:
    marked = {page.name: sum(block.not_run is not None for block in blocks(page, "python", "pycon")) for page in PAGES}
    assert {name: count for name, count in marked.items() if count} == NOT_RUN
    assert sum(len(blocks(page, "python", "pycon")) for page in PAGES) > 20
