"""The settings of MCP servers: secrets, findings, and the repository's .mcp.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.config.check import check_config
from kedge.config.load import load_user_layer
from kedge.config.mcp_config import expanded, parse_mcp_file
from kedge.config.trust import TrustList
from kedge.config.trusted_files import files_needing_trust
from kedge.errors import BadConfig

USER = """
[mcp.both]
command = "x"
url = "http://127.0.0.1/"
[mcp.unset]
command = "x"
env = { TOKEN = "$UNSET_ONE", OTHER = "literal", PART = "a ${UNSET_TWO} b" }
[mcp.remote]
url = "https://user:pass@host/?key=1"
headers = { Authorization = "Bearer abc", Other = "$SET" }
"""


def test_findings_and_masks(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(USER)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".mcp.json").write_text('{"mcpServers": {"r": {"command": "y"}}}')
    findings = check_config(file, tmp_path / "work", TrustList(), {"SET": "1"})
    by_subject = {finding.subject.rpartition(", ")[2]: finding for finding in findings}
    assert (by_subject["mcp.both"].status, "both a command and a url" in by_subject["mcp.both"].message) == (
        "fail",
        True,
    )
    assert by_subject["mcp.unset"].message == "needs UNSET_TWO, UNSET_ONE, which are not set"
    assert by_subject["mcp.remote"].status == "ok"
    assert (by_subject["r"].status, by_subject["r"].what_to_do) == ("warn", "kedge config trust")
    masked = load_user_layer(file).config.masked()["mcp"]
    assert masked["unset"]["env"] == {"TOKEN": "$UNSET_ONE", "OTHER": "********", "PART": "********"}
    assert masked["remote"]["headers"] == {"Authorization": "********", "Other": "$SET"}
    assert "pass" not in masked["remote"]["url"]


def test_variables_are_expanded_as_in_other_agents() -> None:
    content = b'{"mcpServers": {"a": {"type": "streamable-http", "url": "${BASE:-http://x}/mcp", "oauth": {},'
    content += b' "source": "plugin x", "headers": {"A": "Bearer ${TOKEN}"}}}}'
    server = expanded(parse_mcp_file(content, Path("f"))["a"], {"TOKEN": "t"})
    assert (server.type, server.url, server.headers) == ("http", "http://x/mcp", {"A": "Bearer t"})
    assert server.source == ""  # only kedge sets it
    with pytest.raises(BadConfig, match="variable TOKEN is not set"):
        expanded(parse_mcp_file(content, Path("f"))["a"], {})


@pytest.mark.parametrize(
    "content", [b"[", b'{"mcpServers": []}', b'{"mcpServers": {"a": 1}}', b'{"mcpServers": {"a": {"args": 1}}}']
)
def test_invalid_file_is_one_line(content: bytes) -> None:
    with pytest.raises(BadConfig, match="^f is not valid[^\n]*$"):
        parse_mcp_file(content, Path("f"))


def test_trust_covers_the_file(tmp_path: Path) -> None:
    file = tmp_path / ".mcp.json"
    file.write_text('{"mcpServers": {"r": {"command": "y", "headers": {"A": "secret"}}}}')
    (needing,) = files_needing_trust(tmp_path)
    assert (needing.path, needing.content) == (file, file.read_bytes())
    assert ("mcp.r.command", "y") in needing.settings
    assert ("mcp.r.headers.A", "********") in needing.settings
