"""Faults that tests find which are there anyway: of what the simulator has no part of, or pretends."""

from __future__ import annotations

from tests.mutants.apply import Mutant

_CONTRACT = "tests/store/test_contract.py::"
_RECORDS = "tests/store/test_contract_records.py::"
_ASKS = "tests/store/test_contract_approvals.py::"
_SQLITE = "tests/store/test_sqlite.py::"
_DAMAGE = "tests/store/test_sqlite_damage.py::"
_PROCESSES = "tests/warden/test_processes.py::"
_TREES = "tests/warden/test_trees.py::"
_ACCESS = "tests/conformance/test_bad_access.py::"


def _by(test: str, name: str, module: str, old: str, new: str, hurts: str) -> Mutant:
    return Mutant(name, module, old, new, hurts, "tests", (test,))


STORES = (
    _by(
        "tests/store/test_power_cuts.py::test_a_loss_of_power_loses_nothing_that_was_promised[from 0]",
        "sqlite never waits for the disk",
        "store.sqlite_threads",
        "{'FULL' if durable else 'NORMAL'}",
        "NORMAL",
        "A power cut loses prompts that were accepted.",
    ),
    _by(
        "tests/store/test_failing_disk.py",
        "sqlite answers before it commits",
        "store.sqlite_threads",
        '            self.db.execute("COMMIT")\n',
        '            self._deliver(answers)\n            self.db.execute("COMMIT")\n',
        "A prompt is accepted and lost with a full disk.",
    ),
    _by(
        _CONTRACT + "test_a_write_whose_last_part_is_refused_leaves_nothing",
        "a refused write leaves its traces",
        "store.sqlite_threads",
        'self.db.execute("ROLLBACK TO one")',
        "pass",
        "Half of a refused Write is stored.",
    ),
    _by(
        _CONTRACT + "test_a_lane_must_have_the_version_the_write_was_decided_on",
        "sqlite does not look at the version of a lane",
        "store.sqlite_write",
        "if version != write.expected_version:",
        "if False:",
        "Two servers decide about one Lane, and the second undoes the first.",
    ),
    _by(
        _CONTRACT + "test_a_lane_must_have_the_version_the_write_was_decided_on",
        "memory does not look at the version of a lane",
        "store.memory",
        "if lane.version != expected:",
        "if False:",
        "Two servers decide about one Lane, and the second undoes the first.",
    ),
    _by(
        _CONTRACT + "test_a_second_end_of_a_run_is_refused_whatever_else_is_in_the_write",
        "memory lets a run end twice",
        "store.memory",
        "if recorded or key in log.ended or key in ended:",
        "if False:",
        "A Run ends twice, with two outcomes.",
    ),
    _by(
        _CONTRACT + "test_a_second_end_is_refused_also_when_the_log_has_forgotten_the_first",
        "sqlite lets a run end twice",
        "store.sqlite_write",
        'if row.kind == "RunEnded" and _has_ended(db, workspace_id, row):',
        "if False:",
        "A Run ends twice, with two outcomes.",
    ),
    _by(
        _CONTRACT + "test_a_damaged_entry_is_refused_and_named",
        "the hash chain is not checked",
        "store.codec",
        "if row.hash != chain_hash(previous, row.position, row.session_id, row.payload):",
        "if False:",
        "A damaged disk serves wrong history.",
    ),
    _by(
        _DAMAGE + "test_the_ends_of_the_log_are_checked_too",
        "the end of the log is not checked",
        "store.sqlite_read",
        "if rows[-1].position == head and rows[-1].hash != head_hash:",
        "if False:",
        "A damaged disk serves wrong history.",
    ),
    _by(
        _DAMAGE + "test_a_database_that_lost_its_end_is_refused_until_somebody_decides",
        "a database that lost its end is used",
        "store.witness",
        "if reached < known:",
        "if False:",
        "Accepted prompts vanish without a word.",
    ),
    _by(
        _CONTRACT + "test_a_record_of_another_workspace_is_refused",
        "records of other workspaces are written",
        "store.codec",
        "if owner != write.workspace_id:",
        "if False:",
        "One workspace changes the sessions of another.",
    ),
    _by(
        _RECORDS + "test_tails_are_part_of_the_message_until_it_is_put_whole",
        "sqlite keeps tails behind the whole message",
        "store.sqlite_write",
        '    db.execute("DELETE FROM message_tails WHERE message = ?", (ordinal,))\n',
        "",
        "The end of an answer is stored twice.",
    ),
    _by(
        _ASKS + "test_the_first_answer_wins",
        "sqlite settles an ask twice",
        "store.sqlite_write",
        'if state != "pending" and codec.decode_ask(record) != ask:',
        "if False:",
        "A denial is turned into an approval.",
    ),
    _by(
        _ASKS + "test_the_first_answer_wins",
        "memory settles an ask twice",
        "store.memory",
        'if held.state != "pending" and held != ask:',
        "if False:",
        "A denial is turned into an approval.",
    ),
    _by(
        _SQLITE + "test_a_second_process_is_refused_with_the_pid_of_the_first",
        "two servers share a data directory",
        "store.datadir",
        "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "Two servers work on the same Runs.",
    ),
    _by(
        _SQLITE + "test_files_that_others_could_read_are_closed_to_them",
        "others may read what is stored",
        "store.datadir",
        "os.fchmod(opened, 0o600)",
        "pass",
        "Other users of the machine read the transcripts.",
    ),
    _by(
        _SQLITE + "test_a_deleted_session_leaves_no_row_behind",
        "a deleted session leaves its prompts",
        "store.sqlite_write",
        '    db.execute("DELETE FROM lanes WHERE session_id = ? AND workspace_id = ?", key)\n',
        "",
        "What people deleted is still there.",
    ),
    _by(
        _DAMAGE + "test_a_migration_that_fails_leaves_the_old_version",
        "a migration is no transaction",
        "store.migrations",
        '    db.execute("BEGIN IMMEDIATE")\n    try:\n        for migration',
        "    try:\n        for migration",
        "A server killed while it brings its database up to date never starts again.",
    ),
)

