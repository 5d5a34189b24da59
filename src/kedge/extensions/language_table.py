"""The language servers that kedge knows, and those of a workspace: which programs serve which files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kedge.config.schema import LspConfig
from kedge.programs import is_outside, program_outside
from kedge.tools.file_threads import checkpoint

#: Limits of the search for the languages of a workspace: entries of directories, and their depth. Items.
SCANNED_ENTRIES_MAX = 3000
SCANNED_DEPTH_MAX = 4
#: Directories with files of others.
_SKIPPED = frozenset({"node_modules", "target", "build", "dist", "vendor", "venv", "site-packages", "__pycache__"})

#: File extension -> the identifier of its language in the protocol.
LANGUAGE_IDS = {
    **dict.fromkeys((".py", ".pyi"), "python"),
    **dict.fromkeys((".ts", ".mts", ".cts"), "typescript"),
    ".tsx": "typescriptreact",
    **dict.fromkeys((".js", ".mjs", ".cjs"), "javascript"),
    ".jsx": "javascriptreact",
    ".go": "go",
    ".rs": "rust",
    **dict.fromkeys((".c", ".h"), "c"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx"), "cpp"),
    ".java": "java",
    **dict.fromkeys((".kt", ".kts"), "kotlin"),
    ".rb": "ruby",
    ".php": "php",
    ".cs": "csharp",
    ".swift": "swift",
    ".lua": "lua",
    ".zig": "zig",
    ".dart": "dart",
    ".hs": "haskell",
    **dict.fromkeys((".ml", ".mli"), "ocaml"),
    **dict.fromkeys((".ex", ".exs"), "elixir"),
    ".tf": "terraform",
}


class KnownServer(Struct, frozen=True):
    name: str
    command: str
    args: tuple[str, ...]
    #: The languages it serves, as in LANGUAGE_IDS.
    languages: tuple[str, ...]
    #: How to install it.
    install: str


_TYPESCRIPT = ("typescript", "typescriptreact", "javascript", "javascriptreact")
#: Of several servers for a language, the first that is installed is used.
KNOWN_SERVERS = (
    KnownServer("basedpyright", "basedpyright-langserver", ("--stdio",), ("python",), "pip install basedpyright"),
    KnownServer("pyright", "pyright-langserver", ("--stdio",), ("python",), "npm install -g pyright"),
    KnownServer("pylsp", "pylsp", (), ("python",), "pip install python-lsp-server"),
    KnownServer(
        "typescript",
        "typescript-language-server",
        ("--stdio",),
        _TYPESCRIPT,
        "npm install -g typescript-language-server typescript",
    ),
    KnownServer("gopls", "gopls", (), ("go",), "go install golang.org/x/tools/gopls@latest"),
    KnownServer("rust-analyzer", "rust-analyzer", (), ("rust",), "rustup component add rust-analyzer"),
    KnownServer("clangd", "clangd", (), ("c", "cpp"), "your package manager: clangd"),
    KnownServer("jdtls", "jdtls", (), ("java",), "your package manager: jdtls"),
    KnownServer("kotlin", "kotlin-language-server", (), ("kotlin",), "your package manager: kotlin-language-server"),
    KnownServer("ruby-lsp", "ruby-lsp", (), ("ruby",), "gem install ruby-lsp"),
    KnownServer("intelephense", "intelephense", ("--stdio",), ("php",), "npm install -g intelephense"),
    KnownServer("csharp-ls", "csharp-ls", (), ("csharp",), "dotnet tool install -g csharp-ls"),
    KnownServer("sourcekit", "sourcekit-lsp", (), ("swift",), "the Swift toolchain"),
    KnownServer("lua", "lua-language-server", (), ("lua",), "your package manager: lua-language-server"),
    KnownServer("zls", "zls", (), ("zig",), "your package manager: zls"),
    KnownServer("dart", "dart", ("language-server",), ("dart",), "the Dart SDK"),
    KnownServer("haskell", "haskell-language-server-wrapper", ("--lsp",), ("haskell",), "ghcup install hls"),
    KnownServer("ocamllsp", "ocamllsp", (), ("ocaml",), "opam install ocaml-lsp-server"),
    KnownServer("elixir-ls", "elixir-ls", (), ("elixir",), "your package manager: elixir-ls"),
    KnownServer("terraform", "terraform-ls", ("serve",), ("terraform",), "your package manager: terraform-ls"),
)


class FoundServer(Struct, frozen=True):
    """A language server of a workspace: to be started, or with the reason why it cannot be."""

    name: str
    suffixes: tuple[str, ...]
    languages: tuple[str, ...]
    #: Empty: it cannot be started.
    argv: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    is_disabled: bool = False
    #: One line: what is missing, and what to do.
    error: str = ""
    #: As that of its settings.
    source: str = ""


def find_servers(config: LspConfig, path: str, root: Path) -> tuple[FoundServer, ...]:
    """Return the servers that are configured or installed, in order of preference. `path`: the PATH. Blocking."""
    known = {server.name: server for server in KNOWN_SERVERS}
    servers = [_configured(name, config, known.get(name), path, root) for name in config.servers]
    for server in KNOWN_SERVERS:
        checkpoint()
        if server.name not in config.servers and (program := program_outside(server.command, path, root)):
            argv = (program, *server.args)
            servers.append(FoundServer(server.name, _suffixes(server.languages), server.languages, argv))
    return tuple(servers)


def _configured(name: str, config: LspConfig, known: KnownServer | None, path: str, root: Path) -> FoundServer:
    entry = config.servers[name]
    command = entry.command or (known.command if known else "")
    args = tuple(entry.args) or (known.args if known and not entry.command else ())
    suffixes = tuple(entry.extensions) or (_suffixes(known.languages) if known else ())
    languages = tuple(dict.fromkeys(LANGUAGE_IDS.get(suffix, suffix.lstrip(".")) for suffix in suffixes))
    server = FoundServer(name, suffixes, languages, source=entry.source)
    if entry.disabled:
        return replace(server, is_disabled=True)
    if not command or not suffixes:
        return replace(server, error=f"set command and extensions in [lsp.servers.{name}]")
    if os.path.isabs(command):
        program = command if os.access(command, os.X_OK) and is_outside(command, root) else None
    else:
        program = program_outside(command, path, root) if "/" not in command else None
    if program is None:
        return replace(server, error=f"{command} was not found in PATH outside of the workspace")
    return replace(server, argv=(program, *args), options=entry.options)


def _suffixes(languages: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(suffix for suffix, language in LANGUAGE_IDS.items() if language in languages)


def missing_servers(seen: frozenset[str], servers: tuple[FoundServer, ...]) -> Iterator[FoundServer]:
    """Yield an entry for each language that was seen and has no server: what to install."""
    covered = {suffix for server in servers for suffix in server.suffixes}
    for known in KNOWN_SERVERS:
        suffixes = _suffixes(known.languages)
        if not seen.isdisjoint(suffixes) and covered.isdisjoint(suffixes):
            covered.update(suffixes)
            yield FoundServer(known.name, suffixes, known.languages, error=f"not installed; {known.install}")


def suffixes_in(root: Path) -> frozenset[str]:
    """Return the file extensions in the upper part of a workspace that belong to a language. Blocking."""
    seen: set[str] = set()
    directories, left = [(str(root), 0)], SCANNED_ENTRIES_MAX
    for directory, depth in directories:  # grows: breadth first
        checkpoint()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if (left := left - 1) < 0:
                        return frozenset(seen)
                    suffix = os.path.splitext(entry.name)[1]
                    if suffix in LANGUAGE_IDS:
                        seen.add(suffix)
                    elif depth < SCANNED_DEPTH_MAX and _is_searched(entry):
                        directories.append((entry.path, depth + 1))
        except OSError:
            continue
    return frozenset(seen)


def _is_searched(entry: os.DirEntry[str]) -> bool:
    is_skipped = entry.name in _SKIPPED or entry.name.startswith(".")
    return not is_skipped and entry.is_dir(follow_symlinks=False)
