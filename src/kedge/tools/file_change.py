"""What edit, multiedit and write have in common: show the change, then make exactly that one.

`prepare` works out the new content and the diff people decide on. `run` looks at the file again, under its lock. If it
is no longer what the diff was made from, nothing is written; with one exception: when it was changed by this session's
own tools only (two edits of one file in one Step), a replacement is worked out anew, and made if it removes and adds
the very same lines at the very same place.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kedge.core.approvals import Intent
from kedge.core.untrusted_text import visible_diff
from kedge.tools import disk
from kedge.tools.base import Prepared, ToolContext, ToolFailed, ToolOutput
from kedge.tools.diff import DIFF_BYTES_MAX, Diff, compare, is_the_same
from kedge.tools.known_files import bind, digest
from kedge.tools.paths import Target, resolve
from kedge.tools.textfile import decode, line_endings, line_start, plain_endings
from kedge.waiting import wait_uncancelled

#: Lines of the new text shown to the agent around its change, and characters of each: to see that it is right.
AROUND_LINES = 3
SHOWN_LINES_MAX = 30
SHOWN_LINE_CHARS_MAX = 300


#: Stands for a content that is no text. No new text is like it: the NUL is taken out of the diff.
_BINARY = "(binary data)\0\n"


class Rewritten(Struct, frozen=True):
    """What a file's new content is, and how to say so."""

    data: bytes
    #: The same as it was before it was encoded. People are shown this, and not what the bytes might be taken for.
    text: str
    #: "Edited src/app.py: 1 replacement."
    summary: str


#: From a file's content (None: not there) and its name for people to the new content; ToolFailed if it cannot be. Pure:
#: it may be asked again.
Rewrite = Callable[[bytes | None, str], Rewritten]


class Change(Struct, frozen=True):
    before: bytes | None
    after: Rewritten
    diff: Diff
    #: How the lines end, where that is not as people would expect: "CRLF", "LF -> CRLF", "mixed". Else empty.
    endings: str
    #: Of the written bytes, where it is not UTF-8: for the program that reads them they may be something else.
    encoding: str
    #: Digests of both contents; empty for a file that is not there.
    before_digest: str
    after_digest: str


async def prepare_change(
    given_path: str,
    names: tuple[str, ...],
    rewrite: Rewrite,
    context: ToolContext,
    guarded: tuple[Path, ...],
    *,
    again: bool,
) -> Prepared:
    """`again`: the change may be worked out anew on what this session's own tools have written since."""
    target = await context.threads.run(resolve, given_path, context.root, guarded)
    before, before_digest, _ = await context.threads.run(_read, target.path)

    def check_seen() -> None:
        if before is not None:
            context.known_files.check(target.path, before_digest, target.shown)

    if not context.shown_before:
        check_seen()

    def work_out() -> tuple[Change, Intent]:
        change = _work_out(target, before, rewrite)
        return change, _intent(names, target, change)

    change, intent = await context.threads.run(work_out)
    if context.shown_before not in ("", intent.binding):
        check_seen()  # the process that read the file is gone, and it is not even the change that people were shown

    async def run() -> ToolOutput:
        async with context.known_files.lock(target.path):
            now, now_digest, known = await context.threads.run(_read, target.path)
            made = change
            if now_digest != change.before_digest:
                is_ours = now is not None and context.known_files.wrote(target.path, now_digest)
                made = await context.threads.run(_again, target, now, change, rewrite if again and is_ours else None)
            output = await context.threads.run(_output, target, made)
            await context.host.keep_version(target.path, made.before, made.after_digest)

            async def write() -> None:
                await context.threads.run(disk.replace, target.path, made.after.data, known)
                context.known_files.note(target.path, made.after_digest, is_ours=True)

            await _to_the_end(write())
        return output

    return Prepared(intent, run, f"{names[0]} {target.shown}")


def _read(path: Path) -> tuple[bytes | None, str, os.stat_result | None]:
    """The content of a file, its digest, and which file it is. Of one that is not there: None, "", None."""
    found = disk.read(path)
    return (None, "", None) if found is None else (found.data, digest(found.data), found.stat)


