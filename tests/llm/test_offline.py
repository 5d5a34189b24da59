"""The offline model with real tools in a real directory; what people answer is put in by hand."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kedge.core.transcript import SUMMARY, Message, ShellCommand, ToolCall, ToolResult
from kedge.llm.base import ModelEnd, ModelRequest, TextDelta, ToolSpec
from kedge.llm.look import ENTRIES_TOLD_MAX
from kedge.llm.offline import CALLS_MAX, EXAMPLE_CONFIG, EXAMPLES, PIECES_MAX, OfflineModel, pieces
from kedge.llm.offline_requests import REQUEST_CHARS_MAX, understood
from kedge.tools.base import Tool, ToolContext, ToolFailed, ToolOutput
from kedge.tools.registry import Toolset, all_tools
from tests.llm.support import end_of, message, parts_of, text_of
from tests.tools.contexts import make_context

LAST_LINE = (
    "This is kedge's built-in offline model; to use a real one, add it to your config.toml "
    "(`kedge config path` says where)."
)
DENIED = ToolOutput("Not done: the user denied it.", {"denied": True}, is_error=True)
FORBIDDEN = ToolOutput("Not allowed: the rule deny bash says no. Do not try to get around it.", is_error=True)


class Talk:
    """One Run: the model is asked Step by Step, and its calls are made, or end as the test says."""

    def __init__(self, root: Path, instead: dict[str, ToolOutput] | None = None, tools: tuple[Tool, ...] | None = None):
        self.tools = {tool.name: tool for tool in (all_tools() if tools is None else tools)}
        self.context: ToolContext = make_context(root)
        self.instead = instead or {}
        self.messages: list[Message] = []
        #: The calls of each Step.
        self.steps: list[list[tuple[str, Any]]] = []

    async def ask(self, prompt: str, model: OfflineModel | None = None) -> str:
        """The answer, without the line that stands below all of them."""
        self.messages.append(message("user", prompt))
        specs = tuple(ToolSpec(name, "", "{}") for name in self.tools)
        for _ in range(CALLS_MAX + 1):
            request = ModelRequest("offline", tuple(self.messages), tools=specs, workspace=str(self.context.root))
            parts = await parts_of(model or OfflineModel(piece_s=0), request)
            end = end_of(parts)
            if not end.tool_calls:
                assert end.reason == "end_turn"
                return text_of(parts).removesuffix(f"\n\n{LAST_LINE}")
            assert (end.reason, text_of(parts)) == ("tool_use", "")
            self.messages.append(message("assistant", *end.tool_calls))
            self.steps.append([(call.name, json.loads(call.input)) for call in end.tool_calls])
            for call in end.tool_calls:
                self.messages.append(message("tool", await self._result(call)))
        raise AssertionError("the model does not come to an end")

    async def _result(self, call: ToolCall) -> ToolResult:
        output = self.instead.get(call.name) or await self._made(call)
        metadata = msgspec.json.encode(output.metadata).decode() if output.metadata else ""
        return ToolResult(call.id, call.name, output.content, metadata, output.is_error)

    async def _made(self, call: ToolCall) -> ToolOutput:
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
    (root / "pyproject.toml").write_text('[project]\nversion = "1"\nname = "anchor"\n')
    (root / "Makefile").write_text("all:\n")
    (root / "with blank.txt").write_text("found it")
    (root / "data.bin").write_bytes(b"\x00\x01\x02" * 1000)
    return root


@pytest.fixture
def talk(project: Path) -> Talk:
    return Talk(project)


class TestLooking:
    @pytest.mark.parametrize(
        "prompt",
        [
            *("What is in this directory?", "list", "ls", "ls .", "ls -la", "list files", "List the files, please."),
            *("Describe the project.", "what files are here?", "show me the files", "Summarize this project"),
            *("Can you tell me what is in this folder?", "please list all files in this repository"),
        ],
    )
    async def test_it_says_what_is_in_the_directory(self, talk: Talk, prompt: str) -> None:
        assert await talk.ask(prompt) == (
            "This directory holds 5 files and 1 folder.\n"
            "It looks like Python code (pyproject.toml, named anchor).\n"
            "README.md is headed: Anchors & more\n"
            "\n"
            "  src/ (1 files)\n"
            "  Makefile\n"
            "  README.md\n"
            "  data.bin\n"
            "  pyproject.toml\n"
            "  with blank.txt"
        )
        assert talk.used == [["ls"], ["view", "view"]]

    @pytest.mark.parametrize(
        "prompt", ["ls src", "list the files in src", "what is in src/?", "What's in the src folder?"]
    )
    async def test_a_folder_can_be_named(self, talk: Talk, prompt: str) -> None:
        assert await talk.ask(prompt) == "src/ holds 1 file and no folders.\n\n  main.py"
        assert talk.used == [["ls"]]

    @pytest.mark.parametrize(
        ("prompt", "says"),
        [
            ("Show me README.md", "README.md says:\n\n<p>logo</p>\n\n# Anchors & more\n\nText."),
            ("Explain src/main.py, please.", "src/main.py says:\n\nprint('hi')  # TODO: more"),
            ("what's in 'with blank.txt'", "with blank.txt says:\n\nfound it"),
            ("What does src/main.py say?", "src/main.py says:"),
            ("src/main.py", "src/main.py says:"),
            ("read the file Makefile", "Makefile says:\n\nall:"),
            ("show data.bin", "data.bin is not text:"),
            ("show nothing.txt", "That did not work: nothing.txt does not exist."),
            (
                "show pyproject.tml",
                "That did not work: pyproject.tml does not exist; similar names there: pyproject.toml.",
            ),
        ],
    )
    async def test_it_shows_what_the_prompt_names(self, talk: Talk, prompt: str, says: str) -> None:
        assert (await talk.ask(prompt)).startswith(says)

    async def test_a_loose_name_is_looked_up_first(self, talk: Talk) -> None:
        assert (await talk.ask("show me the readme")).startswith("README.md says:")
        assert talk.used == [["ls"], ["view"]]
        assert await talk.ask("open the treasure") == "There is nothing named treasure in this directory."

    async def test_a_folder_taken_for_a_file_and_a_file_taken_for_a_folder_are_shown_all_the_same(
        self, talk: Talk, project: Path
    ) -> None:
        (project / "v1.0").mkdir()
        assert await talk.ask("read v1.0") == "v1.0/ is empty."
        assert (await talk.ask("ls Makefile")).startswith("Makefile says:")
        assert talk.used == [["view"], ["ls"], ["ls"], ["view"]]

    async def test_long_files_and_large_folders_are_cut(self, talk: Talk, project: Path) -> None:
        (project / "long.txt").write_text("".join(f"line {count}\n" for count in range(10_000)))
        (project / "wide.txt").write_text("é" * 5000)
        for count in range(ENTRIES_TOLD_MAX + 20):
            (project / "src" / f"f{count:03}").touch()
        text = await talk.ask("show long.txt")
        assert text.startswith("long.txt has 10000 lines and begins like this:\n\nline 0\n")
        assert text.endswith("line 59")
        assert len(await talk.ask("show wide.txt")) < 400
        text = await talk.ask("what is in src/")
        assert text.startswith(f"src/ holds {ENTRIES_TOLD_MAX + 21} files and no folders.")
        assert text.endswith("  f039\n  ... and 21 others")

    async def test_nothing_can_write_escape_codes_to_the_terminal(self, talk: Talk, project: Path) -> None:
        (project / "a\x1b[31m\nb.txt").write_text("x")
        (project / "evil.md").write_text("red \x1b[31m text\nnext\x9b line \u202e")
        os.close(os.open(os.fsencode(project) + b"/bad\xff", os.O_CREAT | os.O_WRONLY))
        text = await talk.ask("list files") + await talk.ask("show evil.md") + await talk.ask("find red")
        assert "red �[31m text\nnext� line �" in text
        assert not {"\x1b", "\x9b", "\u202e"} & set(text)
        text.encode()

    @pytest.mark.parametrize(
        ("marker", "content"),
        [
            ("package.json", '{"name": "anchor"}'),
            ("package.json", '{\n  "version": "1",\n  "name": "anchor"\n}'),
            ("Cargo.toml", '[package]\nname = "anchor"'),
            ("go.mod", "// x\nmodule anchor\n"),
        ],
    )
    async def test_projects_of_other_languages_are_named(self, tmp_path: Path, marker: str, content: str) -> None:
        (tmp_path / marker).write_text(content)
        assert f"({marker}, named anchor)" in await Talk(tmp_path).ask("list files")

    @pytest.mark.parametrize("marker", ["pyproject.toml", "package.json", "go.mod", "CMakeLists.txt"])
    @pytest.mark.parametrize(
        "content", ["", "[", '{"name": 5}', "[project]\n" * 3000, "\x00", '{"name": "' * 3000, (" " * 1900 + "\n") * 15]
    )
    async def test_a_project_file_may_say_anything(self, tmp_path: Path, marker: str, content: str) -> None:
        (tmp_path / marker).write_text(content)
        assert f"code ({marker}" in await Talk(tmp_path).ask("list files")


class TestFinding:
    @pytest.mark.parametrize(
        "prompt",
        [
            *("find todo", "Search for TODO", "grep TODO", "look for 'TODO:'", "where is todo?", "find TODO in src"),
            *("search src for todo", "search the code for TODO", "find todo in this directory"),
        ],
    )
    async def test_lines_are_found_by_what_is_in_them(self, talk: Talk, prompt: str) -> None:
        text = await talk.ask(prompt)
        assert text.partition(" was found ")[2] == "1 time in 1 file:\n\nsrc/main.py\n     1: print('hi')  # TODO: more"
        assert talk.used == [["grep"]]

    @pytest.mark.parametrize("prompt", ["find *.py", "find all .py files", "find files named *.py", "find *.py in src"])
    async def test_files_are_found_by_their_names(self, talk: Talk, prompt: str) -> None:
        assert await talk.ask(prompt) == "1 file named *.py:\n\nsrc/main.py"
        assert talk.used == [["glob"]]

    async def test_what_may_be_a_name_or_a_text_is_looked_for_as_both_at_once(self, talk: Talk) -> None:
        assert await talk.ask("find main.py") == "1 file named main.py:\n\nsrc/main.py\n\nNo file has main.py in it."
        assert talk.used == [["glob", "grep"]]

    async def test_nothing_found_is_told(self, talk: Talk) -> None:
        assert await talk.ask("find *.rs") == "No file is named *.rs."
        assert await talk.ask("find (a[b") == "No file has (a[b in it."
        assert await talk.ask("find x in nowhere") == "That did not work: nowhere does not exist."


class TestRunning:
    @pytest.mark.parametrize(
        ("prompt", "command"),
        [
            *(("run `echo hi`", "echo hi"), ("Run echo hi", "echo hi"), ("$ echo hi", "echo hi")),
            *(("please execute 'echo hi'", "echo hi"), ("run the command: echo hi", "echo hi")),
        ],
    )
    async def test_a_command_is_run_as_it_stands(self, talk: Talk, prompt: str, command: str) -> None:
        assert await talk.ask(prompt) == f"`{command}` ended with exit code 0 and wrote:\n\nhi"
        assert talk.steps == [[("bash", {"command": command, "timeout_s": 600})]]

    async def test_quotes_dots_and_blanks_of_a_command_stay(self, talk: Talk) -> None:
        assert await talk.ask("run echo 'a  b' .") == "`echo 'a  b' .` ended with exit code 0 and wrote:\n\na  b ."

    async def test_how_a_command_ended_is_told(self, talk: Talk) -> None:
        assert (
            await talk.ask("run echo oops; exit 3") == "`echo oops; exit 3` ended with exit code 3 and wrote:\n\noops"
        )
        assert await talk.ask("run true") == "`true` ended with exit code 0 and wrote nothing."
        assert await talk.ask("run kill -9 $$") == "`kill -9 $$` was ended by signal 9 and wrote nothing."
        many = await talk.ask("run seq 100")
        assert many.startswith("`seq 100` ended with exit code 0 and wrote:\n\n... 40 more lines\n41\n")
        assert many.endswith("\n100")

    async def test_a_denial_and_a_rule_are_told(self, project: Path) -> None:
        assert await Talk(project, {"bash": DENIED}).ask("run rm -r src") == "You denied it, so nothing was run."
        assert await Talk(project, {"bash": FORBIDDEN}).ask("run rm -r src") == (
            "The permissions do not allow it (the rule deny bash says no), so nothing was run."
        )

    async def test_a_sentence_is_no_command(self, talk: Talk) -> None:
        assert (await talk.ask("run the tests")).startswith("I cannot answer that")
        assert talk.steps == []


class TestChanging:
    @pytest.mark.parametrize(
        "prompt",
        [
            *('replace "hi" with "ho" in src/main.py', "replace hi with ho in src/main.py."),
            *("Please change 'hi' to `ho` in the file src/main.py", "replace hi by ho in 'src/main.py'"),
        ],
    )
    async def test_a_text_is_replaced_after_a_look(self, talk: Talk, project: Path, prompt: str) -> None:
        text = await talk.ask(prompt)
        assert (project / "src" / "main.py").read_text() == "print('ho')  # TODO: more\n"
        assert text.startswith("Edited src/main.py: 1 replacement.\n\n--- a/src/main.py\n")
        assert "-print('hi')  # TODO: more\n+print('ho')  # TODO: more\n" in text
        assert text.endswith("\n\nTo take it back: kedge sessions undo s")
        assert talk.used == [["view"], ["edit"]]

    async def test_every_occurrence_is_replaced_and_blanks_in_between_are_kept(self, talk: Talk, project: Path) -> None:
        (project / "a.txt").write_text("x in y, x in y\n")
        assert "2 replacements" in await talk.ask("replace x in y with a  b in c in a.txt")
        assert (project / "a.txt").read_text() == "a  b in c, a  b in c\n"

    async def test_why_nothing_was_replaced_is_told(self, talk: Talk, project: Path) -> None:
        before = (project / "Makefile").read_text()
        assert (await talk.ask("replace ho with hi in Makefile")).startswith(
            'That did not work: "ho" is not in Makefile'
        )
        assert await talk.ask("replace a with b in no.txt") == "That did not work: no.txt does not exist."
        denied = Talk(project, {"edit": DENIED})
        assert await denied.ask("replace all with none in Makefile") == "You denied it, so nothing was changed."
        assert (project / "Makefile").read_text() == before

    @pytest.mark.parametrize(
        "prompt",
        [
            *("write notes.txt with some text", "create a new file notes.txt containing 'some text'"),
            *("write 'some text' to notes.txt", "create the file notes.txt with the text: some text"),
        ],
    )
    async def test_a_file_is_written(self, talk: Talk, project: Path, prompt: str) -> None:
        text = await talk.ask(prompt)
        assert (project / "notes.txt").read_text() == "some text\n"
        assert text.startswith("Created notes.txt (10 bytes).")
        assert "+some text\n\nTo take it back: kedge sessions undo s" in text
        assert talk.used == [["write"]]

    async def test_a_file_that_exists_is_read_before_it_is_overwritten(self, talk: Talk, project: Path) -> None:
        assert (await talk.ask("write README.md with Hello.")).startswith("Wrote README.md")
        assert (project / "README.md").read_text() == "Hello.\n"
        assert talk.used == [["write"], ["view"], ["write"]]

    async def test_a_denied_write_is_told(self, project: Path) -> None:
        assert (
            await Talk(project, {"write": DENIED}).ask("write a.txt with x") == "You denied it, so nothing was written."
        )
        assert not (project / "a.txt").exists()


class TestEverythingElse:
    @pytest.mark.parametrize(
        "prompt",
        [
            *("Write a poem about anchors", "hello", "", "Why is the sky blue?", "what is the meaning of life?"),
            *("explain recursion", "write documentation with examples", "run", "show me https://example.org/x.y"),
            *("diff --git a/x b/x\n\nExplain this", "$ rm -rf /\n\nWhat is this?", "list\n\nthis directory"),
            *("show \0", "find " + "x" * REQUEST_CHARS_MAX),
        ],
    )
    async def test_it_is_honest_about_what_it_is(self, talk: Talk, prompt: str) -> None:
        text = await talk.ask(prompt)
        assert text.startswith("I cannot answer that: no language model is configured")
        assert EXAMPLE_CONFIG in text
        assert "`kedge config path` says where" in text
        assert all(f"\n  {example}\n" in text for example in EXAMPLES)
        assert text.splitlines()[-1].startswith("This is kedge's built-in offline model")
        assert talk.steps == []

    @pytest.mark.parametrize(
        "prompt",
        [
            "find a" + " " * 1900 + "b",
            "replace a" + " " * 900 + "with b" + " " * 900 + "c",
            "replace " + " " * 1900,
            "write " + "with " * 300,
            "find" + " in" * 600,
            "replace" + " in with" * 200,
            "'" * 1999,
        ],
    )
    def test_no_prompt_takes_long_to_be_understood(self, prompt: str) -> None:
        for context in range(0, len(prompt), 100):
            understood(prompt[context:])  # the time limit of a test is what would tell

    @pytest.mark.parametrize("example", EXAMPLES)
    def test_what_it_says_it_can_do_is_understood(self, example: str) -> None:
        assert understood(example) is not None

    async def test_it_names_the_configuration_file_when_it_knows_it(self, talk: Talk) -> None:
        model = OfflineModel("/home/me/.config/kedge/config.toml", piece_s=0)
        assert "add this to /home/me/.config/kedge/config.toml:" in await talk.ask("hello", model)
        assert "add it to /home/me/.config/kedge/config.toml." in await talk.ask("list files", model)

    def test_the_example_is_valid_and_complete(self) -> None:
        config = tomllib.loads(EXAMPLE_CONFIG)
        provider, _, model = config["model"].partition("/")
        assert config["providers"][provider]["type"] == "openai"
        assert model in [entry["id"] for entry in config["providers"][provider]["models"]]

    async def test_without_tools_it_says_what_it_could_do(self, project: Path) -> None:
        text = await Talk(project, tools=()).ask("list files")
        assert "Given tools (there are none here), I could do these" in text

    async def test_a_tool_that_is_switched_off_is_named(self, project: Path) -> None:
        tools = tuple(tool for tool in all_tools() if tool.name != "bash")
        assert await Talk(project, tools=tools).ask("run true") == (
            "That takes the tool bash, which is switched off here."
        )


class TestTranscript:
    async def test_only_the_last_prompt_counts(self, talk: Talk) -> None:
        await talk.ask("list")
        assert (await talk.ask("read Makefile")).startswith("Makefile says:")
        assert (await talk.ask("hello")).startswith("I cannot answer that")

    async def test_a_command_of_the_user_is_no_prompt(self, project: Path) -> None:
        talk = Talk(project)
        asked = message("user", "read Makefile")
        ran = message("user", ShellCommand("true", "", 0))
        request = ModelRequest("offline", (asked, ran), tools=(ToolSpec("view", "", "{}"), ToolSpec("ls", "", "{}")))
        end = end_of(await parts_of(OfflineModel(piece_s=0), request))
        assert [call.name for call in end.tool_calls] == ["ls"]
        assert talk.steps == []

    async def test_calls_have_ids_of_their_own(self, talk: Talk) -> None:
        await talk.ask("list")
        await talk.ask("list")
        ids = [call.id for said in talk.messages for call in said.all(ToolCall)]
        assert len(ids) == len(set(ids)) == 6

    async def test_it_gives_up_before_it_goes_round_in_circles(self, project: Path) -> None:
        talk = Talk(
            project,
            {"ls": ToolOutput("it is a file", is_error=True), "view": ToolOutput("is a directory", is_error=True)},
        )
        assert await talk.ask("list src") == "I have tried several things, and gave up."

    async def test_a_transcript_of_another_model_does_no_harm(self) -> None:
        call, result = ToolCall("1", "ls", "{not json"), ToolResult("1", "ls", "what", "[1]")
        for prompt in (*EXAMPLES, "find a.b", "show it"):
            messages = (message("user", prompt), message("assistant", call), message("tool", result))
            specs = tuple(ToolSpec(tool.name, "", "{}") for tool in all_tools())
            assert await parts_of(OfflineModel(piece_s=0), ModelRequest("offline", messages, tools=specs))

    @pytest.mark.parametrize(
        "wish", ["Summarize the conversation.", "Summarize this conversation so that the work\ngoes on."]
    )
    async def test_a_summary_names_what_was_asked(self, wish: str) -> None:
        before = message("user", f"{SUMMARY}The user asked, in this order:\n\n- list files")
        asked = message("user", "read README.md\nand more")
        answered = message("assistant", "README.md says:")
        request = ModelRequest("offline", (before, asked, answered, message("user", wish)))
        assert text_of(await parts_of(OfflineModel(piece_s=0), request)) == (
            "The user asked, in this order:\n\n- list files\n- read README.md"
        )


class TestStreaming:
    async def test_the_answer_streams_in_small_pieces_and_ends(self) -> None:
        parts = await parts_of(OfflineModel(piece_s=0), ModelRequest("offline", (message("user", "hello"),)))
        assert len(parts) > 10
        assert all(isinstance(part, TextDelta) and len(part.text.split()) <= 3 for part in parts[:-1])
        assert end_of(parts) == ModelEnd("end_turn")

    @pytest.mark.parametrize("text", ["", " ", "one", " one  two\n\n", "a b c d e f g\n", "word " * 5000])
    def test_pieces_are_the_text_and_not_too_many(self, text: str) -> None:
        assert "".join(pieces(text)) == text
        assert len(pieces(text)) <= PIECES_MAX

    async def test_a_cancel_stops_it(self) -> None:
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
