"""docs/reliability.md is generated from the tests and the figures."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proof import figures as proofs  # `proofs.proof` here is not listed as a proof

ROOT = Path(__file__).parent.parent
RELIABILITY = runpy.run_path(str(ROOT / "scripts" / "reliability.py"))
FIGURES = json.loads((ROOT / "docs" / "figures.json").read_text())["figures"]


def test_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "reliability.md").read_text() == RELIABILITY["page"](), "run scripts/docs"


def test_readme_figures_are_up_to_date() -> None:
    readme = (ROOT / "README.md").read_text()
    (part,) = RELIABILITY["README_PART"].findall(readme)
    assert part == RELIABILITY["readme_part"](), "run scripts/docs"


def test_guarantees_and_proofs_match() -> None:
    guarantees = set(RELIABILITY["GUARANTEES"])
    assert guarantees == {f"G{number}" for number in range(1, 16)}
    proved = {guarantee for proof in RELIABILITY["proofs"]() for guarantee in proof.guarantees}
    assert proved == guarantees


def test_every_proof_has_a_literal_description() -> None:
    missing = [proof.file for proof in RELIABILITY["proofs"]() if not (proof.guarantees and proof.what)]
    assert missing == []


def test_proofs_in_the_readme_exist() -> None:
    assert set(RELIABILITY["STRONGEST"]) <= {proof.what for proof in RELIABILITY["proofs"]()}


def test_no_figure_has_failures() -> None:
    assert [figure["what"] for figure in FIGURES if figure["wrong"] or not figure["count"]] == []


def test_no_figure_is_from_a_scaled_run() -> None:
    """With KEDGE_PROOF_SCALE."""
    assert {figure["size"] for figure in FIGURES} <= {"ci", "long"}


def test_every_figure_has_a_proof() -> None:
    proved = {(" ".join(proof.guarantees), proof.what) for proof in RELIABILITY["proofs"]()}
    assert [figure["what"] for figure in FIGURES if (figure["guarantee"], figure["what"]) not in proved] == []


def test_every_found_marker_is_complete() -> None:
    found = RELIABILITY["all_found"]()
    assert found
    assert [entry.test for entry in found if not (entry.by.strip() and entry.what.strip())] == []
    marked = sum(path.read_text().count("\n@pytest.mark.found(") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(found) >= marked


# --- figures of a proof ----------------------------------------------------------------------------------------------


def test_proof_writes_its_figure_and_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEDGE_FIGURES", str(tmp_path / "lines"))
    with proofs.proof("G3", "tries") as figure:
        figure.count, figure.notes["of them"] = 3, 2
    with pytest.raises(ZeroDivisionError), proofs.proof("G3", "tries"):
        _ = 1 / 0
    with (
        pytest.raises(AssertionError, match="G3: 2 losses in 5 tries"),
        proofs.proof("G3", "tries", "losses") as figure,
    ):
        figure.count, figure.wrong = 5, 2
    with pytest.raises(pytest.skip.Exception), proofs.proof("G3", "tries"):
        pytest.skip("no try, no figure")
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [(line["count"], line["wrong"], line["notes"]) for line in lines] == [
        (3, 0, {"of them": 2}),
        (0, 1, {}),
        (5, 2, {}),
    ]
    own = "tests/test_reliability.py::test_proof_writes_its_figure_and_test"
    assert {line["test"] for line in lines} == {own}


# --- sums -------------------------------------------------------------------------------------------------------------


def line(**more: Any) -> str:
    fields = {"guarantee": "G3", "what": "simulated power cuts", "count": 10, "wrong": 0, "wrong_is": "lost or corrupt"}
    test = "tests/store/test_power_cuts.py::test_a_loss"
    return json.dumps({**fields, "notes": {}, "seconds": 1.5, "size": "long", "test": test, **more})


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a copy of the files that the script reads, without figures."""
    for name in ("scripts", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("before\n<!-- proofs -->\nold\n<!-- /proofs -->\nafter\n")
    return tmp_path


def summed(clone: Path, *lines: str, wall_s: int = 600) -> tuple[str, list[Any]]:
    """Run the script on these lines, and return its output and the figures."""
    (clone / "lines").write_text("".join(f"{line}\n" for line in lines))
    command = [sys.executable, "scripts/reliability.py", "lines", str(wall_s)]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    # A run of all proofs fails if one of them has no figure.
    assert done.returncode == int(wall_s > 0 and "NOT RUN" in done.stdout), done.stderr
    return done.stdout, json.loads((clone / "docs" / "figures.json").read_text())["figures"]


def test_parts_of_a_proof_are_summed(clone: Path) -> None:
    printed, (figure,) = summed(
        clone,
        line(notes={"torn": 2, "longest": "3 ms"}),
        line(count=7, wrong=1, seconds=2.0, notes={"torn": 3, "longest": "2 ms"}),
        line(count=1, size="ci"),
    )
    assert (figure["count"], figure["wrong"], figure["seconds"], figure["longest_s"]) == (17, 1, 3.5, 2.0)
    assert figure["notes"] == {"torn": 5, "longest": "2 ms"}
    assert (figure["size"], figure["tests"]) == ("long", ["tests/store/test_power_cuts.py::test_a_loss"])
    assert "G3  simulated power cuts" in printed
    assert "NOT RUN: kills of a real server" in printed
    page = (clone / "docs" / "reliability.md").read_text()
    assert "| simulated power cuts | 17 | 1 lost or corrupt | 4 s | long | unknown |" in page
    assert "It took 10 min on " in page
    readme = (clone / "README.md").read_text()
    assert "- 17 simulated power cuts: 1 lost or corrupt\n" in readme
    assert readme.startswith("before\n")
    assert readme.endswith("<!-- /proofs -->\nafter\n")


def test_partial_run_keeps_other_figures(clone: Path) -> None:
    kills = line(what="kills of a real server", wrong_is="lost, doubled or stuck")
    summed(clone, line(count=5, wrong=1), kills)
    _, figures = summed(clone, line(count=20), line(guarantee="G1", what="a removed proof"), wall_s=0)
    assert [(figure["what"], figure["count"], figure["wrong"]) for figure in figures] == [
        ("kills of a real server", 10, 0),
        ("simulated power cuts", 20, 0),
    ]


def test_missing_lines_are_an_error(clone: Path) -> None:
    command = [sys.executable, "scripts/reliability.py", "nothing"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "nothing not found" in done.stderr
