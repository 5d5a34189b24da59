"""The common part of edit, multiedit and write: show a change, then make exactly that change.

`prepare` computes the new content and the diff that the user approves. `run` reads the file again, under its lock. If
its content is not the one that the diff was made from, nothing is written, with one exception: if only this session's
own tools changed it (two edits of one file in one Step), the replacement is computed again, and written if it removes
and adds the same lines at the same position.
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
from kedge.tools.base import Prepared, ToolContext, ToolFailed, ToolOutput, WrittenFile
from kedge.tools.diff import DIFF_BYTES_MAX, Diff, compare, is_the_same
from kedge.tools.known_files import bind, digest
from kedge.tools.textfile import decode, line_endings, line_start, plain_endings
from kedge.tools.workspace_paths import Target, resolve
from kedge.waiting import wait_uncancelled

#: Lines that the result shows before and after a change, and its limits, so that the model can verify the change. Lines
#: and characters.
AROUND_LINES = 3
SHOWN_LINES_MAX = 30
SHOWN_LINE_CHARS_MAX = 300


#: Placeholder for binary content in a diff. No text is equal to it: the diff does not show the NUL.
_BINARY = "(binary data)\0\n"


class Rewritten(Struct, frozen=True):
    """The new content of a file."""

    data: bytes
    #: The content before encoding. The user approves this, not a guess at the encoding of the bytes.
    text: str
    #: "Edited src/app.py: 1 replacement."
    summary: str


#: Returns the new content for a file's content (None: it does not exist) and display name, or raises ToolFailed. Pure:
#: it may be called again.
Rewrite = Callable[[bytes | None, str], Rewritten]


class FileChange(Struct, frozen=True):
    before: bytes | None
    after: Rewritten
    diff: Diff
    #: Line endings that the user might not expect: "CRLF", "LF -> CRLF", "mixed". Else empty.
    endings: str
    #: Encoding of the written bytes if it is not UTF-8: the program that reads them may expect another one.
    encoding: str
    #: Digests of both contents; empty for a file that does not exist.
    before_digest: str
    after_digest: str


async def prepare_change(
    path: str,
    names: tuple[str, ...],
    rewrite: Rewrite,
    context: ToolContext,
    guarded: tuple[Path, ...],
    *,
    can_rebase: bool,
) -> Prepared:
    """`can_rebase`: the change may be computed again on content that this session's own tools wrote since."""
    target = await context.threads.look(resolve, path, context.root, guarded)
    before, before_digest, _ = await context.threads.run(read_digested, target.path)

    def check_known() -> None:
        if before is not None:
            context.known_files.check(target.path, before_digest, target.shown)

    if not context.shown_before:
        check_known()

    def compute() -> tuple[FileChange, Intent]:
        change = compute_change(target, before, rewrite)
        return change, _intent(names, target, change)

    change, intent = await context.threads.run(compute)
    if context.shown_before not in ("", intent.binding):
        check_known()  # after a restart: this is not the change that the user was shown

    async def run() -> ToolOutput:
        async with context.known_files.lock(target.path):
            now, now_digest, known = await context.threads.run(read_digested, target.path)
            made = change
            if now_digest != change.before_digest:
                is_ours = now is not None and context.known_files.wrote(target.path, now_digest)
                made = await context.threads.run(
                    _rebased, target, now, change, rewrite if can_rebase and is_ours else None
                )
            output = await context.threads.run(_output, target, made)
            await context.host.keep_version(target.path, made.before, made.after_digest)

            async def write() -> None:
                await context.threads.run(disk.replace, target.path, made.after.data, known, context.root)
                context.known_files.note(target.path, made.after_digest, is_ours=True)

            await shielded(write())
        return output

    return Prepared(intent, run)


def read_digested(path: Path) -> tuple[bytes | None, str, os.stat_result | None]:
    """Return the content of a file, its digest, and its identity; None, "", None if it does not exist."""
    content = disk.read(path)
    return (None, "", None) if content is None else (content.data, digest(content.data), content.stat)


