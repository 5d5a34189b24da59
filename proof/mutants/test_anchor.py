"""Anchors match syntax, not text, and exactly one place."""

from __future__ import annotations

import ast

import pytest

from proof.mutants.anchor import AnchorError, mutate

SOURCE = """
LIMIT = 5

class Lane:
    def submit(self, run):
        if run.closed:  # a comment
            raise Refused(run.id, reason="closed")
        elif self.full:
            self.wait()
        self.log(
            run
        )
        return len(self.queue) + 1

    def cancel(self, run):
        self.log(run)
"""


def changed(function: str, old: str, new: str) -> list[tuple[str, str]]:
    """The lines that the mutant removes and adds."""
    before, after = (
        ast.unparse(ast.parse(SOURCE)).splitlines(),
        ast.unparse(mutate(SOURCE, function, old, new)).splitlines(),
    )
    return [("-", line.strip()) for line in before if line not in after] + [
        ("+", line.strip()) for line in after if line not in before
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("len(self.queue) + 1", "0", ["return 0"]),
        ("len(self.queue)", "OLD - 1", ["return len(self.queue) - 1 + 1"]),
        ("raise Refused(...)", "pass", ["pass"]),
        ("raise Refused(...)", "", ["pass"]),
        ("self.log(run)", "self.log(run)\nself.log(None)", ["self.log(None)"]),
        ("if run.closed: ...", "if False: ...", ["if False:"]),
        ("if run.closed: ...", "self.stop()\nOLD", ["self.stop()"]),
    ],
)
def test_an_anchor_replaces_code(old: str, new: str, expected: list[str]) -> None:
    assert [line for sign, line in changed("Lane.submit", old, new) if sign == "+"] == expected


def test_an_open_if_keeps_its_else() -> None:
    assert changed("Lane.submit", "if run.closed: ...", "if False: ...") == [
        ("-", "if run.closed:"),
        ("+", "if False:"),
    ]


def test_a_deleted_statement_leaves_no_trace() -> None:
    assert changed("Lane.submit", "self.wait()", "") == [("-", "self.wait()"), ("+", "pass")]


def test_an_anchor_outside_functions() -> None:
    assert changed("", "LIMIT = 5", "LIMIT = 6") == [("-", "LIMIT = 5"), ("+", "LIMIT = 6")]


@pytest.mark.parametrize(
    ("function", "old", "message"),
    [
        ("Lane.submit", "self.missing()", "`self.missing()` matches 0 places in Lane.submit, expected one"),
        ("Lane", "self.log(run)", "`self.log(run)` matches 2 places in Lane, expected one"),
        ("Lane.missing", "run", "Lane.missing matches 0 definitions, expected one"),
    ],
)
def test_an_anchor_without_one_place_is_an_error(function: str, old: str, message: str) -> None:
    with pytest.raises(AnchorError) as error:
        mutate(SOURCE, function, old, "None")
    assert str(error.value) == message
