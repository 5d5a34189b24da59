"""Approvals show every byte that matters, in every front end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kedge.client.view.ask_text import approval_lines
from kedge.tools.base import Prepared
from kedge.tools.edit import EditTool
from kedge.tools.shell import BashTool
from kedge.tools.view import ViewTool
from kedge.tools.write import WriteTool
from kedge.tui.panels.approval_panel import approval_rows
from kedge.wire.models import PermissionRequest
from tests.tools.contexts import call, make_context, prepare

SCRIPT = b"#!/bin/sh\n# v1\necho would run: \\\nrm -rf precious\n"


def front_ends(prepared: Prepared) -> dict[str, str]:
    """Return the text that each front end shows, and the parameters that other clients receive."""
    intent = prepared.intent
    params = json.loads(intent.params)
    ask = PermissionRequest(
        id="ask1",
        session_id="s",
        run_id="r",
        tool_call_id="c",
        tool_name=intent.names[0],
        action=intent.action,
        description=intent.description,
        path=intent.path,
        params=params,
        grant=intent.grant,
        asked_at=0,
    )
    rows = {
        width: "\n".join("".join(text for text, _ in row) for row in approval_rows(ask, width)) for width in (80, 160)
    }
    given = params.get("shown") or params.get("diff") or params["command"]
    return {"cli": "\n".join(approval_lines(ask)), "tui": rows[80], "tui beside": rows[160], "others": given}


async def written(root: Path, before: bytes | None, content: str) -> Prepared:
    context = make_context(root)
    if before is not None:
        (root / "a.sh").write_bytes(before)
        await call(ViewTool(), context, path="a.sh")
    return await prepare(WriteTool(), context, path="a.sh", content=content)


@pytest.mark.found(
    "attack 6",
    "a diff left out carriage returns as soon as anything else changed, and one of them made `rm -rf` live; it leaves "
    "them out only where every line has one, before and after",
)
@pytest.mark.parametrize(
    ("before", "content", "visible"),
    [
        (SCRIPT, "#!/bin/sh\n# v2\necho would run: \\\r\nrm -rf precious\n", "+echo would run: \\\\u{d}"),
        (SCRIPT, "#!/bin/sh\n# v2\necho would run: \\ \nrm -rf precious\n", "+echo would run: \\\\u{20}"),
        (SCRIPT, "#!/bin/sh\n# v2\necho would run: \\\t\nrm -rf precious\n", "+echo would run: \\\\u{9}"),
        (SCRIPT, "#!/bin/sh\n# v2\rrm -rf precious\n", "+# v2\\u{d}rm -rf precious"),
        (None, "echo would run: \\\r\nrm -rf x\r\n", "+echo would run: \\\\u{d}"),
        (None, "echo would run: \\\r\nrm -rf x\n", "+echo would run: \\\\u{d}"),
        # The context matters, too: it can change the meaning of a new line after it.
        (b"a\necho would run: \\ \n", "a\necho would run: \\ \nrm -rf x\n", " echo would run: \\\\u{20}"),
        (b"a\necho would run: \\\r\n", "a\necho would run: \\\r\nrm -rf x\n", " echo would run: \\\\u{d}"),
        (b"a\r\n# v1\r\n", "a\r\n# v2\r\necho \\\r\r\n", "+echo \\\\u{d}\\u{d}"),
        (b"a\n", "\ufeffa\n", "+\\u{feff}a"),
        (b"a\n", "a\x0cb\n", "+a\\u{c}b"),
        (b"a\n", "a\x85b\u2028c\n", "+a\\u{85}b\\u{2028}c"),
        (b"a\n", "a\0b\n", "+a\\u{0}b"),
        (b"a\nb\n", "a\nb", "\\ No newline at end of file"),
        (b"a\nb", "a\nb\n", "\\ No newline at end of file"),
        (b"a\n", "a\n \n", "+\\u{20}"),
    ],
)
async def test_a_diff_hides_nothing(tmp_path: Path, before: bytes | None, content: str, visible: str) -> None:
    prepared = await written(tmp_path, before, content)
    for name, text in front_ends(prepared).items():
        assert visible in text, name


@pytest.mark.found(
    "attack 6",
    "a space after a backslash was not visible in a command, although the next line is another command then; the "
    "blank or tab that ends a line is key_name out",
)
async def test_trailing_blank_of_a_command_is_visible(tmp_path: Path) -> None:
    command = "echo would run: \\ \nrm -rf precious\\\t\nls \r\npwd"
    for name, text in front_ends(await prepare(BashTool(), make_context(tmp_path), command=command)).items():
        for line in ("echo would run: \\\\u{20}\n", "rm -rf precious\\\\u{9}\n", "ls \\u{d}\n"):
            assert line in text, name


async def test_change_of_all_line_endings_is_shown(tmp_path: Path) -> None:
    prepared = await written(tmp_path, b"a\nb\n", "a\r\nb\r\n")
    assert prepared.intent.description == "Write a.sh (+2 -2), line endings: LF -> CRLF"
    assert "+a\\u{d}\n+b\\u{d}\n" in json.loads(prepared.intent.params)["shown"]
    seen = front_ends(prepared)
    assert "line_endings: LF -> CRLF" in seen["cli"]
    assert "line_endings: LF -> CRLF" in seen["tui"]
    (tmp_path / "new").mkdir()
    new = await written(tmp_path / "new", None, "a\r\n")
    assert new.intent.description.endswith("a.sh (+1 -0), line endings: CRLF")


async def test_crlf_diff_has_no_noise(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_bytes(b"a\r\nb\r\nc\r\n")
    context = make_context(tmp_path)
    await call(ViewTool(), context, path="a.sh")
    prepared = await prepare(EditTool(), context, path="a.sh", old_string="b\n", new_string="x\ny\n")
    assert prepared.intent.description == "Edit a.sh (+2 -1)"
    assert json.loads(prepared.intent.params) == {
        "path": "a.sh",
        "diff": "--- a/a.sh\n+++ b/a.sh\n@@ -1,3 +1,4 @@\n a\n-b\n+x\n+y\n c\n",
        "is_new": False,
        "line_endings": "CRLF",
    }
    await prepared.run()
    assert (tmp_path / "a.sh").read_bytes() == b"a\r\nx\r\ny\r\nc\r\n"


@pytest.mark.found(
    "attack round 2: display",
    "a NUL took the place of the six characters `\\u{0}` without being in the diff, and made `rm -rf` live; a NUL is "
    "compared as what it is",
)
async def test_nul_differs_from_its_escape(tmp_path: Path) -> None:
    prepared = await written(tmp_path, b"# v1\nrm\\u{0} -rf precious\n", "# v2\nrm\0 -rf precious\n")
    assert prepared.intent.description == "Write a.sh (+2 -2)"
    for name, text in front_ends(prepared).items():
        assert "+rm\\u{0} -rf precious" in text, name


@pytest.mark.found(
    "attack round 2: display",
    "to replace a binary file by the words that stand for one had an empty diff; nothing is equal to these words",
)
async def test_text_cannot_look_like_a_binary_file(tmp_path: Path) -> None:
    prepared = await written(tmp_path, b"\0\1", "(binary data)\nls\n")
    for name, text in front_ends(prepared).items():
        assert "-(binary data)" in text, name
        assert "+(binary data)" in text, name


@pytest.mark.found(
    "attack round 2: display",
    "in a file that begins with a UTF-16 mark, Chinese characters were shown whose bytes are a shell command; an "
    "encoding other than UTF-8 is shown",
)
async def test_other_encoding_is_shown(tmp_path: Path) -> None:
    script = "\n:;rm -rf precious \n"
    prepared = await written(tmp_path, b"\xff\xfeh\0\n\0", script.encode().decode("utf-16-le"))
    assert prepared.intent.description == "Write a.sh (+1 -1), encoding: utf-16-le"
    seen = front_ends(prepared)
    assert "encoding: utf-16-le" in seen["tui"]
    assert "encoding: utf-16-le" in seen["cli"]
    await prepared.run()
    assert (tmp_path / "a.sh").read_bytes() == b"\xff\xfe" + script.encode()


@pytest.mark.found(
    "attack round 2: display",
    "strokes over letters, accents on nothing and stacks of accents were drawn, over the text or not at all; those "
    "that no script needs are key_name out",
)
@pytest.mark.parametrize(
    ("content", "visible"),
    [
        ("r\u0336m\u20dd x\n", "+r\\u{336}m\\u{20dd} x"),
        ("=\u0338\n", "+=\\u{338}"),
        ("\u0301\u0301\n", "+\\u{301}\\u{301}"),
        ("z" + "\u0301" * 5 + "\n", "+z\u0301\u0301\u0301\\u{301}\\u{301}"),
        ("Vie\u0323\u0302t e\u0301 กี่ क्षि\n", "+Vie\u0323\u0302t e\u0301 กี่ क्षि"),
    ],
)
async def test_accents_hide_nothing(tmp_path: Path, content: str, visible: str) -> None:
    for name, text in front_ends(await written(tmp_path, None, content)).items():
        assert visible in text, name


@pytest.mark.found(
    "attack round 2: display",
    "the terminal interface drew a tab in the name of a file as blanks; it is key_name out, as a newline is",
)
async def test_tab_in_a_path_is_visible(tmp_path: Path) -> None:
    prepared = await prepare(WriteTool(), make_context(tmp_path), path="a\tb", content="x\n")
    seen = front_ends(prepared)
    assert "/a\\u{9}b" in seen["tui"].replace("\n     ", "")
    assert "/a\\u{9}b" in seen["cli"]
