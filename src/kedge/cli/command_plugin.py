"""`kedge plugin`: add, list and remove plugins. No server is needed: servers read the plugins when a Run starts."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from kedge.cli.config_files import plugin_store
from kedge.cli.exit_codes import EXIT_FAILED
from kedge.cli.options import examples, json_option
from kedge.cli.printing import print_json, print_table
from kedge.cli.workspace_lookup import print_config_problem
from kedge.client.safe_text import one_line
from kedge.config.plugins import PluginItem, contents_of, plugin_of, read_tree, write_tree
from kedge.core.untrusted_text import visible
from kedge.errors import Invalid

#: A clone of the newest commit. Seconds.
CLONE_S_MAX = 300.0
#: Length of a command in the list of a plugin's parts: all of it, unless it is meant to hide something. Characters.
COMMAND_CHARS_MAX = 2000
_ADDRESS = re.compile(r"(https|ssh|git|file)://.+|[\w.-]+@[\w.-]+:.+")


@click.group(epilog=examples("kedge plugin add ./my-plugin", "kedge plugin list", "kedge plugin remove my-plugin"))
def plugin() -> None:
    """Add, list and remove plugins: bundles of skills, commands, agents, hooks and servers."""
    print_config_problem()


@plugin.command(epilog=examples("kedge plugin add ./my-plugin", "kedge plugin add https://git.example.org/team/plugin"))
@click.argument("source", metavar="PATH|GIT-URL")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def add(source: str, yes: bool) -> int:
    """Add a plugin from a directory or a git repository, or replace it by a newer version.

    Shows what it brings, and asks. Its files are copied and pinned: later changes of the source have no effect."""
    if _ADDRESS.fullmatch(source):
        with tempfile.TemporaryDirectory(prefix="kedge-plugin-") as directory:
            _clone(source, Path(directory) / "plugin")
            return _add(Path(directory) / "plugin", source, source.rstrip("/").rpartition("/")[2], yes)
    directory_path = Path(source).expanduser().resolve()
    if not directory_path.is_dir():
        raise Invalid(f"{source} is not a directory or the address of a git repository.")
    return _add(directory_path, str(directory_path), directory_path.name, yes)


def _add(directory: Path, source: str, name: str, yes: bool) -> int:
    try:
        tree = read_tree(directory)
        new = plugin_of(tree, source, name.removesuffix(".git"))
        with tempfile.TemporaryDirectory(prefix="kedge-plugin-") as copy:  # what is shown is what is stored
            write_tree(tree, Path(copy))
            contents = contents_of(tree, Path(copy))
    except OSError as error:
        raise Invalid(f"{error.filename or directory} cannot be read: {error.strerror}.") from None
    version = f" {new.version}" if new.version else ""
    click.echo(f"{visible(f'{new.name}{version}: {new.description or source}', keep='')}\n")
    _print_items(contents.items)
    click.echo(f"\n{len(tree)} files, digest {new.digest[:16]}")
    if not yes and not _confirmed():
        click.echo("nothing was added")
        return EXIT_FAILED
    try:
        plugin_store().add(new, tree)
    except OSError as error:
        raise Invalid(f"The plugin could not be stored: {error.strerror}.") from None
    click.echo(f"added: {new.name}")
    return 0


def _print_items(items: Iterable[PluginItem]) -> None:
    for item in items:
        command = f"  $ {item.command[:COMMAND_CHARS_MAX]}" if item.command else ""
        problem = f"  (not used: {item.problem})" if item.problem else ""
        lines = [f"  {item.kind:8} {item.name}{command}{problem}"]
        lines += [f"           {name}: {value}" for name, value in item.rights]
        lines += [f"           warning: {item.warning}"] if item.warning else []
        for line in lines:
            click.echo(visible(line, keep=""))


def _confirmed() -> bool:
    if not os.isatty(0):
        raise click.UsageError("There is no terminal to confirm on. Read the list above, then use --yes")
    return click.confirm(
        "Its hooks and servers run programs, and its rules allow calls without a question. Add it?", default=False
    )


def _clone(address: str, target: Path) -> None:
    """Clone the newest commit. Nothing of the repository runs: a clone has no hooks of its own, and no submodules."""
    argv = ["git", "clone", "--quiet", "--depth", "1", "--no-recurse-submodules", "--", address, str(target)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=CLONE_S_MAX, check=False)
    except FileNotFoundError:
        raise Invalid("git is not installed. Clone the repository yourself, then add its directory.") from None
    except subprocess.TimeoutExpired:
        raise Invalid(f"git did not finish within {CLONE_S_MAX:g} s.") from None
    if done.returncode != 0:
        raise Invalid(f"git cannot clone {address}: {one_line(done.stderr, 300) or f'exit {done.returncode}'}")


@plugin.command(name="list")
@json_option
def list_(as_json: bool) -> int:
    """List the plugins, with what they bring."""
    installed = plugin_store().installed()
    if as_json:
        print_json(
            [
                {
                    **_fields(one.plugin),
                    "path": str(one.path),
                    "problem": one.problem,
                    "items": msgspec.to_builtins(one.contents.items),
                }
                for one in installed
            ]
        )
    elif not installed:
        click.echo("no plugins")
    else:
        rows = [
            (one.plugin.name, one.plugin.version or "-", one.problem or "ok", one.plugin.digest[:16], one.plugin.source)
            for one in installed
        ]
        print_table(("NAME", "VERSION", "STATE", "DIGEST", "SOURCE"), [tuple(map(visible, row)) for row in rows])
        for one in installed:
            if one.contents.items:
                click.echo(f"\n{one.plugin.name}:")
                _print_items(one.contents.items)
    return EXIT_FAILED if any(one.problem for one in installed) else 0


def _fields(one: object) -> dict[str, object]:
    return {name: getattr(one, name) for name in ("name", "version", "description", "digest", "source")}


@plugin.command(epilog=examples("kedge plugin remove my-plugin"))
@click.argument("name")
def remove(name: str) -> int:
    """Remove a plugin with all its files."""
    if not plugin_store().remove(name):
        raise Invalid(f"There is no plugin {name!r}. List them with: kedge plugin list")
    click.echo(f"removed: {visible(name, keep='')}")
    return 0
