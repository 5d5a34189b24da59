"""Random mutants: operators of one module are changed at random, and the tests of the core must find it.

python -m proof.mutants.chance core.lane 0 20   twenty mutants of the Lane, drawn with seed 0

Some of these changes have no visible effect: the figure is the share that is found.
"""

from __future__ import annotations

import ast
import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from proof.mutants.apply import SRC, install

#: The tests that must find the mutants of each module: those of tests/core about it, which take seconds.
NOTICED_BY: dict[str, tuple[str, ...]] = {
    "core.lane": (
        "tests/core/test_lane.py",
        "tests/core/test_records.py",
        "proof/test_lane_walk.py::test_every_row_of_the_lifecycle_is_used",
    ),
    "core.claims": ("tests/core/test_claims.py",),
    "core.approvals": ("tests/core/test_approvals.py",),
    "core.step": ("tests/core/test_step.py",),
}
#: Hanging tests find a mutant. On a machine that stalls correct tests may take as long, so they are repeated with the
#: second limit, which is below the timeout of each test. Seconds.
MUTANT_S_MAX, MUTANT_AGAIN_S_MAX = 60, 300
#: Without timeouts: a timeout ends the process with the exit code of failed tests. And a test file that cannot be
#: collected counts as failed.
OPTIONS = ("-x", "-p", "no:xdist", "-o", "timeout=0", "--continue-on-collection-errors")

_FLIPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one node; `step` distinguishes several changes of the same node."""

    place: int
    step: int
    text: str


def places(tree: ast.Module) -> Iterator[tuple[int, ast.AST]]:
    """Iterate over the nodes inside functions, with numbers, without docstrings."""
    number = 0
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for statement in function.body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            for node in ast.walk(statement):
                yield number, node
                number += 1


def changes(tree: ast.Module) -> list[Change]:
    result: list[Change] = []
    for place, node in places(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Compare(ops=[op]) if type(op) in _FLIPS:
                result.append(Change(place, 0, f"line {line}: {type(op).__name__} becomes {_FLIPS[type(op)].__name__}"))
            case ast.BoolOp(op=op):
                result.append(Change(place, 0, f"line {line}: {type(op).__name__} becomes its opposite"))
            case ast.UnaryOp(op=ast.Not()):
                result.append(Change(place, 0, f"line {line}: a `not` is removed"))
            case ast.If() | ast.IfExp():
                result.append(Change(place, 0, f"line {line}: the condition is negated"))
            case ast.Constant(value=bool()):
                result.append(Change(place, 0, f"line {line}: {node.value!r} becomes its opposite"))
            case ast.Constant(value=int()):
                result += [Change(place, step, f"line {line}: {node.value!r} and {step:+}") for step in (1, -1)]
            case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Raise():
                result.append(Change(place, 0, f"line {line}: `{ast.unparse(node)[:60]}` is removed"))
            case _:
                pass
    return result


def changed(source: str, change: Change) -> str:
    tree = ast.parse(source)
    node = next(node for place, node in places(tree) if place == change.place)
    return ast.unparse(ast.fix_missing_locations(_Changer(node, change.step).visit(tree)))


class _Changer(ast.NodeTransformer):
    def __init__(self, target: ast.AST, step: int) -> None:
        self._target = target
        self._step = step

    def visit(self, node: ast.AST) -> ast.AST:
        return self._other(node) if node is self._target else self.generic_visit(node)

    def _other(self, node: ast.AST) -> ast.AST:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=comparators):
                return ast.Compare(left, [_FLIPS[type(op)]()], comparators)
            case ast.BoolOp(op=op, values=values):
                return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            case ast.UnaryOp(operand=operand):
                return operand
            case ast.If(test=test, body=body, orelse=orelse):
                return ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
            case ast.IfExp(test=test, body=chosen, orelse=other):
                return ast.IfExp(ast.UnaryOp(ast.Not(), test), chosen, other)
            case ast.Constant(value=bool() as flag):
                return ast.Constant(not flag)
            case ast.Constant(value=int() as number):
                return ast.Constant(number + self._step)
            case _:
                return ast.Pass()


def is_noticed(module: str, text: str, tests: tuple[str, ...] = ()) -> bool:
    """Do its tests (or these) find the fault: does one fail, or do they hang twice?"""
    tests = tests or NOTICED_BY[module]
    code = _code_of(module, text, tests, MUTANT_S_MAX)
    if code == -signal.SIGALRM:
        code = _code_of(module, text, tests, MUTANT_AGAIN_S_MAX)
        if code == -signal.SIGALRM:
            return True
    # Tests that cannot run find nothing.
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest {' '.join(tests)} ended with {code}")
    return code == pytest.ExitCode.TESTS_FAILED


def _code_of(module: str, text: str, tests: tuple[str, ...], s_max: int) -> int:
    """Return the exit code of pytest; negative: the signal. In a fork of this process, which has not imported kedge."""
    child = os.fork()
    if child == 0:
        code = int(pytest.ExitCode.INTERNAL_ERROR)  # not the code of failed tests, if this function fails
        try:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            signal.alarm(s_max)
            install(module, ast.parse(text))
            code = int(pytest.main([*OPTIONS, *tests]))
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main(module: str, seed: str, count: str) -> int:
    source = (SRC / "kedge" / (module.replace(".", "/") + ".py")).read_text("utf-8")
    all_changes = changes(ast.parse(source))
    # Tests that always fail would find everything.
    assert not is_noticed(module, ast.unparse(ast.parse(source))), (
        f"{' '.join(NOTICED_BY[module])} fail without a fault"
    )
    drawn = random.Random(int(seed)).sample(all_changes, min(int(count), len(all_changes)))
    survivors = [change.text for change in drawn if not is_noticed(module, changed(source, change))]
    print(json.dumps({"tried": len(drawn), "places": len(all_changes), "survivors": survivors}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
