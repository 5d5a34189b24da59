"""`kedge run` in an environment that lacks what it usually has: it works, or fails with one line."""

from __future__ import annotations

import pytest

from tests.client.process import Home


@pytest.mark.parametrize("name", ["HOME", "TMPDIR", "XDG_RUNTIME_DIR"])
@pytest.mark.parametrize("how", ["missing", "unset"])
def test_run_works_without_a_usual_directory(in_home: Home, name: str, how: str) -> None:
    in_home.env.pop(name, None)
    if how == "missing":
        in_home.env[name] = str(in_home.root / "missing")
    done = in_home.kedge("run", "hello")
    assert (done.code, done.out, done.errors) == (0, "You said: hello\n", "")


def test_data_directory_that_is_a_file_is_a_one_line_error(in_home: Home) -> None:
    in_home.data.rmdir()
    in_home.data.write_text("a file")
    done = in_home.kedge("run", "hello")
    assert done.code != 0
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert done.err.startswith("kedge: ")
    assert str(in_home.data) in done.err