CORE = (
    _by(
        "tests/core/test_claims.py",
        "a claim lapses early",
        "core.claims",
        "until=now + self.grace_ms))",
        "until=now))",
        "A short loss of the network closes the workspace and cancels Runs.",
    ),
    _by(
        "tests/core/test_claims.py",
        "a claim never lapses",
        "core.claims",
        "claim.until is None or claim.until > now}",
        "claim.until is None or claim.until > 0}",
        "Workspaces are never closed again.",
    ),
    _by(
        "tests/core/test_claims.py",
        "a release takes the open streams along",
        "core.claims",
        "replace(claim, released=True)) if claim.streams else self._without(client_id)",
        "replace(claim, released=True)) if not claim.streams else self._without(client_id)",
        "A workspace is closed under an open stream.",
    ),
    _by(
        "tests/core/test_claims.py",
        "creating again gives an open stream a deadline",
        "core.claims",
        "until=None if claim.streams else now + self.hold_ms",
        "until=now + self.hold_ms",
        "A workspace is closed under an open stream.",
    ),
    _by(
        "tests/core/test_approvals.py",
        "looking is never denied",
        "core.approvals",
        "        if _denies(rule, intent):",
        "        if intent.needs_leave and _denies(rule, intent):",
        "A file that a rule hides is read.",
    ),
    _by(
        "tests/core/test_approvals.py",
        "a star spans directories",
        "core.approvals",
        '"*": "[^/]*"',
        '"*": ".*"',
        "A rule allows more files than it says.",
    ),
    _by(
        "tests/core/test_approvals.py",
        "a wildcard covers what runs other programs",
        "core.approvals",
        "if intent.exact_only and _has_wildcard(pattern) and not _names_its_module(pattern):",
        "if False:",
        "`env *` allows every command there is.",
    ),
    _by(
        "tests/core/test_approvals.py",
        "a grant of nothing covers everything without a rule",
        "core.approvals",
        "if intent.grant and grant.rule == intent.grant:",
        "if grant.rule in ('', intent.grant):",
        "What people allowed once is allowed for all.",
    ),
    _by(
        "tests/core/test_approvals.py",
        "a rule covers longer commands",
        "core.approvals",
        "return len(wanted) == len(words) and all(map(_word_matches, words, wanted))",
        "return len(wanted) <= len(words) and all(map(_word_matches, words, wanted))",
        "`git push` allows `git push --force`.",
    ),
    _by(
        "tests/core/test_step.py",
        "one step too many",
        "core.step",
        "if progress.steps >= limits.steps_max:",
        "if progress.steps > limits.steps_max:",
        "A Run takes more Steps than its limit.",
    ),
    _by(
        "tests/core/test_step.py",
        "a budget is passed",
        "core.step",
        "progress.cost_usd >= limits.budget_usd",
        "progress.cost_usd > limits.budget_usd + 1",
        "A Run costs more than its budget.",
    ),
)