def compute_change(target: Target, before: bytes | None, rewrite: Rewrite) -> FileChange:
    after = rewrite(before, target.shown)
    if after.data == before:
        raise ToolFailed(f"{target.shown} already has that content; nothing to change")
    file = decode(before or b"")
    old, new = _BINARY if file is None else file.text, after.text
    encoding = "" if file is None or file.encoding == "utf-8" else file.encoding
    old_endings, new_endings = "none" if old is _BINARY else line_endings(old), line_endings(new)
    # Carriage returns are omitted only if every line has one, before and after. Otherwise the user must see them: after
    # a backslash, one changes what a shell does.
    if old_endings == new_endings == "CRLF":
        old, new = plain_endings(old), plain_endings(new)
    endings = f"{new_endings}" if new_endings in ("CRLF", "mixed") else ""
    if before is not None and old_endings != new_endings and "none" not in (old_endings, new_endings):
        endings = f"{old_endings} -> {new_endings}"
    diff = compare(old, new, target.shown, is_new=before is None)
    if old is _BINARY:
        diff = msgspec.structs.replace(diff, text=diff.text.replace("-(binary data)\0\n", "-(binary data)\n", 1))
    before_digest = "" if before is None else digest(before)
    return FileChange(before, after, diff, endings, encoding, before_digest, digest(after.data))


def _text(data: bytes | None) -> str:
    file = decode(data or b"")
    return _BINARY if file is None else file.text


def _rebased(target: Target, now: bytes | None, shown: FileChange, rewrite: Rewrite | None) -> FileChange:
    """Return the same change to content that is not what the diff was made from. ToolFailed if it is not the same."""
    stale = ToolFailed(f"{target.shown} changed while the approval was pending; view it again")
    if rewrite is None:
        raise stale
    try:
        change = compute_change(target, now, rewrite)
    except ToolFailed as error:
        raise ToolFailed(f"{target.shown} was changed by an earlier call: {error}") from None
    between = compare(plain_endings(_text(shown.before)), plain_endings(_text(now)), "")
    is_alike = (change.endings, change.encoding) == (shown.endings, shown.encoding)
    if not is_alike or not is_the_same(change.diff, shown.diff, between):
        raise stale
    return change


async def shielded(work: Coroutine[Any, Any, None]) -> None:
    """A cancelled call returns only after the file is written and recorded: a thread cannot be stopped half-way."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await wait_uncancelled([task])
        raise


def _intent(names: tuple[str, ...], target: Target, change: FileChange) -> Intent:
    diff, is_new = change.diff, change.before is None
    verb = "Create" if is_new else "Edit" if "edit" in names[0] else "Write"
    is_special = target.is_guarded or target.is_steering or not target.is_inside
    shown = {"path": target.shown, "diff": diff.text, "is_new": is_new}
    if (spelled := visible_diff(diff.text)) != diff.text:
        shown["shown"] = spelled  # for clients that print text unchanged
    endings = ""
    if change.endings:
        shown["line_endings"] = change.endings
        endings = f", line endings: {change.endings}" if is_new or "->" in change.endings else ""
    if change.encoding:
        shown["encoding"] = change.encoding
        endings += f", encoding: {change.encoding}"
    too_large = (
        f"its diff is larger than {DIFF_BYTES_MAX // 1000} kB, the limit of an approval; make it in smaller parts"
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
        unresolved=target.unresolved,
    )


def _output(target: Target, change: FileChange) -> ToolOutput:
    diff = change.diff
    return ToolOutput(
        f"{change.after.summary}\n{_around(change)}".rstrip("\n"),
        {
            "diff": diff.text,
            "additions": diff.additions,
            "deletions": diff.deletions,
            "path": target.subject,
        },
        summary=f"+{diff.additions} -{diff.deletions}",
        written=(WrittenFile(target.path, change.before, change.after.data),),
    )


def _around(change: FileChange) -> str:
    """Return the changed lines and some around them, numbered as in view. Empty for a new file."""
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
