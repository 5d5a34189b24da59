"""G9, in the long size: random mutants of the core. The core's own tests find most of them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from proof.figures import proof
from proof.mutants.apply import ROOT, SRC
from proof.mutants.chance import NOTICED_BY, changed, changes

#: Mutants of each module, at most.
COUNTS = {"core.lane": "100", "core.claims": "100", "core.approvals": "100", "core.step": "100"}
#: Some changes have no visible effect, so not all can be found. Per cent.
NOTICED_MIN = 90


@pytest.mark.long
@pytest.mark.proof
@pytest.mark.timeout(5_000)
@pytest.mark.parametrize("module", NOTICED_BY)
def test_random_mutants_are_found(module: str) -> None:
    with proof("G9", "random mutants of the core", "modules with too many survivors") as figure:
        done = subprocess.run(
            [sys.executable, "-m", "proof.mutants.chance", module, "0", COUNTS[module]],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        result = json.loads(done.stdout)
        tried, survivors = result["tried"], result["survivors"]
        figure.count = tried
        figure.notes = {"noticed": tried - len(survivors), f"survivors in {module}": "; ".join(survivors)}
        assert 100 * (tried - len(survivors)) >= NOTICED_MIN * tried, survivors


#: In a process of its own: this one has already imported the module.
IS_NOTICED = """
import sys
from proof.mutants import chance
text, chance.MUTANT_S_MAX, chance.MUTANT_AGAIN_S_MAX, *tests = sys.argv[1:]
chance.MUTANT_S_MAX, chance.MUTANT_AGAIN_S_MAX = int(chance.MUTANT_S_MAX), int(chance.MUTANT_AGAIN_S_MAX)
print(chance.is_noticed("core.claims", text, tuple(tests)))
"""


def noticed(code: str, *tests: str, alarms_s: tuple[int, int] = (60, 60)) -> str:
    """Return the result for a module that runs this code when it is imported."""
    text = (SRC / "kedge" / "core" / "claims.py").read_text("utf-8") + code
    command = [sys.executable, "-c", IS_NOTICED, text, *map(str, alarms_s), *(tests or ("tests/core/test_claims.py",))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.splitlines()[-1]


def test_failing_or_twice_hanging_tests_find_a_fault(tmp_path: Path) -> None:
    assert noticed("") == "False"
    assert noticed("raise OSError") == "True"
    assert noticed("while True: pass", alarms_s=(1, 1)) == "True"
    # As on a machine that stalls: the alarm goes off the first time only.
    been = tmp_path / "been"
    once = f"import os\nif not os.path.exists('{been}'):\n    os.mkdir('{been}')\n    os.kill(os.getpid(), 14)\n"
    assert noticed(once) == "False"
    assert been.exists()


@pytest.mark.parametrize(
    ("code", "tests", "ends_with"),
    [
        ("", "tests/core/test_that_is_not_there.py", 4),
        ("", "tests/core/test_claims.py -kno_such_name", 5),
        ("raise KeyboardInterrupt", "tests/core/test_claims.py", 2),
        ("import os; os._exit(3)", "tests/core/test_claims.py", 3),
        ("import os; os.abort()", "tests/core/test_claims.py", -6),
    ],
)
def test_tests_that_cannot_run_are_an_error(code: str, tests: str, ends_with: int) -> None:
    assert noticed(code, *tests.split()).endswith(f"ended with {ends_with}")


SOURCE = '''
def f(a: int, b: bool) -> int:
    """Words."""
    if a < 1 and not b:
        raise ValueError
    return 2
'''


def test_each_random_change_gives_another_program() -> None:
    plain = ast.unparse(ast.parse(SOURCE))
    texts = [changed(SOURCE, change) for change in changes(ast.parse(SOURCE))]
    # The condition, `and`, `<`, `1` twice, `not`, the raise, `2` twice.
    assert len(set(texts)) == len(texts) == 9
    assert plain not in texts
    for text in texts:
        compile(text, "changed", "exec")
