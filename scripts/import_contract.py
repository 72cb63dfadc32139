"""The import contract of each part, read from its docstring: `May import: records, sandbox.` in its `__init__.py`.

Such a line names all other parts that the folder imports, and no others; every part may import `errors`, `extensions`,
`histogram` and `settings`. `make contracts` checks them.
"""

import ast
import re
from pathlib import Path
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output

ROOT = "rstar2"
SHARED = {"errors", "extensions", "histogram", "settings"}


class MayImport(Contract):
    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002
        parts = {module.removeprefix(f"{ROOT}.") for module in graph.find_children(ROOT)}
        wrong: list[str] = []
        for part in sorted(parts - SHARED):
            if (folder := Path("src", ROOT, part)).is_dir():
                said = promised(ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "")
                wrong += disagreements(part, said, imported(graph, part) - SHARED)
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: Any) -> None:
        for sentence in check.metadata["wrong"]:
            output.print_error(sentence)


def promised(docstring: str) -> set[str] | None:
    """The parts that its line names; None without such a line."""
    found = re.search(r"^May import: ([^.]*)\.", docstring, re.MULTILINE)
    return found and set(re.split(r",\s*", found[1])) - {"nothing"}


def imported(graph: ImportGraph, part: str) -> set[str]:
    modules = graph.find_descendants(f"{ROOT}.{part}") | {f"{ROOT}.{part}"}
    found = {other for module in modules for other in graph.find_modules_directly_imported_by(module)}
    return {other.split(".")[1] for other in found if other.startswith(f"{ROOT}.")} - {part}


def disagreements(part: str, said: set[str] | None, found: set[str]) -> list[str]:
    where = f"src/{ROOT}/{part}/__init__.py"
    if said is None:
        return [f"{where} has no line `May import: ...`: it imports {', '.join(sorted(found)) or 'nothing'}"]
    return [
        *(
            f"{part} imports {other}, which the line `May import` of {where} does not name"
            for other in sorted(found - said)
        ),
        *(f"{where} says that {part} may import {other}, which it does not" for other in sorted(said - found)),
    ]
