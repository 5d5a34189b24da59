"""The attacks on files, commands and the sandbox, decided in each mode: what must ask or be refused is so in each of
them but yolo, and a deny rule holds in all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kedge.core.approvals import Intent, Rules, parse_rule, parse_rules
from kedge.core.modes import MODES, Mode, permit_in_mode
from kedge.tools.base import Tool, ToolFailed
from kedge.tools.edit import EditTool, MultiEditTool
from kedge.tools.fetch import FetchTool
from kedge.tools.ls import LsTool
from kedge.tools.registry import Toolset, all_tools
from kedge.tools.search import GlobTool, GrepTool
from kedge.tools.shell import BashTool
from kedge.tools.view import ViewTool
from kedge.tools.write import WriteTool
from tests.tools.contexts import make_context, prepare
from tests.tools.test_read_only import lines_of, make_repository
from tests.tools.test_rules import corpus, intent_of

#: Rules that are as wide as a rule for paths can be, and none of them exact.
WIDE = parse_rules(["edit", "edit(**)", "write", "write(**)", "multiedit(**)", "view(*)", "view(**/*.py)", "ls(*)"], [])
#: The decisions that each kind of attack must have. A command of mode auto is confined.
READING: dict[Mode, str] = {"plan": "ask", "ask": "ask", "edits": "ask", "auto": "ask", "yolo": "allow configured"}
CHANGING: dict[Mode, str] = {**READING, "plan": "refuse"}
COMMAND: dict[Mode, str] = {**CHANGING, "auto": "allow workspace"}
OPTIONS: list[tuple[dict[str, Any], dict[Mode, str]]] = [
    ({}, COMMAND),
    ({"background": True, "keep": True}, COMMAND),
    ({"unconfined": "because"}, CHANGING),
]
PASSING: dict[Mode, str] = dict.fromkeys(MODES, "allow read_only")

OUTSIDE = ["../outside", "../outside/secret.txt", "{base}/outside/secret.txt", "/etc/passwd", "link_out/secret.txt"]
OUTSIDE += ["src/../../outside/secret.txt", "link_file", "parent-link/outside/secret.txt", "chain"]
OUTSIDE_NEW = ["../outside/new", "{base}/outside/new", "{root}-evil/new", "/etc/new", "link_out/new", "parent-link/new"]
GUARDED = [".git/hooks/pre-commit", ".GIT/config", "src/.git/hooks/x", "hooks-link/pre-commit", "bare.git/hooks/x"]
GUARDED += [".husky/pre-push", "kedge.toml", "src/KEDGE.TOML", ".envrc", ".vscode/tasks.json", ".bashrc", "own/token"]
GUARDED += ["AGENTS.md", "src/claude.md", ".github/workflows/new.yml", ".venv/bin/activate", ".cargo/config.toml"]
CREDENTIALS = [".env", "src/.ENV.local", "server.pem", "config/credentials.json", "link_env", "src/../.env"]
CREDENTIALS += [".aws/config", ".npmrc", "./.ssh/id_rsa"]
NAMING = ["cat .env", "cat '.e'nv", "cat link_env", "cat ../.ssh/id_rsa", "cat ~/.aws/config", "cp .env x", "x < .env"]
NAMING += ["git show HEAD:.env", "python -c 'print(open(\".env\").read())'", "for f in .env; do cat $f; done"]
NAMING += ["echo x > config/credentials.json", "openssl x509 -in server.pem", "curl --netrc-file=.netrc x", "jq -f.env"]
REFUSED = ["/proc/self/environ", "/proc/1/mem", "proc-link/self/environ", "a\0b", "x" * 5000]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_repository(tmp_path_factory.mktemp("modes"))
    for directory in ("bare.git/objects", "bare.git/refs"):
        (root / directory).mkdir(parents=True)
    (root / "bare.git/HEAD").touch()
    links = {"parent-link": "..", "chain": "link_file", "hooks-link": ".git/hooks", "proc-link": "/proc"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    return root


def decision(mode: Mode, intent: Intent, rules: Rules) -> str:
    permit = permit_in_mode(mode, intent, rules, (), can_confine=True)
    return f"{permit.decision} {permit.confinement}" if permit.decision == "allow" else permit.decision


def assert_decided(intent: Intent, expected: dict[Mode, str], rules: Rules = WIDE) -> None:
    decided = {mode: decision(mode, intent, rules) for mode in MODES}
    assert decided == expected, f"{intent.names[0]} {intent.subject!r}"
    denying = Rules(rules.allow, (parse_rule(intent.names[0]),))
    assert {decision(mode, intent, denying) for mode in MODES} == {"deny"}


def reads(path: str) -> Iterator[tuple[Tool, dict[str, Any]]]:
    yield ViewTool(), {"path": path}
    yield LsTool(), {"path": path}
    yield GlobTool(), {"pattern": "*", "path": path}
    yield GrepTool(), {"pattern": "a", "path": path}


def changes(path: str, own: Path) -> Iterator[tuple[Tool, dict[str, Any]]]:
    yield WriteTool((own,)), {"path": path, "content": "changed\n"}
    yield EditTool((own,)), {"path": path, "old_string": "", "new_string": "changed\n"}
    yield MultiEditTool((own,)), {"path": path, "edits": [{"old_string": "", "new_string": "changed\n"}]}


@pytest.mark.parametrize("path", OUTSIDE)
async def test_reading_outside_asks_in_every_mode(root: Path, path: str) -> None:
    for tool, arguments in reads(path.format(base=root.parent)):
        assert_decided((await prepare(tool, make_context(root), **arguments)).intent, READING)


@pytest.mark.parametrize("path", OUTSIDE_NEW)
async def test_writing_outside_asks_in_every_mode(root: Path, path: str) -> None:
    for tool, arguments in changes(path.format(base=root.parent, root=root), root / "own"):
        assert_decided((await prepare(tool, make_context(root), **arguments)).intent, CHANGING)


@pytest.mark.parametrize("path", GUARDED)
async def test_guarded_files_ask_in_every_mode(root: Path, path: str) -> None:
    for tool, arguments in changes(path, root / "own"):
        assert_decided((await prepare(tool, make_context(root), **arguments)).intent, CHANGING)


@pytest.mark.found("audit of issue 20", "view read `.env` unasked, and mode edits changed it; credentials ask")
@pytest.mark.parametrize("path", CREDENTIALS)
async def test_credentials_ask_in_every_mode(root: Path, path: str) -> None:
    for tool, arguments in reads(path):
        assert_decided((await prepare(tool, make_context(root), **arguments)).intent, READING)
    for tool, arguments in changes(path, root / "own"):
        if not (root / path).exists():
            assert_decided((await prepare(tool, make_context(root), **arguments)).intent, CHANGING)


@pytest.mark.parametrize("path", REFUSED)
async def test_invalid_paths_are_refused_before_a_decision(root: Path, path: str) -> None:
    for tool, arguments in (*reads(path), *changes(path, root / "own")):
        with pytest.raises(ToolFailed):
            await prepare(tool, make_context(root), **arguments)


async def test_fetch_asks_in_every_mode(root: Path) -> None:
    for url in ("https://example.org/", "http://169.254.169.254/", "http://[::1]/"):
        assert_decided((await prepare(FetchTool(), make_context(root), url=url)).intent, READING)


async def test_commands_ask_are_confined_or_refused_in_every_mode(root: Path) -> None:
    """Of each tenth line: alone, kept, and with the request to leave the sandbox, which mode auto does not grant."""
    for line in lines_of("lines_that_ask.txt")[::10]:
        for options, expected in OPTIONS:
            intent = (await prepare(BashTool(), make_context(root), command=line, **options)).intent
            assert_decided(intent, CHANGING if intent.exact_only else expected)


@pytest.mark.found("audit of issue 20", "mode auto and wildcard rules read named credentials unasked; they ask")
@pytest.mark.parametrize("line", NAMING)
async def test_lines_that_name_credentials_ask(root: Path, line: str) -> None:
    intent = (await prepare(BashTool(), make_context(root), command=line)).intent
    rules = parse_rules(["bash(cat *)", "bash(git *)", "bash(cp *)", "bash(jq *)"], ())
    assert_decided(intent, CHANGING, rules)
    assert permit_in_mode("auto", intent, rules, (), can_confine=True).confinement == "workspace"
    assert not any("*" in rule for offer in intent.offers for rule in offer)


async def test_names_in_code_are_no_credentials(root: Path) -> None:
    for line in ("python -c 'print(config.key, a.pem)'", "cat .env.example > x", "make env"):
        assert_decided((await prepare(BashTool(), make_context(root), command=line)).intent, COMMAND)


async def test_read_only_lines_stay_confined_in_every_mode(root: Path) -> None:
    for line in ("cat a.txt", "ls | head", "cd src && ls"):
        assert_decided((await prepare(BashTool(), make_context(root), command=line)).intent, PASSING)


def test_no_trick_passes_unconfined_in_any_mode() -> None:
    """The corpus of tricks, each under the rules that it tries to extend."""
    for rules, command in corpus("corpus_must_ask.txt"):
        assert_decided(intent_of(command), COMMAND, parse_rules(rules, ()))


def test_denied_commands_are_denied_in_every_mode() -> None:
    for rules, command in corpus("corpus_denied.txt"):
        intent, denying = intent_of(command), parse_rules(("bash", "*"), rules)
        assert {decision(mode, intent, denying) for mode in MODES} == {"deny"}, command


def test_agents_without_tools_of_their_own_change_nothing() -> None:
    offered = Toolset(all_tools()).offered_to_child(None)
    assert offered
    assert all(tool.read_only for tool in offered)
