"""The offline model with real tools in a real directory; approvals are answered by the test."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kedge.core.transcript import Message, ShellCommand, ToolCall, ToolResult
from kedge.llm.base import ModelEnd, ModelRequest, TextDelta, ToolSpec
from kedge.llm.offline import (
    ABOUT,
    EXAMPLE_CONFIG,
    EXAMPLES,
    FOOTER,
    LINES_MAX,
    PIECES_MAX,
    REQUEST_CHARS_MAX,
    OfflineModel,
    pieces,
    understand,
)
from kedge.tools.base import Tool, ToolContext, ToolFailed, ToolOutput
from kedge.tools.registry import Toolset, all_tools
from tests.llm.support import end_of, message, parts_of, text_of
from tests.tools.contexts import make_context

#: More Steps than any request takes.
CALLS_MAX = 5
DENIED = ToolOutput("Not done: the user denied it.", {"denied": True}, is_error=True)
FORBIDDEN = ToolOutput("Not allowed: the rule deny bash.", is_error=True)


class Conversation:
    """One Run: each tool call of the model is executed, or answered with the result in `instead`."""

    def __init__(self, root: Path, instead: dict[str, ToolOutput] | None = None, tools: tuple[Tool, ...] | None = None):
        self.tools = {tool.name: tool for tool in (all_tools() if tools is None else tools)}
        self.context: ToolContext = make_context(root)
        self.instead = instead or {}
        self.messages: list[Message] = []
        #: The calls of each Step.
        self.steps: list[list[tuple[str, Any]]] = []

    async def ask(self, prompt: str) -> str:
        """Return the answer without the footer."""
        self.messages.append(message("user", prompt))
        specs = tuple(ToolSpec(name, "", "{}") for name in self.tools)
        for _ in range(CALLS_MAX + 1):
            request = ModelRequest("offline", tuple(self.messages), tools=specs, workspace=str(self.context.root))
            parts = await parts_of(OfflineModel(piece_s=0), request)
            end = end_of(parts)
            if not end.tool_calls:
                assert end.reason == "end_turn"
                return text_of(parts).removesuffix(f"\n\n{FOOTER}")
            assert (end.reason, text_of(parts)) == ("tool_use", "")
            self.messages.append(message("assistant", *end.tool_calls))
            self.steps.append([(call.name, json.loads(call.input)) for call in end.tool_calls])
            for call in end.tool_calls:
                self.messages.append(message("tool", await self._result(call)))
        raise AssertionError("the model does not end")

    async def _result(self, call: ToolCall) -> ToolResult:
        output = self.instead.get(call.name) or await self._execute(call)
        metadata = msgspec.json.encode(output.metadata).decode() if output.metadata else ""
        return ToolResult(call.id, call.name, output.content, metadata, output.is_error)

    async def _execute(self, call: ToolCall) -> ToolOutput:
        tool = self.tools[call.name]
        try:
            return await (await tool.prepare(Toolset().decoded(tool, call.input), self.context)).run()
        except ToolFailed as failed:
            return ToolOutput(str(failed), is_error=True)

    @property
    def used(self) -> list[list[str]]:
        return [[name for name, _ in step] for step in self.steps]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print('hi')  # TODO: more\n")
    (root / "README.md").write_text("<p>logo</p>\n\n# Anchors & more\n\nText.\n")
    (root / "Makefile").write_text("all:\n")
    (root / "with blank.txt").write_text("found it")
    (root / "data.bin").write_bytes(b"\x00\x01\x02" * 1000)
    return root


@pytest.fixture
def conversation(project: Path) -> Conversation:
    return Conversation(project)


class TestListing:
    @pytest.mark.parametrize(
        "prompt",
        [
            "What is in this directory?",
            "list",
            "ls",
            "ls .",
            "list files",
            "List the files.",
        ],
    )
    async def test_list_directory(self, conversation: Conversation, prompt: str) -> None:
        assert await conversation.ask(prompt) == (
            "This directory contains 4 files and 1 folder.\n"
            "\n"
            "```\n"
            "  src/ (1 file)\n"
            "  Makefile\n"
            "  README.md\n"
            "  data.bin\n"
            "  with blank.txt\n"
            "```"
        )
        assert conversation.used == [["ls"]]

    @pytest.mark.parametrize("prompt", ["ls src", "list src", "what is in src/?", "What is in 'src'?"])
    async def test_list_named_folder(self, conversation: Conversation, prompt: str) -> None:
        assert await conversation.ask(prompt) == "src/ contains 1 file and no folders.\n\n```\n  main.py\n```"
        assert conversation.used == [["ls"]]

    async def test_large_folder_is_cut(self, conversation: Conversation, project: Path) -> None:
        for count in range(LINES_MAX + 20):
            (project / "src" / f"f{count:03}").touch()
        text = await conversation.ask("what is in src/")
        assert text.startswith(f"src/ contains {LINES_MAX + 21} files and no folders.")
        assert text.endswith("  f059\n... (21 more lines)\n```")


class TestReading:
    @pytest.mark.parametrize(
        ("prompt", "answer"),
        [
            ("Read README.md", "README.md contains:\n\n```\n<p>logo</p>\n\n# Anchors & more\n\nText.\n```"),
            ("show 'with blank.txt'", "with blank.txt contains:\n\n```\nfound it\n```"),
            ("read Makefile", "Makefile contains:\n\n```\nall:\n```"),
            ("show data.bin", "data.bin is not text:"),
            ("show nothing.txt", "That did not work: nothing.txt does not exist"),
        ],
    )
    async def test_read_file(self, conversation: Conversation, prompt: str, answer: str) -> None:
        assert (await conversation.ask(prompt)).startswith(answer)

    async def test_no_line_of_a_file_ends_its_block(self, conversation: Conversation, project: Path) -> None:
        (project / "fences.md").write_text("```python\nx\n````\n")
        text = await conversation.ask("show fences.md")
        assert text == "fences.md contains:\n\n`````\n```python\nx\n````\n`````"

    async def test_long_file_is_cut(self, conversation: Conversation, project: Path) -> None:
        (project / "long.txt").write_text("".join(f"line {count}\n" for count in range(10_000)))
        (project / "wide.txt").write_text("é" * 5000)
        text = await conversation.ask("show long.txt")
        assert text.startswith("long.txt has 10000 lines. The first 60:\n\n```\nline 0\n")
        assert text.endswith("line 59\n```")
        assert len(await conversation.ask("show wide.txt")) < 400

    async def test_answers_contain_no_escape_codes(self, conversation: Conversation, project: Path) -> None:
        (project / "a\x1b[31m\nb.txt").write_text("x")
        (project / "evil.md").write_text("red \x1b[31m text\nnext\x9b line \u202e")
        os.close(os.open(os.fsencode(project) + b"/bad\xff", os.O_CREAT | os.O_WRONLY))
        text = (
            await conversation.ask("list files")
            + await conversation.ask("show evil.md")
            + await conversation.ask("find red")
        )
        assert "red \\u{1b}[31m text\nnext\\u{9b} line \\u{202e}" in text
        assert not {"\x1b", "\x9b", "\u202e"} & set(text)
        text.encode()


class TestFinding:
    @pytest.mark.parametrize(
        "prompt",
        [
            "find todo",
            "Find TODO",
            "find 'TODO:'",
            "find TODO in src",
            "find todo in .",
        ],
    )
    async def test_find_text(self, conversation: Conversation, prompt: str) -> None:
        text = await conversation.ask(prompt)
        assert text.partition(" occurs on ")[2] == (
            "1 line in 1 file:\n\n```\nsrc/main.py\n     1: print('hi')  # TODO: more\n```"
        )
        assert conversation.used == [["grep"]]

    async def test_text_not_found(self, conversation: Conversation) -> None:
        assert await conversation.ask("find (a[b") == '"(a[b" occurs on no lines in no files:\n\nNo matches.'
        assert await conversation.ask("find x in nowhere") == "That did not work: nowhere does not exist"


class TestRunning:
    @pytest.mark.parametrize(
        ("prompt", "command"),
        [
            ("run `echo hi`", "echo hi"),
            ("Run echo hi", "echo hi"),
            ("run 'echo hi'", "echo hi"),
        ],
    )
    async def test_run_command(self, conversation: Conversation, prompt: str, command: str) -> None:
        assert await conversation.ask(prompt) == f"`{command}` ended with exit code 0:\n\n```\nhi\n```"
        assert conversation.steps == [[("bash", {"command": command, "timeout_s": 600})]]

    async def test_command_is_taken_verbatim(self, conversation: Conversation) -> None:
        assert (
            await conversation.ask("run echo 'a  b' .") == "`echo 'a  b' .` ended with exit code 0:\n\n```\na  b .\n```"
        )

    async def test_exit_code_and_end_of_output(self, conversation: Conversation) -> None:
        assert (
            await conversation.ask("run echo oops; exit 3")
            == "`echo oops; exit 3` ended with exit code 3:\n\n```\noops\n```"
        )
        assert await conversation.ask("run true") == "`true` ended with exit code 0:\n\n```\n(no output)\n```"
        assert (await conversation.ask("run kill -9 $$")).startswith("`kill -9 $$` ended with exit code -9:")
        text = await conversation.ask("run seq 100")
        assert text.startswith("`seq 100` ended with exit code 0:\n\n```\n... (40 more lines)\n41\n")
        assert text.endswith("\n100\n```")

    async def test_denial_and_rule(self, project: Path) -> None:
        denied = await Conversation(project, {"bash": DENIED}).ask("run rm -r src")
        assert denied == "You denied the request, so nothing was done."
        forbidden = await Conversation(project, {"bash": FORBIDDEN}).ask("run rm -r src")
        assert forbidden == "That did not work: Not allowed: the rule deny bash."

    async def test_sentence_is_not_a_command(self, conversation: Conversation) -> None:
        assert await conversation.ask("run the tests") == ABOUT
        assert conversation.steps == []


class TestReplacing:
    @pytest.mark.parametrize(
        "prompt",
        [
            'replace "hi" with "ho" in src/main.py',
            "replace hi with ho in src/main.py.",
            "Replace 'hi' with `ho` in 'src/main.py'",
        ],
    )
    async def test_replace_text(self, conversation: Conversation, project: Path, prompt: str) -> None:
        text = await conversation.ask(prompt)
        assert (project / "src" / "main.py").read_text() == "print('ho')  # TODO: more\n"
        assert text.startswith("Edited src/main.py: 1 replacement.\n\n```diff\n--- a/src/main.py\n")
        assert "-print('hi')  # TODO: more\n+print('ho')  # TODO: more\n```\n" in text
        assert text.endswith("\n\nUndo with: kedge sessions undo s")
        assert conversation.used == [["view"], ["edit"]]

    async def test_replace_every_occurrence_verbatim(self, conversation: Conversation, project: Path) -> None:
        (project / "a.txt").write_text("x in y, x in y\n")
        assert "2 replacements" in await conversation.ask("replace x in y with a  b in c in a.txt")
        assert (project / "a.txt").read_text() == "a  b in c, a  b in c\n"

    async def test_failed_replacement(self, conversation: Conversation, project: Path) -> None:
        before = (project / "Makefile").read_text()
        assert (await conversation.ask("replace ho with hi in Makefile")).startswith(
            "That did not work: the text is not in Makefile"
        )
        assert await conversation.ask("replace a with b in no.txt") == "That did not work: no.txt does not exist"
        denied = await Conversation(project, {"edit": DENIED}).ask("replace all with none in Makefile")
        assert denied == "You denied the request, so nothing was done."
        assert (project / "Makefile").read_text() == before


class TestOtherPrompts:
    @pytest.mark.parametrize(
        "prompt",
        [
            "Write a poem about anchors",
            "hello",
            "",
            "Why is the sky blue?",
            "what is in the middle of nowhere?",
            "run",
            "show https://example.org/x.y",
            "diff --git a/x b/x\n\nExplain this",
            "run rm -rf /\n\nWhat is this?",
            "list\n\nthis directory",
            "show \0",
            "find " + "x" * REQUEST_CHARS_MAX,
        ],
    )
    async def test_anything_else_is_answered_with_abilities(self, conversation: Conversation, prompt: str) -> None:
        assert await conversation.ask(prompt) == ABOUT
        assert conversation.steps == []

    def test_abilities_name_the_examples_and_the_configuration(self) -> None:
        assert "offline model" in ABOUT
        assert "`kedge config path`" in ABOUT
        assert EXAMPLE_CONFIG in ABOUT
        assert all(f"\n{example}\n" in ABOUT for example in EXAMPLES)

    @pytest.mark.parametrize("example", EXAMPLES)
    def test_examples_are_understood(self, example: str) -> None:
        assert understand(example) is not None

    def test_example_configuration_is_complete(self) -> None:
        config = tomllib.loads(EXAMPLE_CONFIG)
        provider, _, model = config["model"].partition("/")
        assert config["providers"][provider]["type"] == "openai"
        assert model in [entry["id"] for entry in config["providers"][provider]["models"]]

    @pytest.mark.parametrize(
        "prompt",
        [
            "find a" + " " * 900 + "b",
            "replace a" + " " * 400 + "with b" + " " * 400 + "c",
            "replace " + " " * 900,
            "find" + " in" * 300,
            "replace" + " in with" * 120,
            "replace" + " with a in" * 99,
            "'" * 999,
            "list?" + "?" * 900 + "x",
        ],
    )
    def test_parsing_time_is_bounded(self, prompt: str) -> None:
        for start in range(0, len(prompt), 100):
            understand(prompt[start:])  # the time limit of the test is the assertion

    async def test_missing_tool_is_named(self, project: Path) -> None:
        tools = tuple(tool for tool in all_tools() if tool.name != "bash")
        assert (await Conversation(project, tools=tools).ask("run true")).startswith("This request needs the tool bash")


class TestTranscript:
    async def test_only_the_last_prompt_counts(self, conversation: Conversation) -> None:
        await conversation.ask("list")
        assert (await conversation.ask("read Makefile")).startswith("Makefile contains:")
        assert await conversation.ask("hello") == ABOUT

    async def test_shell_command_of_the_user_is_not_a_prompt(self) -> None:
        messages = (message("user", "ls"), message("user", ShellCommand("true", "", 0)))
        request = ModelRequest("offline", messages, tools=(ToolSpec("ls", "", "{}"),))
        end = end_of(await parts_of(OfflineModel(piece_s=0), request))
        assert [call.name for call in end.tool_calls] == ["ls"]

    async def test_call_ids_are_unique(self, conversation: Conversation) -> None:
        await conversation.ask("list")
        await conversation.ask("list")
        ids = [call.id for sent in conversation.messages for call in sent.all(ToolCall)]
        assert len(ids) == len(set(ids)) == 2

    async def test_calls_of_another_model_do_no_harm(self) -> None:
        call = ToolCall("1", "ls", "{not json")
        for result in (ToolResult("1", "ls", "what", "[1]"), ToolResult("1", "ls", "", '{"lines": "x"}')):
            for prompt in EXAMPLES:
                answered = (message("assistant", call), message("tool", result)) * 3
                specs = tuple(ToolSpec(tool.name, "", "{}") for tool in all_tools())
                request = ModelRequest("offline", (message("user", prompt), *answered), tools=specs)
                assert await parts_of(OfflineModel(piece_s=0), request)


class TestStreaming:
    async def test_answer_streams_in_small_pieces(self) -> None:
        parts = await parts_of(OfflineModel(piece_s=0), ModelRequest("offline", (message("user", "hello"),)))
        assert len(parts) > 10
        assert all(isinstance(part, TextDelta) and len(part.text.split()) <= 3 for part in parts[:-1])
        assert end_of(parts) == ModelEnd("end_turn")

    @pytest.mark.parametrize("text", ["", " ", "one", " one  two\n\n", "a b c d e f g\n", "word " * 5000])
    def test_pieces_add_up_to_the_text(self, text: str) -> None:
        assert "".join(pieces(text)) == text
        assert len(pieces(text)) <= PIECES_MAX

    async def test_cancel_stops_the_stream(self) -> None:
        first = asyncio.Event()

        async def read() -> None:
            request = ModelRequest("offline", (message("user", "hello"),))
            async with OfflineModel(piece_s=3600).stream(request) as parts:
                async for _ in parts:
                    first.set()

        reading = asyncio.create_task(read())
        await first.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
