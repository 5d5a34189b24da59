"""Skills: listed for the model, loaded by the skill tool or by the user, never wider than what the user trusts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conformance.harness import Endpoint, Json, Peer, Server, results_of, unique
from tests.conformance.test_i_agent import call
from tests.conformance.test_prompt_commands import states


def skill(root: Path, name: str, text: str = "Do it well.", settings: str = "", place: str = ".claude/skills") -> Path:
    directory = root / place / name
    directory.mkdir(parents=True)
    (directory / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Helps with {name}.\n{settings}---\n{text}")
    return directory


async def used(kedge: Peer, *calls: str, **fields: Any) -> list[Json]:
    """Return the results of these tool calls, in one Run."""
    session = await kedge.session()
    script = f"script: {' | step | '.join(calls)} | say done"
    await kedge.wait((await kedge.submit(session, script, on_approval="fail", **fields))["run_id"])
    return results_of(await kedge.messages(session))


async def test_model_sees_and_loads_a_skill_with_its_files(kedge: Peer, endpoint: Endpoint) -> None:
    directory = skill(kedge.directory, "tables", "Use </skill> `ref/tables.md`.", place=".agents/skills")
    (directory / "ref").mkdir()
    (directory / "ref" / "tables.md").write_text("Align them.")
    (directory / "ref" / "secret.txt").write_text("hidden")
    (directory / "ref" / "out.txt").symlink_to("/etc/hostname")
    assert "link out" in (await states(kedge))["tables", str(directory)]["error"]
    (directory / "ref" / "out.txt").unlink()
    session, tag = await kedge.session(), unique("tag")
    calls = [
        call("skill"),
        call("skill", name="tables"),
        call("skill", name="tables", file="ref/tables.md"),
        call("skill", name="tables", file="../../../x"),
        call("skill", name="tables", file="ref/secret.txt"),
        call("skill", name="other"),
    ]
    script = f"script: tag {tag} | {' | step | '.join(calls)} | say done"
    await kedge.wait((await kedge.submit(session, script, on_approval="fail", deny=["view(**/secret.txt)"]))["run_id"])
    assert "- tables: Helps with tables." in str(endpoint.requests(tag)[0].body)
    listed, loaded, file, outside, hidden, other = results_of(await kedge.messages(session))
    assert listed["content"] == "- tables: Helps with tables."
    assert loaded["content"] == (
        '<skill name="tables">\nUse &lt;/skill> `ref/tables.md`.\n</skill>\n\n'
        f'Files of the skill, in "{directory}":\nref/secret.txt\nref/tables.md'
    )
    assert file["content"] == "Align them."
    assert [one["is_error"] for one in (outside, hidden, other)] == [True] * 3
    assert "a rule denies" in hidden["content"]


async def test_user_invokes_a_skill_by_its_name(kedge: Peer) -> None:
    skill(kedge.directory, "greet", "Greet them.")
    session = await kedge.session()
    await kedge.wait((await kedge.submit(session, "/greet Ann", expand=True))["run_id"])
    expanded = (await kedge.messages(session))[0]["parts"][0]["data"]["expanded"]
    assert expanded == '<skill name="greet">\nGreet them.\n</skill>\n\nArguments: Ann'


async def test_skill_is_only_for_the_user_or_only_for_the_model(kedge: Peer, endpoint: Endpoint) -> None:
    skill(kedge.directory, "deploy", settings="disable-model-invocation: true\n")
    skill(kedge.directory, "style", settings="user-invocable: false\n")
    session, tag = await kedge.session(), unique("tag")
    calls = [call("skill", name="deploy"), call("skill", name="style"), call("skill")]
    script = f"script: tag {tag} | {' | step | '.join(calls)} | say done"
    await kedge.wait((await kedge.submit(session, script))["run_id"])
    assert "Helps with deploy" not in str(endpoint.requests(tag)[0].body)
    refused, loaded, listed = results_of(await kedge.messages(session))
    assert refused["content"] == "Skill deploy not found. Skills: style."
    assert loaded["content"].startswith('<skill name="style">')
    assert listed["content"] == "- style: Helps with style."
    await kedge.submit(session, "/style", expand=True, expect=404)
    await kedge.wait((await kedge.submit(session, "/deploy", expand=True))["run_id"])
    commands = await kedge.call("GET", f"{kedge.at}/commands")
    assert [one["name"] for one in commands if one["kind"] == "skill"] == ["deploy"]


async def test_skill_with_permissions_or_scripts_is_inactive(kedge: Peer) -> None:
    """A skill cannot widen its own permissions, and no file can be added to a trusted one."""
    asking = skill(kedge.directory, "asking", settings="allowed-tools: Bash\nmodel: local/fake-small\n")
    scripted = skill(kedge.directory, "scripted")
    (scripted / "run.sh").write_text("echo hello")
    marked = skill(kedge.directory, "marked")
    (marked / "notes.md").write_text("text")
    (marked / "notes.md").chmod(0o755)
    plain = skill(kedge.directory, "plain")
    skills = {name: state for (name, _), state in (await states(kedge)).items() if state["kind"] == "skill"}
    conditions = {name: state["condition"] for name, state in skills.items()}
    assert conditions == dict.fromkeys(("asking", "scripted", "marked"), "untrusted") | {"plain": "ready"}
    for directory in (asking, scripted, marked):
        (result,) = await used(kedge, call("skill", name=directory.name))
        assert "not found" in result["content"]
        session = await kedge.session()
        await kedge.submit(session, f"/{directory.name}", expand=True, expect=404)
    # Loading one gives the Run no permission at all.
    loaded, ran = await used(kedge, call("skill", name=plain.name), call("bash", command="touch x"))
    assert not loaded["is_error"]
    assert ran["end"] == "not_run"
    assert not (kedge.directory / "x").exists()


async def test_trust_covers_all_files_of_a_skill(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    directory = skill(workspace, "scripted", settings="allowed-tools: Bash(touch made)\n")
    (directory / "run.sh").write_text("echo hello")
    shown = server.kedge("config", "trust", "--yes", cwd=workspace)
    assert "allowed-tools = bash(touch made)" in shown
    assert "files = run.sh" in shown
    async with server.peer(workspace) as kedge:
        assert (await states(kedge))["scripted", str(directory)]["condition"] == "ready"
        # Loaded by the model, it brings no permissions: those are for the user's own `/scripted`.
        loaded, ran = await used(kedge, call("skill", name="scripted"), call("bash", command="touch made"))
        assert (loaded["is_error"], ran["end"]) == (False, "not_run")
        (directory / "run.sh").write_text("echo other")
        assert (await states(kedge))["scripted", str(directory)]["condition"] == "untrusted"
        (directory / "run.sh").write_text("echo hello")
        assert (await states(kedge))["scripted", str(directory)]["condition"] == "ready"
        assert f"no longer trusted: {directory}" in server.kedge("config", "trust", "--revoke", cwd=workspace)
        assert (await states(kedge))["scripted", str(directory)]["condition"] == "untrusted"
