"""When language servers may start: only confined, unless the user has enabled them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kedge.bridge.lsp_messages import LspFinding
from kedge.config.schema import Config, LanguageServerConfig, LspConfig
from kedge.config.trust import TrustList
from kedge.core.extensions import EditReport, ExtensionState
from kedge.extensions.language_reports import edit_report
from kedge.extensions.language_servers import LanguageServers
from kedge.extensions.part import ExtensionHost
from kedge.tools.base import WrittenFile
from kedge.tools.file_threads import FileThreads
from tests.polling import until
from tests.tools.contexts import PlainProcesses

PYLSP = Path(sys.executable).parent / "pylsp"


@pytest.mark.parametrize(
    ("can_confine", "enabled", "started"),
    [
        (False, None, []),
        (False, True, ["configured"]),
        (True, None, ["read_only"]),
        (True, True, ["read_only"]),
        (True, False, []),
    ],
)
async def test_unconfined_servers_start_only_if_enabled(
    tmp_path: Path, can_confine: bool, enabled: bool | None, started: list[str]
) -> None:
    processes, states = PlainProcesses(), list[ExtensionState]()
    processes.can_confine = can_confine

    async def get() -> PlainProcesses:
        return processes

    host = ExtensionHost(
        root=tmp_path,
        files=FileThreads("the test"),
        processes=get,
        announce=states.append,
        config_dir=tmp_path,
        data_dir=tmp_path,
        trust=TrustList(),
    )
    servers = LanguageServers(host)
    (tmp_path / "a.py").write_text("x = 1\n")
    lsp = LspConfig(enabled=enabled, servers={"pylsp": LanguageServerConfig(command=str(PYLSP))})
    await servers.refresh(Config(lsp=lsp))
    assert [tool.name for tool in servers.tools()] == ([] if enabled is False else ["code", "rename"])
    try:
        report = await servers.edited((WrittenFile(tmp_path / "a.py", None, b"x = 1\n"),), lambda subject: False)
        assert report == EditReport()
        assert processes.confinements == started
        if not can_confine and enabled is None:
            (state,) = (state for state in servers.states() if state.name == "pylsp")
            assert (state.condition, "lsp.enabled = true" in state.error) == ("disabled", True)
            assert servers.tools() == ()
        lsp.servers["pylsp"].source = "plugin kit 2"  # a newer version of its plugin
        await servers.refresh(Config(lsp=lsp))
        await until(lambda: not servers.has_processes)
    finally:
        await servers.close()
    assert not servers.has_processes


def test_report_has_each_finding_once() -> None:
    """After a restart of the server, the checks of two edits may both have it."""
    same = LspFinding("/work/a.py", 1, 1, "undefined name 'two'", "pyflakes")
    report = edit_report([same, same], Path("/work"), lambda _: False, is_compared=True)
    assert report.text.splitlines()[1:] == ["a.py:2: error: undefined name 'two' [pyflakes]"]
