"""Anchors: where a mutant changes the syntax tree of a module.

An anchor names a function and a piece of code in it: an expression, or one or more consecutive statements. Formatting,
comments and line numbers do not matter. It must match exactly one place.

- In the anchor, `...` matches any expression, any arguments of a call, or any body.
- In the replacement, `...` is the body that the anchor's `...` matched, and OLD is the matched code. The `else` of an
  `if` whose body is `...` is kept.
- An empty replacement deletes the statements.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_IGNORED_FIELDS = {"ctx", "kind", "type_comment", "type_params"}


class AnchorError(LookupError):
    """The anchor matches no place, or more than one."""


@dataclass(slots=True)
class _Match:
    """Matched code: `owner.field`, or the items from `start` to `end` if that is a list (`start` is -1 otherwise)."""

    owner: ast.AST
    field: str
    start: int
    end: int
    #: The statement whose body is `...` in the anchor.
    open: Any = None


def mutate(source: str, function: str, old: str, new: str) -> ast.Module:
    """Parse `source` and replace `old` by `new` in `function`: a dotted name, or empty for the whole module."""
    tree = ast.parse(source)
    scope = _scope(tree, function)
    pattern, replacement = _parse_expression(old), _parse_expression(new)
    if pattern and replacement:
        matches = list(_find_expression(scope, pattern[0]))
    else:
        replacement = list(ast.parse(new).body)
        matches = list(_find_statements(scope, ast.parse(old).body))
    if len(matches) != 1:
        raise AnchorError(f"`{old}` matches {len(matches)} places in {function or 'the module'}, expected one")
    _replace(matches[0], replacement)
    return ast.fix_missing_locations(tree)


def _scope(tree: ast.Module, function: str) -> ast.AST:
    scope: ast.AST = tree
    for name in filter(None, function.split(".")):
        named = [node for node in _definitions(scope) if node.name == name]
        if len(named) != 1:
            raise AnchorError(f"{function} matches {len(named)} definitions, expected one")
        scope = named[0]
    return scope


def _definitions(scope: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Iterate over the definitions in a scope, without those nested in another definition."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
        else:
            yield from _definitions(node)


def _parse_expression(code: str) -> list[ast.AST]:
    try:
        return [ast.parse(code, mode="eval").body]
    except SyntaxError:
        return []


def _find_expression(scope: ast.AST, pattern: ast.AST) -> Iterator[_Match]:
    for owner in ast.walk(scope):
        for field, value in ast.iter_fields(owner):
            items = enumerate(value) if isinstance(value, list) else [(-1, value)]
            for index, node in items:
                if isinstance(node, ast.expr) and _matches(pattern, node):
                    yield _Match(owner, field, index, index + 1)


def _find_statements(scope: ast.AST, pattern: Sequence[ast.AST]) -> Iterator[_Match]:
    for owner in ast.walk(scope):
        for field, value in ast.iter_fields(owner):
            if not (isinstance(value, list) and value and isinstance(value[0], ast.stmt)):
                continue
            for start in range(len(value) - len(pattern) + 1):
                nodes = value[start : start + len(pattern)]
                if all(map(_matches, pattern, nodes)):
                    pairs = zip(pattern, nodes, strict=True)
                    opened = [node for expected, node in pairs if _has_any_body(expected)]
                    yield _Match(owner, field, start, start + len(pattern), opened[0] if opened else None)


def _is_ellipsis(node: object) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant) and value.value is ...


def _has_any_body(node: ast.AST) -> bool:
    body = getattr(node, "body", None)
    return isinstance(body, list) and len(body) == 1 and _is_ellipsis(body[0])


def _matches(pattern: object, node: object) -> bool:
    if isinstance(pattern, list):
        if len(pattern) == 1 and _is_ellipsis(pattern[0]):
            return True
        return isinstance(node, list) and len(pattern) == len(node) and all(map(_matches, pattern, node))
    if _is_ellipsis(pattern):
        return True
    if not isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and pattern == node
    if type(pattern) is not type(node):
        return False
    ignored = set(_IGNORED_FIELDS)
    if _has_any_body(pattern):
        ignored.add("orelse")
    if isinstance(pattern, ast.Call) and len(pattern.args) == 1 and _is_ellipsis(pattern.args[0]):
        ignored.add("keywords")
    return all(_matches(value, getattr(node, name)) for name, value in ast.iter_fields(pattern) if name not in ignored)


def _replace(match: _Match, replacement: Sequence[ast.AST]) -> None:
    value = getattr(match.owner, match.field)
    old = [value] if match.start < 0 else value[match.start : match.end]
    new = _Filler(old, match.open).filled(replacement)
    if not new and len(old) == len(value):
        new = [ast.Pass()]
    for node in new:
        ast.copy_location(node, old[0])
    if match.start < 0:
        setattr(match.owner, match.field, new[0])
    else:
        value[match.start : match.end] = new


class _Filler(ast.NodeTransformer):
    """Puts the matched code into a replacement, for OLD and for `...`."""

    def __init__(self, old: Sequence[ast.AST], opened: Any) -> None:
        self._old = old
        self._opened = opened

    def filled(self, replacement: Sequence[ast.AST]) -> list[ast.AST]:
        result: list[ast.AST] = []
        for node in replacement:
            visited = self.visit(copy.deepcopy(node))
            result += visited if isinstance(visited, list) else [visited]
        return result

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        if _is_ellipsis(node) and self._opened is not None:
            return list(self._opened.body)
        if isinstance(node.value, ast.Name) and node.value.id == "OLD" and isinstance(self._old[0], ast.stmt):
            return list(self._old)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        if not node.orelse and isinstance(self._opened, ast.If):
            node.orelse = self._opened.orelse
            node.body = self.filled(node.body)  # type: ignore[assignment]
            return node
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._old[0] if node.id == "OLD" else node
