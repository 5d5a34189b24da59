"""view: numbered lines within limits, pictures, and other binary files."""

from __future__ import annotations

import base64
import json
from functools import partial
from pathlib import Path

import pytest

from kedge.core.approvals import is_hidden, parse_rules, permit
from kedge.tools.base import OUTPUT_CHARS_MAX, ToolFailed
from kedge.tools.disk import READ_FILE_BYTES_MAX
from kedge.tools.edit import EditTool
from kedge.tools.search import GrepTool
from kedge.tools.view import LINES_DEFAULT, PICTURE_BYTES_MAX, VIEW_LINE_CHARS_MAX, ViewTool
from tests.tools.contexts import call, make_context, prepare

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


async def view(root: Path, **given: object) -> str:
    return (await call(ViewTool(), make_context(root), **given)).content


async def test_lines_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n\tthree")
    output = await call(ViewTool(), make_context(tmp_path), path="a.txt")
    assert output.content == "     1\tone\n     2\t\n     3\t\tthree"
    assert output.metadata == {"path": "a.txt", "first_line": 1, "last_line": 3, "lines": 3}


async def test_part_of_a_file_says_how_to_continue(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 101)))
    shown = await view(tmp_path, path="a.txt", offset=10, limit=2)
    assert shown == "    10\tline 10\n    11\tline 11\n(Lines 10 to 11 of 100. Continue with offset=12.)"
    assert (await view(tmp_path, path="a.txt", offset=100)) == "   100\tline 100"
    with pytest.raises(ToolFailed, match="has 100 lines; line 101 is beyond its end"):
        await view(tmp_path, path="a.txt", offset=101)


async def test_long_files_and_long_lines_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("x\n" * (LINES_DEFAULT + 1))
    assert f"Continue with offset={LINES_DEFAULT + 1}.)" in await view(tmp_path, path="short")
    (tmp_path / "wide").write_text("y" * 100 + "\n" + "x" * 1_000_000 + "\nend\n")
    shown = await view(tmp_path, path="wide")
    assert "x" * VIEW_LINE_CHARS_MAX + "… (line cut)\n     3\tend" in shown
    (tmp_path / "both").write_text(("z" * 1000 + "\n") * 1000)
    shown = await view(tmp_path, path="both")
    assert len(shown) <= OUTPUT_CHARS_MAX
    assert "of 1000. Continue with offset=30.)" in shown


async def test_large_file_is_viewed_but_not_edited(tmp_path: Path) -> None:
    line = b"x" * 99 + b"\n"
    (tmp_path / "big").write_bytes(line * (READ_FILE_BYTES_MAX // 100) + b"the end\n" + b"y" * 100_000 + b"\nlast")
    context = make_context(tmp_path)
    number = READ_FILE_BYTES_MAX // 100 + 1
    output = await call(ViewTool(), context, path="big", offset=number, limit=1)
    assert f"{number}\tthe end\n(Lines {number} to {number}. Continue with offset={number + 1}.)" in output.content
    shown = (await call(ViewTool(), context, path="big", offset=number + 1)).content
    assert "(line cut)" in shown
    assert shown.endswith(f"{number + 2}\tlast")
    assert len(shown) < 3000
    with pytest.raises(ToolFailed, match="has 50003 lines; line 900000 is beyond"):
        await call(ViewTool(), context, path="big", offset=900_000)
    with pytest.raises(ToolFailed, match="larger than 5000 kB; use bash"):
        await prepare(EditTool(), context, path="big", old_string="the end", new_string="x")


async def test_missing_file_lists_similar_names(tmp_path: Path) -> None:
    for name in ["config.py", "confirm.py", "conf.py", "other.txt"]:
        (tmp_path / name).touch()
    with pytest.raises(ToolFailed, match=r"^confg.py does not exist; similar names there: conf(ig)?.py, .*$"):
        await view(tmp_path, path="confg.py")
    with pytest.raises(ToolFailed, match=r"^src/app.py does not exist; its directory src does not exist either$"):
        await view(tmp_path, path="src/app.py")


async def test_empty_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert await view(tmp_path, path="empty") == "empty is empty."


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\xef\xbb\xbfone\r\ntwo\r\n", "     1\tone\n     2\ttwo"),
        ("\ufeffhéllo\n".encode("utf-16-le"), "(Not UTF-8; decoded as utf-16-le.)\n     1\théllo"),
        ("\ufeffhéllo\n".encode("utf-16-be"), "(Not UTF-8; decoded as utf-16-be.)\n     1\théllo"),
        (b"caf\xe9\n", "(Not UTF-8; decoded as latin-1.)\n     1\tcafé"),
        ("日本\n".encode(), "     1\t日本"),
    ],
)
async def test_encodings_are_detected(tmp_path: Path, data: bytes, shown: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    assert await view(tmp_path, path="a.txt") == shown


@pytest.mark.parametrize(
    ("data", "kind"), [(b"\x7fELF\0\0", "a program"), (b"ab\0cd", "binary data"), (b"\xff\xfea\0\0\xd8", "binary data")]
)
async def test_binary_file_shows_type_and_size(tmp_path: Path, data: bytes, kind: str) -> None:
    (tmp_path / "a.bin").write_bytes(data)
    shown = await view(tmp_path, path="a.bin")
    assert f"is not text: {kind}" in shown
    assert f"{len(data)} bytes" in shown


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0abc", "image/jpeg"),
        (b"GIF89a\0", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
async def test_pictures_are_attached(tmp_path: Path, data: bytes, media_type: str) -> None:
    (tmp_path / "picture").write_bytes(data)
    output = await call(ViewTool(), make_context(tmp_path), path="picture")
    kind, _, encoded = output.images[0].partition(";base64,")
    assert (kind, base64.b64decode(encoded)) == (f"data:{media_type}", data)
    assert "it is attached" in output.content


async def test_a_picture_too_large_for_a_model_is_not_attached(tmp_path: Path) -> None:
    (tmp_path / "big.png").write_bytes(PNG + bytes(PICTURE_BYTES_MAX))
    output = await call(ViewTool(), make_context(tmp_path), path="big.png")
    assert output.images == ()
    assert "too large to be shown" in output.content


async def test_intent_of_view(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    prepared = await prepare(ViewTool(), make_context(tmp_path), path="a.txt", offset=3)
    intent = prepared.intent
    assert (intent.names, intent.action, intent.subject) == (("view",), "read", "a.txt")
    assert json.loads(intent.params) == {"path": "a.txt", "offset": 3, "limit": LINES_DEFAULT}
    assert intent.description == "View a.txt"
    other = await prepare(ViewTool(), make_context(tmp_path), path="a.txt", offset=4)
    assert other.intent.binding != intent.binding


async def test_control_characters_in_names_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "a\n\x1b[31mb").write_text("x")
    prepared = await prepare(ViewTool(), make_context(tmp_path), path="a\n\x1b[31mb")
    assert prepared.intent.description == r"View a\n\x1b[31mb"


async def test_a_deny_rule_may_name_a_file_in_full(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("needle")
    rules = parse_rules([], [f"view({tmp_path.resolve()}/secrets/**)"])
    context = make_context(tmp_path, is_hidden=partial(is_hidden, rules))
    assert permit((await prepare(ViewTool(), context, path="secrets/key")).intent, rules, ()).decision == "deny"
    assert permit((await prepare(ViewTool(), context, path="other")).intent, rules, ()).decision == "allow"
    assert (await call(GrepTool(), context, pattern="needle")).content == "No matches."
