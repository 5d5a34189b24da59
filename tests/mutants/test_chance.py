"""G9, in the long size: faults that nobody chose. Most of those in the core are noticed by its own tests."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from tests.mutants.apply import ROOT
from tests.mutants.chance import NOTICED_BY, changed, changes
from tests.proof import proof

#: Of each module. More than the places there are: all of them. The Lane's tests take the longest.
COUNTS = {"core.lane": "100", "core.claims": "100", "core.approvals": "100", "core.step": "100"}
#: Some changes make no difference that anybody could see, so not all can be found. Per cent.
NOTICED_MIN = 90


@pytest.mark.long
@pytest.mark.proof
@pytest.mark.timeout(5_000)
@pytest.mark.parametrize("module", NOTICED_BY)
def test_faults_by_chance_are_noticed(module: str) -> None:
    with proof("G9", "random mutants of the core", "modules with too many survivors") as figure:
        done = subprocess.run(
            [sys.executable, "-m", "tests.mutants.chance", module, "0", COUNTS[module]],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        told = json.loads(done.stdout)
        tried, survivors = told["tried"], told["survivors"]
        figure.count = tried
        figure.notes = {"noticed": tried - len(survivors), f"survivors in {module}": "; ".join(survivors)}
        assert 100 * (tried - len(survivors)) >= NOTICED_MIN * tried, survivors


SOURCE = '''
def f(a: int, b: bool) -> int:
    """Words."""
    if a < 1 and not b:
        raise ValueError
    return 2
'''


def test_each_change_by_chance_gives_another_program() -> None:
    plain = ast.unparse(ast.parse(SOURCE))
    texts = [changed(SOURCE, change) for change in changes(ast.parse(SOURCE))]
    # The condition, `and`, `<`, `1` twice, `not`, the raise, `2` twice.
    assert len(set(texts)) == len(texts) == 9
    assert plain not in texts
    for text in texts:
        compile(text, "changed", "exec")