def _work_out(target: Target, before: bytes | None, rewrite: Rewrite) -> Change:
    after = rewrite(before, target.shown)
    if after.data == before:
        raise ToolFailed(f"{target.shown} is like that already: there is nothing to change")
    file = decode(before or b"")
    old, new = _BINARY if file is None else file.text, after.text
    encoding = "" if file is None or file.encoding == "utf-8" else file.encoding
    old_endings, new_endings = "none" if old is _BINARY else line_endings(old), line_endings(new)
    # A carriage return is left out only where every line has one, before and after. Anywhere else it is part of what
    # people decide on: behind a backslash it changes what a shell does.
    if old_endings == new_endings == "CRLF":
        old, new = plain_endings(old), plain_endings(new)
    endings = f"{new_endings}" if new_endings in ("CRLF", "mixed") else ""
    if before is not None and old_endings != new_endings and "none" not in (old_endings, new_endings):
        endings = f"{old_endings} -> {new_endings}"
    diff = compare(old, new, target.shown, is_new=before is None)
    if old is _BINARY:
        diff = msgspec.structs.replace(diff, text=diff.text.replace("-(binary data)\0\n", "-(binary data)\n", 1))
    before_digest = "" if before is None else digest(before)
    return Change(before, after, diff, endings, encoding, before_digest, digest(after.data))


def _text(data: bytes | None) -> str:
    file = decode(data or b"")
    return _BINARY if file is None else file.text


def _again(target: Target, now: bytes | None, shown: Change, rewrite: Rewrite | None) -> Change:
    """The file is another one than the diff was made from. The same change to our own content, or ToolFailed."""
    stale = ToolFailed(f"{target.shown} changed while the approval was pending; view it again")
    if rewrite is None:
        raise stale
    try:
        change = _work_out(target, now, rewrite)
    except ToolFailed as error:
        raise ToolFailed(f"{target.shown} was changed by an earlier call: {error}") from None
    between = compare(plain_endings(_text(shown.before)), plain_endings(_text(now)), "")
    is_alike = (change.endings, change.encoding) == (shown.endings, shown.encoding)
    if not is_alike or not is_the_same(change.diff, shown.diff, between):
        raise stale
    return change


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """A cancelled call lets go only when the file is written and noted: a thread cannot be stopped half-way."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await wait_uncancelled([task])
        raise


def _intent(names: tuple[str, ...], target: Target, change: Change) -> Intent:
    diff, is_new = change.diff, change.before is None
    verb = "Create" if is_new else "Edit" if "edit" in names[0] else "Write"
    is_special = target.is_guarded or not target.is_inside
    shown = {"path": target.shown, "diff": diff.text, "is_new": is_new}
    if (spelled := visible_diff(diff.text)) != diff.text:
        shown["shown"] = spelled  # for clients that would draw what they are given
    endings = ""
    if change.endings:
        shown["line_endings"] = change.endings
        endings = f", line endings: {change.endings}" if is_new or "->" in change.endings else ""
    if change.encoding:
        shown["encoding"] = change.encoding
        endings += f", encoding: {change.encoding}"
    too_large = (
        f"its diff is larger than the {DIFF_BYTES_MAX // 1000} kB that people are shown; make it in smaller parts"
    )
    return Intent(
        names=names,
        action="write",
        subject=target.subject,
        description=f"{verb} {target.shown} (+{diff.additions} -{diff.deletions}){endings}",
        path=str(target.path),
        params=json.dumps(shown, ensure_ascii=False),
        binding=bind("write", str(target.path), change.before_digest, change.after_digest),
        exact_only=is_special,
        grant="" if is_special else "edit(**)",
        unshown="" if diff.is_whole else too_large,
        given=target.given,
    )


def _output(target: Target, change: Change) -> ToolOutput:
    diff = change.diff
    return ToolOutput(
        f"{change.after.summary}\n{_around(change)}".rstrip("\n"),
        {
            "diff": diff.text,
            "additions": diff.additions,
            "deletions": diff.deletions,
            "path": target.subject,
        },
    )


def _around(change: Change) -> str:
    """The changed lines and some around them, numbered as view does it. A new file is known to who wrote it."""
    if change.before is None:
        return ""
    text = plain_endings(change.after.text)
    first = max(1, change.diff.first_line - AROUND_LINES)
    last = min(text.count("\n") + (text[-1:] not in ("", "\n")), change.diff.last_line + AROUND_LINES)
    shown: list[str] = []
    at = line_start(text, first)
    for number in range(first, min(last, first + SHOWN_LINES_MAX - 1) + 1):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        shown.append(f"{number:>6}\t{text[at : min(end, at + SHOWN_LINE_CHARS_MAX)]}")
        at = end + 1
    return "\n".join([*shown, "   …" * (last - first >= SHOWN_LINES_MAX)])
