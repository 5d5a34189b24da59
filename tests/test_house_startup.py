"""Start-up budgets: the modules that each kind of process loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.source import SRC, package_of


def test_kedge_run_imports_only_what_a_client_needs(tmp_path: Path) -> None:
    """Start a real `kedge run` and list the modules it has loaded at its end."""
    (tmp_path / "config.toml").write_text("[server]\nidle_exit_s = 1.0\n")
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "KEDGE_DATA_DIR": str(tmp_path / "data"),
        "KEDGE_CONFIG": str(tmp_path / "config.toml"),
        "PYTHONPATH": str(SRC),
    }
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('LOADED', *sorted(sys.modules), file=sys.stderr))\n"
        "from kedge.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "--cwd", str(tmp_path), "list the files"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    loaded = set(done.stderr.rpartition("LOADED ")[2].split())
    ours = {package_of(name) for name in loaded if name.startswith("kedge")}
    assert ours <= {
        "kedge",
        "__main__",
        "cli",
        "client",
        "wire",
        "core",
        "errors",
        "paths",
        "waiting",
        "disk_space",
        "process_identity",
        "struct_types",
    }
    third_party = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {"kedge"}
    heavy = {
        "uvicorn",
        "uvloop",
        "apsw",
        "pydantic",
        "pydantic_ai",
        "mcp",
        "textual",
        "rich",
        "anthropic",
        "openai",
    } | {"pygls"}
    assert third_party & heavy == set()
    assert {name for name in third_party if not name.startswith("_")} <= {
        "anyio",
        "apport_python_hook",
        "certifi",
        "click",
        "h11",
        "httpcore2",
        "httpx2",
        "idna",
        "msgspec",
        "sitecustomize",
        "sniffio",
        "truststore",
        "typing_extensions",
        "usercustomize",
    }


def test_terminal_loads_no_server_module() -> None:
    program = "import sys, kedge.cli.command_tui, kedge.tui.app\nprint(*sys.modules)"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    ours = {package_of(name) for name in loaded if name.startswith("kedge")}
    assert ours <= {
        "kedge",
        "cli",
        "client",
        "wire",
        "core",
        "tui",
        "errors",
        "paths",
        "programs",
        "qr_code",
        "waiting",
        "disk_space",
        "process_identity",
        "struct_types",
    }
    third_party = {name.split(".")[0] for name in loaded}
    assert (
        third_party & {"segno", "uvicorn", "uvloop", "apsw", "pydantic", "pydantic_ai", "mcp", "anthropic", "openai"}
        == set()
    )


def test_unused_extensions_load_no_library(tmp_path: Path) -> None:
    """Read the extensions of a workspace with nothing configured, and with some of each kind that are not used."""
    skill = tmp_path / ".kedge" / "skills" / "s" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\ndescription: Helps.\n---\nDo it.")
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "import kedge.server.startup\n"
        "from kedge.config.load import to_config\n"
        "from kedge.config.schema import Config\n"
        "from kedge.config.trust import TrustList\n"
        "from kedge.extensions.part import ExtensionHost\n"
        "from kedge.extensions.workspace_extensions import WorkspaceExtensions\n"
        "from kedge.tools.file_threads import FileThreads\n"
        "path = Path(sys.argv[1])\n"
        "empty = path / 'empty'\n"
        "empty.mkdir()\n"
        "def extensions_of(root):\n"
        "    host = ExtensionHost(root, FileThreads(''), None, print, root, root, TrustList())\n"
        "    return WorkspaceExtensions(host)\n"
        "nothing = extensions_of(empty)\n"
        "asyncio.run(nothing.refresh(Config()))\n"
        "assert nothing.tools() == ()\n"
        "some = {\n"
        "    'mcp': {'x': {'command': 'x'}},\n"
        "    'hooks': {'PreToolUse': [{'command': 'x'}]},\n"
        "    'lsp': {'enabled': True, 'servers': {'x': {'command': sys.executable, 'extensions': ['.x']}}},\n"
        "}\n"
        "extensions = extensions_of(path)\n"
        "asyncio.run(extensions.refresh(to_config(some, path)))\n"
        "assert {'mcp_tools', 'skill'} <= {tool.name for tool in extensions.tools()}\n"
        "assert {'mcp', 'hook', 'lsp', 'skill'} <= {state.kind for state in extensions.states()}\n"
        "assert not extensions.has_processes\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=50, check=True
    )
    libraries = {
        "mcp",
        "mcp_types",
        "pydantic",
        "pydantic_core",
        "pygls",
        "lsprotocol",
        "cattrs",
        "httpx2",
        "jsonschema",
    }
    assert set(done.stdout.split()) & libraries == set()


def test_native_models_load_no_provider_library() -> None:
    """Import a server with both native formats: libraries of other providers load only if one is configured."""
    program = (
        "import sys\n"
        "import kedge.server.startup, kedge.llm.openai, kedge.llm.anthropic, kedge.llm.catalogue\n"
        "kedge.llm.catalogue.facts('openai', 'gpt-5-mini')\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    heavy = {"pydantic", "pydantic_ai", "openai", "anthropic", "google", "boto3", "botocore", "mistralai", "cohere"}
    heavy |= {
        "groq",
        "genai_prices",
        "xllamacpp",
        "bs4",
        "markdownify",
        "tree_sitter",
        "keyring",
        "pygls",
        "lsprotocol",
        "cattrs",
    }
    assert set(done.stdout.split()) & heavy == set()


def test_server_without_postgresql_loads_no_driver() -> None:
    program = "import sys, kedge.server.startup\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert "asyncpg" not in done.stdout.split()
