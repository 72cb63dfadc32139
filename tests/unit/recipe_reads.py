"""Which fields of a recipe the code reads: a scan of the source, with as much typing as that takes.

A name is of a section if an annotation says so, or an assignment, a loop or a `with` from an expression that is. An
attribute counts as read only on an expression of its own section, so that `kind` of a tool is no reading of
`engine.kind`. `model_dump` of a section reads all of it.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

from rstar2.config import Recipe
from rstar2.config.section import Section

Field = tuple[str, str]
"""The class of a section, and a field of it."""
Names = dict[str, set[str]]
_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_BINDINGS = (ast.arg, ast.AnnAssign, ast.Assign, ast.NamedExpr, ast.For, ast.comprehension)
_LOOKED_AT = (*_SCOPES, *_BINDINGS, ast.Attribute, ast.Call)


def sections(root: type[Section] = Recipe) -> dict[str, type[Section]]:
    """All sections of a recipe, by the names of their classes."""
    found = {root.__name__: root}
    for known in root.model_fields.values():
        for section in _sections_in(known.annotation):
            found |= sections(section)
    return found


def fields(known: Mapping[str, type[Section]]) -> set[Field]:
    """That hold a value and not a section of their own."""
    return {
        (name, key)
        for name, section in known.items()
        for key, value in section.model_fields.items()
        if not list(_sections_in(value.annotation))
    }


def reads(modules: Iterable[ast.Module], known: Mapping[str, type[Section]]) -> set[Field]:
    scan = _Scan(known)
    trees = list(modules)
    size = -1
    while size != scan.size:  # what one module binds, another may read
        size = scan.size
        for tree in trees:
            scan.read(tree)
    return scan.found


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections_in(argument)


@dataclass
class _Scan:
    known: Mapping[str, type[Section]]
    attributes: Names = field(default_factory=lambda: defaultdict(set))
    """Of any object, such as `self._recipe`: the sections that it was seen to be."""
    found: set[Field] = field(default_factory=set)
    class_fields: set[str] = field(default_factory=set)
    """Of the class at hand, which `pick` takes from sections by name."""
    named: set[str] = field(default_factory=set)
    """What the module at hand means by the names of sections, where it does not mean something else."""

    @property
    def size(self) -> int:
        return len(self.found) + sum(map(len, self.attributes.values()))

    def read(self, tree: ast.Module) -> None:
        self.named = self.known.keys() - _namesakes(tree)
        self._scope(tree, {})

    def _scope(self, scope: ast.AST, outer: Names) -> None:
        """A function sees the names around it; its own hide them."""
        names: Names = defaultdict(set, {name: set(kinds) for name, kinds in outer.items()})
        if isinstance(scope, ast.ClassDef) and scope.name in self.named:
            names["self"] = {scope.name}
        if isinstance(scope, ast.ClassDef):
            self.class_fields = {_text(item.target) for item in scope.body if isinstance(item, ast.AnnAssign)}
        inner = _inside(scope)
        for _ in range(2):  # a loop may bind what stands above it
            for node in inner:
                self._bind(node, names)
        for node in inner:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                for kind in self._kinds(node.value, names):
                    own = self._fields(kind)
                    handed_on = own if node.attr == "model_dump" else own.keys() & {node.attr}
                    self.found |= {(kind, name) for name in handed_on}
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "pick":
                for kind in set().union(*(self._kinds(section, names) for section in node.args[1:])):
                    self.found |= {(kind, name) for name in self._fields(kind).keys() & self.class_fields}
        for node in inner:
            if isinstance(node, _SCOPES):
                self._scope(node, names)

    def _bind(self, node: ast.AST, names: Names) -> None:
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as annotation):
                names[name] = self._annotated(annotation)
            case ast.AnnAssign(target=target, annotation=annotation):
                self._assign(target, self._annotated(annotation), names)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, values, strict=False):
                    self._assign(target, self._kinds(value, names), names)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, self._kinds(value, names), names)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, self._kinds(value, names), names)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                    self._assign(part, self._kinds(value, names), names)
            case (
                ast.FunctionDef(returns=ast.expr() as annotation)
                | ast.AsyncFunctionDef(returns=ast.expr() as annotation)
            ):
                self.attributes[node.name] |= self._annotated(annotation)

    def _assign(self, target: ast.AST, kinds: set[str], names: Names) -> None:
        if isinstance(target, ast.Name):
            names[target.id] |= kinds
        if isinstance(target, ast.Name | ast.Attribute):
            self.attributes[target.id if isinstance(target, ast.Name) else target.attr] |= kinds

    def _kinds(self, value: ast.expr, names: Names) -> set[str]:
        """The sections that a value may be, or hold."""
        match value:
            case ast.Name(id=name):
                return names.get(name, set())
            case ast.Attribute(value=owner, attr=name):
                kinds = self._kinds(owner, names)
                if not kinds:
                    return self.attributes.get(name, set())
                annotations = [self._fields(kind)[name] for kind in kinds if name in self._fields(kind)]
                return {section.__name__ for each in annotations for section in _sections_in(each)}
            case ast.Call(func=ast.Attribute(value=owner, attr="values" | "items")):
                return self._kinds(owner, names)
            case ast.Call(func=ast.Name(id="enumerate" | "list" | "tuple" | "reversed"), args=[first, *_]):
                return self._kinds(first, names)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return self.attributes.get(name, set())
            case ast.Subscript(value=owner) | ast.Starred(value=owner) | ast.Await(value=owner):
                return self._kinds(owner, names)
            case ast.IfExp(body=first, orelse=second):
                return self._kinds(first, names) | self._kinds(second, names)
            case ast.BoolOp(values=values):
                return set().union(*(self._kinds(each, names) for each in values))
        return set()

    def _annotated(self, annotation: ast.expr) -> set[str]:
        """Quoted or not."""
        return self.named & set(re.findall(r"\w+", _text(annotation)))

    def _fields(self, kind: str) -> dict[str, Any]:
        return {name: known.annotation for name, known in self.known[kind].model_fields.items()}


# The same modules are read until nothing new is found.
_text = cache(ast.unparse)


@cache
def _namesakes(tree: ast.Module) -> set[str]:
    """What a module has from elsewhere or defines: `Engine` is also a Protocol."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("rstar2.config"):
            found |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.ClassDef) and "Section" not in map(ast.unparse, node.bases):
            found.add(node.name)
    return found


@cache
def _inside(scope: ast.AST) -> list[ast.AST]:
    """Its nodes, without those of scopes within it; only the kinds that are looked at."""

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            yield child
            if not isinstance(child, _SCOPES):
                yield from walk(child)

    return [node for node in walk(scope) if isinstance(node, _LOOKED_AT)]
