"""Limits of configuration files, so that a repository cannot stall the event loop or fill memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kedge.agent.system_prompt import INSTRUCTION_FILES_MAX, instruction_files
from kedge.config.load import (
    DOTS_WORK_MAX,
    REPOSITORY_BYTES_MAX,
    LoadedConfig,
    _merge,
    load_layers,
    load_user_layer,
    load_workspace,
    repository_files,
)
from kedge.config.schema import CONTEXT_FILES_MAX, Config
from kedge.config.trust import TrustList
from kedge.errors import BadConfig


def repository(directory: Path, levels: int = 1) -> Path:
    """The innermost directory of a new repository."""
    inner = directory.joinpath("repository", *["d"] * (levels - 1))
    inner.mkdir(parents=True)
    (directory / "repository" / ".git").mkdir()
    return inner


@pytest.mark.found(
    "attack round 2: the event loop",
    "two repository files with 16,000 names each were merged in quadratic time, 4 s on the event loop, and so were "
    "thousands of named tables; a merge now takes linear time",
)
@pytest.mark.timeout(20)
def test_layers_are_merged_in_linear_time() -> None:
    merged = {"files": [f"a{number}" for number in range(60_000)]}
    _merge(merged, {"files": [f"b{number}" for number in range(60_000)] + ["a1"]}, "x", {})
    assert len(merged["files"]) == 120_000
    sources: dict[str, str] = {}
    _merge({}, {"providers": {f"m{number}": {"base_url": "u"} for number in range(60_000)}}, "x", sources)
    assert len(sources) == 60_000


@pytest.mark.found(
    "attack round 2: the event loop",
    "each of up to 128 files of a repository could have 128 kB, all parsed on the event loop in 4 s; their total size "
    "is now limited",
)
def test_files_of_a_repository_have_a_total_limit(tmp_path: Path) -> None:
    inner = repository(tmp_path, levels=3)
    for directory in (inner.parent.parent, inner.parent, inner):
        (directory / "kedge.toml").write_text("#" * (REPOSITORY_BYTES_MAX // 2))
    assert [file.content is not None for file in repository_files(inner)] == [True, True, False]
    with pytest.raises(BadConfig, match="is not read: the repository's configuration has more than"):
        load_workspace(Config(), inner)
    assert load_workspace(Config(), inner, strict=False) == Config()


@pytest.mark.found(
    "attack round 2: the event loop",
    "a repository file of 60 kB with one deep table and thousands of lines took the parser 2.6 s on the event loop; "
    "the limit of dots times lines is fifty times lower for a repository",
)
def test_deep_table_of_a_repository_is_refused(tmp_path: Path) -> None:
    inner = repository(tmp_path)
    lines = "".join(f"{number:x}=1\n" for number in range(3000))
    (inner / "kedge.toml").write_text(f"[{'.'.join('a' * 200)}]\n{lines}")
    with pytest.raises(BadConfig, match="dots"):
        load_workspace(Config(), inner)


@pytest.mark.found(
    "attack round 2: the event loop",
    "context.files had no limit: 300 names in a repository of 61 levels kept a thread busy for 30 s before each Run, "
    "and thousands of names for minutes; names and files are limited, and a missing file is checked once",
)
def test_instruction_file_names_are_limited(tmp_path: Path) -> None:
    inner = repository(tmp_path, levels=3)
    many = [f"f{number}.md" for number in range(CONTEXT_FILES_MAX + 1)]
    (inner / "kedge.toml").write_text(f"context.files = {json.dumps(many)}")
    with pytest.raises(BadConfig, match="length <= 50"):
        load_workspace(Config(), inner)
    (inner / "kedge.toml").write_text(f"context.files = {json.dumps(many[1:])}")
    (inner.parent / "kedge.toml").write_text(f"context.files = {json.dumps(many[:-1])}")
    loaded = load_layers(LoadedConfig(Config(), {}, (), {}), inner, TrustList(), {})
    assert loaded.config.context.files == many[:-1]
    assert loaded.ignored == (f"context.files: only the first {CONTEXT_FILES_MAX} of {len(many)} names are used.",)
    for directory in (inner.parent.parent, inner.parent, inner):
        for name in many:
            (directory / name).write_text(f"{directory} {name}")
    assert len(instruction_files(inner, loaded.config)) == INSTRUCTION_FILES_MAX


@pytest.mark.found(
    "attack round 2: the event loop",
    "a repository could allow a queue of 10,000 Runs, and one cancel of all of them took 0.6 s of the event loop; the "
    "limit is one thousand",
)
def test_repository_cannot_set_a_queue_of_thousands(tmp_path: Path) -> None:
    inner = repository(tmp_path)
    (inner / "kedge.toml").write_text("runs.queue_runs_max = 1001")
    with pytest.raises(BadConfig, match="<= 1000"):
        load_workspace(Config(), inner)


@pytest.mark.found(
    "a review of the engine: a line of a repository's kedge.toml with 20,000 dots",
    "the parser stores a tuple for each prefix of such a key: gigabytes for 40 kB of text, and with a live Run in that "
    "workspace no server could start; the dots are now counted before parsing",
)
@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 20_000) + "=1",
        "\n".join(f"k{number}." + ".".join("a" * 900) + "=1" for number in range(13)),
        f"[{'.'.join('a' * 2_900)}]\n" + "\n".join(f"k{n}." + ".".join("a" * 19) + "=1" for n in range(2_600)),
        f"[{'.'.join('a' * 2_900)}]\n" + "\n".join(f"k{n}=1" for n in range(9_000)),
    ],
    ids=["one key", "many keys", "many keys of a deep table", "many lines of a deep table"],
)
def test_key_with_thousands_of_parts_is_refused_before_parsing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(BadConfig, match="thousands of dots"):
        load_user_layer(file)


def test_list_of_hundreds_of_hosts_is_accepted(tmp_path: Path) -> None:
    hosts = ", ".join(f'"fetch(www.host{number}.example.org)"' for number in range(700))
    file = tmp_path / "config.toml"
    file.write_text(f"[permissions]\nallow = [{hosts}]\n")
    assert hosts.count(".") ** 2 < DOTS_WORK_MAX
    assert len(load_user_layer(file).config.permissions.allow) == 700
