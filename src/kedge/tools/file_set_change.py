"""A change of several files at once: one diff, one approval, and nothing is written if one of them has changed."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec import Struct

from kedge.core.approvals import Intent
from kedge.core.untrusted_text import visible_diff
from kedge.tools import disk
from kedge.tools.base import Prepared, ToolContext, ToolFailed, ToolOutput, WrittenFile, count_of
from kedge.tools.diff import DIFF_BYTES_MAX
from kedge.tools.file_change import FileChange, read_digested, shielded
from kedge.tools.known_files import bind
from kedge.tools.workspace_paths import Target


class SetChange(Struct, frozen=True):
    target: Target
    change: FileChange


def prepare_set_change(
    names: tuple[str, ...], title: str, changes: tuple[SetChange, ...], context: ToolContext
) -> Prepared:
    """`title`: "Rename a to b". The changes are sorted by path and not empty; their files exist."""

    async def run() -> ToolOutput:
        async with AsyncExitStack() as locks:
            for each in changes:
                await locks.enter_async_context(context.known_files.lock(each.target.path))
            known = [(await context.threads.run(read_digested, each.target.path)) for each in changes]
            for each, (_, digest, _) in zip(changes, known, strict=True):
                if digest != each.change.before_digest:
                    raise ToolFailed(f"{each.target.shown} has changed meanwhile; nothing was written")
            for each in changes:
                await context.host.keep_version(each.target.path, each.change.before, each.change.after_digest)

            async def write() -> None:
                for done, (each, (_, _, status)) in enumerate(zip(changes, known, strict=True)):
                    path, change = each.target.path, each.change
                    try:
                        await context.threads.run(disk.replace, path, change.after.data, status, context.root)
                    except ToolFailed as error:
                        rest = f"; {done} of {len(changes)} files were written" if done else "; nothing was written"
                        raise ToolFailed(f"{error}{rest}") from None
                    if context.known_files.knows(path, change.before_digest):
                        context.known_files.note(path, change.after_digest, is_ours=True)

            await shielded(write())
        return _output(title, changes)

    return Prepared(_intent(names, title, changes), run)


def _intent(names: tuple[str, ...], title: str, changes: tuple[SetChange, ...]) -> Intent:
    first = changes[0].target
    diff = _diff(changes)
    is_special = any(each.target.is_guarded or each.target.is_steering or not each.target.is_inside for each in changes)
    shown: dict[str, object] = {"path": first.shown, "files": [each.target.shown for each in changes], "diff": diff}
    if (spelled := visible_diff(diff)) != diff:
        shown["shown"] = spelled
    if endings := sorted({each.change.endings for each in changes if each.change.endings}):
        shown["line_endings"] = ", ".join(endings)
    if encodings := sorted({each.change.encoding for each in changes if each.change.encoding}):
        shown["encoding"] = ", ".join(encodings)
    is_whole = len(diff.encode("utf-8", "replace")) <= DIFF_BYTES_MAX and all(
        each.change.diff.is_whole for each in changes
    )
    too_large = f"its diff is larger than {DIFF_BYTES_MAX // 1000} kB, the limit of an approval"
    return Intent(
        names=names,
        action="write",
        subject=first.subject,
        description=f"{title} in {count_of(len(changes), 'file')} ({_amount(changes)})",
        path=str(first.path),
        params=json.dumps(shown, ensure_ascii=False),
        binding=bind(
            "write",
            *(
                part
                for each in changes
                for part in (str(each.target.path), each.change.before_digest, each.change.after_digest)
            ),
        ),
        exact_only=is_special,
        grant="" if is_special else "edit(**)",
        unshown="" if is_whole else too_large,
        also=tuple(
            name
            for each in changes
            for name in (each.target.subject, each.target.unresolved)
            if name and each.target is not first
        ),
        unresolved=first.unresolved,
    )


def _output(title: str, changes: tuple[SetChange, ...]) -> ToolOutput:
    lines = [f"{each.target.shown}: +{each.change.diff.additions} -{each.change.diff.deletions}" for each in changes]
    return ToolOutput(
        "\n".join([f"{title}: {count_of(len(changes), 'file')} changed.", *lines]),
        {
            "diff": _diff(changes)[:DIFF_BYTES_MAX],
            "additions": sum(each.change.diff.additions for each in changes),
            "deletions": sum(each.change.diff.deletions for each in changes),
            "paths": [each.target.subject for each in changes],
        },
        summary=_amount(changes),
        written=tuple(_written(each.target.path, each.change) for each in changes),
    )


def _written(path: Path, change: FileChange) -> WrittenFile:
    return WrittenFile(path, change.before, change.after.data)


def _diff(changes: tuple[SetChange, ...]) -> str:
    return "".join(each.change.diff.text for each in changes)


def _amount(changes: tuple[SetChange, ...]) -> str:
    additions = sum(each.change.diff.additions for each in changes)
    return f"+{additions} -{sum(each.change.diff.deletions for each in changes)}"