ENGINE = (
    _by(
        "tests/conformance/test_b_tools.py::test_a_grant_stands_for_its_rule_and_no_more",
        "a session's grant holds in all sessions",
        "engine.approving",
        'scope = ask.session_id if answer == "allow_session" else ""',
        'scope = ""',
        "What was allowed for one session is allowed in every one.",
    ),
    _by(
        "tests/engine/test_call_ids.py",
        "calls with the same id are one",
        "engine.runner",
        "        if call.id in active.call_ids:\n",
        "        if False:\n",
        "A call is not made, or the provider refuses the history.",
    ),
    _by(
        "tests/server/test_stream.py",
        "a reader without a place gets no gap",
        "engine.feed",
        'gap = self.encoder.gap("evicted" if trimmed else "epoch", head)',
        'gap = b""',
        "A client that comes back after a wiped data directory shows what is no longer true.",
    ),
)

SERVER = (
    _by(
        _ACCESS + "test_without_the_token_no_route_answers[none]",
        "streams need no token",
        "server.app",
        "needs_token=not public)",
        'needs_token=not public and not scope["path"].endswith("/events"))',
        "Every program on the machine reads along.",
    ),
    _by(
        _ACCESS + "test_with_a_foreign_host_no_route_answers[evil.example]",
        "any host will do",
        "server.auth",
        "if address is not None and (address.is_loopback or self.remote):",
        "if address is None or address.is_loopback or self.remote:",
        "A web page whose name is pointed at this machine commands the agent.",
    ),
    _by(
        _ACCESS + "test_from_a_foreign_page_no_route_answers",
        "pages of other sites are let in",
        "server.auth",
        'if any(site not in (b"same-origin", b"none") for site in sites):',
        "if False:",
        "A web page commands the agent.",
    ),
)

WARDEN = (
    _by(
        _TREES + "test_nothing_of_a_tree_is_alive_after_its_end[subreaper-ignores SIGTERM]",
        "what is to be killed is asked",
        "warden.processes",
        "send(pid, signal.SIGKILL)",
        "send(pid, signal.SIGTERM)",
        "A command that ignores SIGTERM lives for ever.",
    ),
    _by(
        _TREES + "test_nothing_of_a_tree_is_alive_after_its_end[subreaper-daemon]",
        "daemons escape",
        "warden.subreaper",
        "        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)\n",
        "",
        "A command that becomes a daemon outlives its Run.",
    ),
    _by(
        _PROCESSES + "test_the_keeper_itself_has_no_environment_a_tool_could_read",
        "the keeper has the environment of the server",
        "warden.link",
        "env={},",
        "env=None,",
        "A command reads the keys of the server.",
    ),
    _by(
        _PROCESSES + "test_a_process_leads_its_own_session_without_a_terminal",
        "a tool has no session of its own",
        "warden.child",
        "    os.setsid()\n",
        "",
        "A command reads from the terminal of the server.",
    ),
    _by(
        _PROCESSES + "test_a_process_begins_with_a_clean_slate",
        "a tool inherits ignored signals",
        "warden.child",
        "signal.signal(number, signal.SIG_DFL)",
        "pass",
        "A command cannot be interrupted.",
    ),
    _by(
        _PROCESSES + "test_grace_lets_a_process_say_goodbye",
        "nobody is asked before he is killed",
        "warden.overseer",
        "                self._ask()\n",
        "                pass\n",
        "Commands lose their work at each cancel.",
    ),
    _by(
        _TREES + "test_a_keeper_lost_between_runs_is_replaced",
        "a lost keeper is noticed too late",
        "warden.warden",
        "                self._link.look()\n",
        "                pass\n",
        "The first command after the loss of the keeper fails.",
    ),
    _by(
        _TREES + "test_the_keeper_ignores_what_a_terminal_or_a_shutdown_sends",
        "ctrl-c ends the keeper",
        "warden.keeper",
        "signal.signal(number, signal.SIG_IGN)",
        "pass",
        "Ctrl-C kills the commands before the server can end them.",
    ),
    _by(
        "tests/warden/test_sandbox.py::test_it_writes_in_the_workspace_and_nowhere_else",
        "the sandbox is open",
        "warden.child",
        '        landlock.restrict(order["writable"])',
        "        pass",
        "A command in the sandbox writes everywhere.",
    ),
)
