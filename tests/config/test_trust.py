"""The trust list: paths with their exact content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kedge.config import trust as module
from kedge.config.load import LoadedConfig, load_layers
from kedge.config.schema import Config
from kedge.config.trust import TrustList
from kedge.errors import BadConfig


@pytest.fixture
def trust(tmp_path: Path) -> TrustList:
    return TrustList(tmp_path / "data" / "trusted.json")


def test_only_the_same_content_at_the_same_path_is_trusted(trust: TrustList, tmp_path: Path) -> None:
    file = tmp_path / "kedge.toml"
    assert not trust.contains(file, b"a = 1")
    trust.add(file, b"a = 1")
    assert trust.contains(file, b"a = 1")
    assert not trust.contains(file, b"a = 2")
    assert not trust.contains(tmp_path / "other" / "kedge.toml", b"a = 1")
    trust.add(file, b"a = 2")
    assert not trust.contains(file, b"a = 1"), "what it was before is no longer trusted"


def test_list_is_private_and_entries_can_be_revoked(trust: TrustList, tmp_path: Path) -> None:
    assert trust.file is not None
    trust.add(tmp_path / "a", b"1")
    trust.add(tmp_path / "b", b"2")
    assert trust.file.stat().st_mode & 0o777 == 0o600
    assert trust.file.parent.stat().st_mode & 0o777 == 0o700
    assert TrustList(trust.file).contains(tmp_path / "a", b"1"), "another process reads the same"
    assert trust.revoke(tmp_path / "a")
    assert not trust.revoke(tmp_path / "a")
    assert (trust.contains(tmp_path / "a", b"1"), trust.contains(tmp_path / "b", b"2")) == (False, True)
    assert os.listdir(trust.file.parent) == ["trusted.json"], "nothing half-written is left"


def test_without_a_list_nothing_is_trusted(tmp_path: Path) -> None:
    assert not TrustList().contains(tmp_path, b"")
    with pytest.raises(BadConfig):
        TrustList().add(tmp_path, b"")


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"{", 0o600, "damaged"),
        (b'{"trusted": 1}', 0o600, "damaged"),
        (b"\xff", 0o600, "damaged"),
        (None, 0o666, "other users can write to it"),
        (None, 0o620, "other users can write to it"),
    ],
)
def test_damaged_or_writable_list_trusts_nothing(
    trust: TrustList, tmp_path: Path, content: bytes | None, mode: int, says: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "kedge.toml").write_text('[permissions]\nallow = ["bash"]\n')
    trust.add(work / "kedge.toml", (work / "kedge.toml").read_bytes())
    assert load_layers(LoadedConfig(Config(), {}), work, trust, {}).config.permissions.allow == ["bash"]
    assert trust.file is not None
    if content is not None:
        trust.file.write_bytes(content)
    trust.file.chmod(mode)
    with pytest.raises(BadConfig, match=says):
        trust.contains(work / "kedge.toml", b"")
    found = load_layers(LoadedConfig(Config(), {}), work, trust, {})
    assert found.config == Config()
    assert says in found.ignored[0]


def test_the_list_is_bounded(trust: TrustList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRUSTED_MAX", 3)
    for name in "abcd":
        trust.add(tmp_path / name, b"")
    assert [trust.contains(tmp_path / name, b"") for name in "abcd"] == [False, True, True, True]
