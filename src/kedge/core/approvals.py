"""Approvals: whether a tool call is allowed, denied or needs an answer of the user, and what an answer covers.

Pure, like the Lane. A tool describes exactly what it is about to do (an Intent). Rules and grants decide, or else the
user is asked: an Ask is stored, and the first answer wins.

    deny rule                        denied, always
    needs no approval                allowed (reading files of the workspace, for example)
    allow rule, or a grant           allowed
    a hook allows it                 allowed, except for guarded files and the like
    approvals are skipped            allowed
    too large to display             refused: the user cannot approve what is not displayed
    anything else                    the user is asked

An answer is bound to the Intent's digest (`binding`): the exact command, directory, environment and file content. If
these have changed when the answer arrives, the tool does not act on it.

Rules are written `bash(git status)`, `edit(src/**)`, `fetch(docs.python.org)`, or the bare name of a tool. A line of
simple commands is allowed if each of them (`IntentPart`) is read-only or covered by a rule or grant; a deny rule is
compared with every command in the line, and one that ends in `*` (`git push*`) also with commands that have further
words. A rule with a wildcard names the program, and covers only arguments that the table of programs lists; a command
with others (`find -exec`, `python x.py`) is covered by a rule that spells it in full. The bare `bash` covers every
command. Rules for paths may start with `/`, `~/` or `./`; `secret/` covers the contents of that directory, and denying
`secret` also denies them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.patterns import has_wildcard, path_matches, word_matches
from kedge.errors import Invalid

#: Length of a rule: a command line that a user would still read. Characters.
RULE_CHARS_MAX = 1000
#: Parsed rules in the cache: more than a configuration has. Items.
PARSED_MAX = 1000

Decision = Literal["allow", "deny", "refuse", "ask"]
#: How the processes of a call are confined. "configured": as the setting `sandbox.mode` says. "workspace": they write
#: only in the workspace and the temporary directory, guarded files excepted, and have no network. "read_only": they
#: write nothing, and have no network.
Confinement = Literal["configured", "workspace", "read_only"]
#: `Ask.answered_by` of an approval that no client answered: a rule, a grant or the mode came to permit the call.
BY_RULE = "rule"
#: The user's answer to an approval.
Answer = Literal["allow", "allow_session", "allow_always", "deny"]


class IntentPart(Struct, frozen=True):
    """A simple command of a line."""

    #: None: a word is not literal, or the command runs outside of the workspace. No rule with a pattern covers it.
    words: tuple[str, ...] | None
    #: It needs no rule.
    is_read_only: bool = False
    #: It runs other programs (`env`, `find -exec`), or names a file that protects this machine (.git/hooks) or holds
    #: credentials: only a rule without a wildcard covers it.
    exact_only: bool = False
    #: Number of its first words that a rule with a wildcard must spell: `python -m build` has three.
    spelled: int = 1
    #: Its directory, relative to the workspace. Empty: the root.
    directory: str = ""
    #: The pattern of the widest sensible rule, such as `npm test *`. Empty: none is offered.
    wide: str = ""


class Intent(Struct, frozen=True):
    """The action that a tool call is about to take."""

    #: Names that rules may use for it, the tool's own first: ("multiedit", "edit").
    names: tuple[str, ...]
    #: One word: execute, write, read, fetch.
    action: str
    #: Its object: the whole command, a path (relative inside the workspace, else absolute), a host name.
    subject: str
    #: One line for the user.
    description: str
    #: The file or directory it happens in.
    path: str
    #: Everything that the user must see to decide, as JSON text: the command, the diff.
    params: str
    #: Digest of everything the answer is bound to.
    binding: str
    #: False: only a deny rule can prevent it.
    needs_approval: bool = True
    #: A command: the simple commands of the line. None: there is something else in it.
    parts: tuple[IntentPart, ...] | None = None
    #: A command: the words of every command in the line, None for one that is not literal. For deny rules.
    commands: tuple[tuple[str | None, ...], ...] = ()
    #: It changes files that protect this machine (.git/hooks), or names a file with credentials: only a rule without a
    #: wildcard covers it, and mode auto asks.
    exact_only: bool = False
    #: The rule that "for this session" and "always" grant, as displayed. Empty: neither is offered.
    grant: str = ""
    #: A command: the alternatives of rules to grant, see `core.offers`, the narrowest first. That one is `grant`.
    offers: tuple[tuple[str, ...], ...] = ()
    #: Why it cannot be displayed in full; then the user is not asked. Empty: it can.
    unshown: str = ""
    #: A command: why it must run without the confinement of a mode or rule. It always asks. Empty: it need not.
    escalation: str = ""
    #: A command that continues after its Run: a rule or mode can allow that, but no grant, and not that it only reads.
    outlives_run: bool = False
    #: Further files that it changes, as subjects. A deny rule for one of them denies it; an allow rule must cover all.
    also: tuple[str, ...] = ()
    #: The path before links were resolved, if it differs: a deny rule may use either name.
    unresolved: str = ""


class Rule(Struct, frozen=True):
    tool: str
    #: None: every call of the tool.
    pattern: str | None = None
    #: The home directory that a leading `~` stands for, by each of its names. Empty where there is no such `~`.
    homes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"

    @property
    def has_wildcard(self) -> bool:
        """True if the pattern covers more than one path. `secret/` does."""
        return self.pattern is None or any(map(has_wildcard, path_patterns(self.pattern, self.homes)))

    def matches_path(self, path: str) -> bool:
        if self.pattern is None:
            return True
        if self.pattern.startswith("./") and path.startswith("/"):
            return False  # `./**` is the workspace, `**` is every path
        return any(path_matches(pattern, path) for pattern in path_patterns(self.pattern, self.homes))

    def denies_path(self, path: str) -> bool:
        """Return whether the rule denies the path. `view(secret)` also denies the contents of that directory."""
        if self.matches_path(path):
            return True
        if self.pattern is None or has_wildcard(self.pattern.rpartition("/")[2]):
            return False
        return Rule(self.tool, f"{self.pattern}/", self.homes).matches_path(path)


@lru_cache(maxsize=PARSED_MAX)
def path_patterns(pattern: str, homes: tuple[str, ...]) -> tuple[str, ...]:
    """Normalise a pattern: `~/x` becomes absolute, `./x` and `a//x` lose redundant parts, and `secret/` becomes
    `secret/**`. `..` stays, and matches nothing: a link may lead elsewhere."""
    if pattern == "~" or pattern.startswith("~/"):
        # A wildcard in the name of a home directory would cover those of others.
        written = [home + pattern[1:] for home in homes if not has_wildcard(home)]
    else:
        written = [pattern]
    return tuple(map(_normal, written))


def _normal(pattern: str) -> str:
    root = "/" if pattern.startswith("/") else ""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.endswith("/"):
        parts.append("**")
    return root + "/".join(parts) or "."


_RULE = re.compile(r"([A-Za-z_][\w.-]*\*?|\*)(?:\((.+)\))?", re.DOTALL)


@lru_cache(maxsize=PARSED_MAX)
def parse_rule(text: str, homes: tuple[str, ...] = ()) -> Rule:
    """Parse a rule. Raises Invalid with an example. `homes`: the directories that a leading `~` stands for."""
    match = _RULE.fullmatch(text.strip()) if len(text) <= RULE_CHARS_MAX else None
    pattern = match[2].strip() if match is not None and match[2] else None
    if match is None or pattern == "":
        raise Invalid(f"{text[:100]!r} is not a valid rule. Examples: bash(git status), edit(src/**), view.")
    return Rule(match[1], pattern, homes if pattern is not None and pattern.startswith("~") else ())


class Rules(Struct, frozen=True):
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()


def parse_rules(allow: Iterable[str], deny: Iterable[str], homes: tuple[str, ...] = ()) -> Rules:
    return Rules(tuple(parse_rule(text, homes) for text in allow), tuple(parse_rule(text, homes) for text in deny))


class Grant(Struct, frozen=True):
    """A standing answer: "allow for this session" or "allow always" in this workspace."""

    id: str
    workspace_id: str
    #: Empty: always.
    session_id: str
    #: As `Intent.grant` had it.
    rule: str
    created_at: int
    #: The client that gave it.
    given_by: str = ""
    #: The user who gave it. Empty: the owner.
    author: str = ""


def granted_in(rule: str, directory: str) -> str:
    """Return the name of a grant for a command in a directory of the workspace; at its root it is the rule itself."""
    return f"{rule} in {directory}"


def rule_of(grant: str) -> str:
    """Return the rule that allows what the grant allows, in any directory."""
    return grant[: grant.index(") in ") + 1] if ") in " in grant else grant


@lru_cache(maxsize=PARSED_MAX)
def split_grant(grant: str) -> tuple[Rule, str]:
    """Return the rule of a grant for a command, and its directory."""
    rule = rule_of(grant)
    return parse_rule(rule), grant[len(rule) + len(" in ") :]


class Permit(Struct, frozen=True):
    """The decision on an Intent, and the rule or grant that made it."""

    decision: Decision
    reason: str = ""
    confinement: Confinement = "configured"
    #: The user has allowed exactly this call.
    is_answer: bool = False


def permit(
    intent: Intent, rules: Rules, grants: tuple[Grant, ...], *, skip: bool = False, hook_allows: bool = False
) -> Permit:
    """Decide on an Intent. `grants`: those of the workspace, without those of other sessions."""
    named: dict[str | None, list[tuple[str | None, ...]]] = {}
    for command in intent.commands:  # a line may have thousands, and most rules name one program
        named.setdefault(command[0] if command else None, []).append(command)
    for rule in rules.deny:
        if _denies(rule, intent, named):
            return Permit("deny", f"the rule {rule} denies it")
    if not intent.needs_approval:
        return Permit("allow", confinement="read_only" if intent.action == "execute" else "configured")
    allowed = _permit_line(intent, rules, grants) if intent.action == "execute" else _permit_path(intent, rules, grants)
    if allowed is not None:
        return allowed
    if hook_allows and _hook_covers(intent):
        return Permit("allow", "a hook allows it", "workspace" if intent.action == "execute" else "configured")
    if skip:
        return Permit("allow", "approvals are skipped")
    return Permit("refuse", f"it needs an approval, but {intent.unshown}") if intent.unshown else Permit("ask")


def _hook_covers(intent: Intent) -> bool:
    """Return whether the "allow" of a hook covers an Intent. It is like a rule with a wildcard: not for guarded files,
    nor for commands that run other programs, continue after their Run, or are not simple commands."""
    if intent.exact_only or intent.outlives_run:
        return False
    if intent.action != "execute":
        return True
    return bool(intent.parts) and not any(part.exact_only or part.words is None for part in intent.parts or ())


def is_hidden(rules: Rules, path: str) -> bool:
    """Return whether a deny rule forbids viewing this file."""
    return any(rule.denies_path(path) for rule in _hiding(rules))


def hides_files(rules: Rules) -> bool:
    """Return whether a deny rule forbids viewing some files."""
    return bool(_hiding(rules))


def _hiding(rules: Rules) -> list[Rule]:
    return [rule for rule in rules.deny if rule.pattern is not None and fnmatchcase("view", rule.tool)]


def _permit_path(intent: Intent, rules: Rules, grants: tuple[Grant, ...]) -> Permit | None:
    for rule in rules.allow:
        if _allows_path(rule, intent):
            return Permit("allow", f"the rule {rule} allows it")
    for grant in grants:
        if intent.grant and grant.rule == intent.grant:
            return Permit("allow", f"it was allowed before: {grant.rule}")
    return None


def _allows_path(rule: Rule, intent: Intent) -> bool:
    if not _names(rule, intent) or (intent.exact_only and rule.has_wildcard):
        return False
    # The subject of a file in the workspace is its relative path; a rule may use the absolute path.
    is_absolute = rule.pattern is not None and rule.pattern.startswith(("/", "~"))
    names = (intent.subject, intent.path) if is_absolute else (intent.subject,)
    return any(map(rule.matches_path, names)) and all(map(rule.matches_path, intent.also))


def _permit_line(intent: Intent, rules: Rules, grants: tuple[Grant, ...]) -> Permit | None:
    """Return the permission of a line whose every part is read-only or covered by a rule or grant."""
    named = [rule for rule in rules.allow if _names(rule, intent)]
    for rule in named:
        if rule.pattern is None:
            return Permit("allow", f"the rule {rule} allows it")
    reasons: dict[str, None] = {}
    has_wildcards = False
    for part in intent.parts or (IntentPart(None),):
        if part.is_read_only:
            continue
        covering = _covering(part, named, () if intent.outlives_run else grants)
        if covering is None:
            return None
        reason, is_wild = covering
        reasons[reason] = None
        has_wildcards = has_wildcards or is_wild
    if not reasons and intent.outlives_run:
        return None
    return Permit("allow", ", ".join(reasons), "workspace" if has_wildcards else "configured")


def _covering(part: IntentPart, rules: list[Rule], grants: tuple[Grant, ...]) -> tuple[str, bool] | None:
    """Return why a part is covered, and whether only by a wildcard. An exact rule counts first: it confines less."""
    wild = ""
    for rule in rules:
        if covers(rule, part):
            reason = f"the rule {rule} allows it"
            if not has_wildcard(rule.pattern or ""):
                return reason, False
            wild = wild or reason
    for grant in grants:
        rule, directory = split_grant(grant.rule)
        if directory == part.directory and rule.tool == "bash" and covers(rule, part):
            reason = f"it was allowed before: {grant.rule}"
            if not has_wildcard(rule.pattern or ""):
                return reason, False
            wild = wild or reason
    return (wild, True) if wild else None


def covers(rule: Rule, part: IntentPart) -> bool:
    """Return whether a rule with a pattern covers a simple command."""
    if rule.pattern is None or part.words is None:
        return False
    patterns = _split(rule.pattern)
    if has_wildcard(rule.pattern):
        head = patterns[: part.spelled]
        if part.exact_only or len(head) < part.spelled or any(map(has_wildcard, head)):
            return False
    return words_match(rule.pattern, part.words)


def _names(rule: Rule, intent: Intent) -> bool:
    return any(fnmatchcase(name, rule.tool) for name in intent.names)


def _denies(rule: Rule, intent: Intent, named: dict[str | None, list[tuple[str | None, ...]]]) -> bool:
    """`named`: the commands of the intent, by their first word."""
    if not _names(rule, intent):
        return False
    if rule.pattern is None:
        return True
    if intent.action != "execute":
        # The subject of a file in the workspace is its relative path; a rule may use the absolute path.
        names = (intent.subject, intent.unresolved, intent.path, *intent.also)
        return any(rule.denies_path(name) for name in names if name)
    patterns = _split(rule.pattern)
    program, last = patterns[0], patterns[-1]
    # A user who denies `git push*` means `git push origin` as well.
    pattern = f"{rule.pattern} *" if last.endswith("*") and last != "*" else rule.pattern
    # A word that is not literal may turn out to be anything, the denied word included.
    commands = intent.commands if has_wildcard(program) else (*named.get(program, ()), *named.get(None, ()))
    return any(words_match(pattern, command) for command in commands)


def words_match(pattern: str, words: tuple[str | None, ...]) -> bool:
    """Compare a command with a pattern: `git status` is these two words, `git *` is git with any further words, and
    `npm run test:*` has a wildcard inside a word. A word that is None (not literal) may expand to any number of
    words; only deny rules are compared with those."""
    patterns = _split(pattern)
    is_open = patterns[-1:] == ("*",)
    if None in words:
        words = words[: words.index(None)]
        return (len(words) <= len(patterns) or is_open) and _all_match(words, patterns)
    if is_open:
        patterns = patterns[:-1]
        return len(patterns) <= len(words) and _all_match(words, patterns)
    return len(patterns) == len(words) and _all_match(words, patterns)


@lru_cache(maxsize=PARSED_MAX)
def _split(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split())


def _all_match(words: tuple[str | None, ...], patterns: tuple[str, ...]) -> bool:
    """Compare word by word, up to the shorter length. The wildcards are `*` and `?`, as in paths."""
    for word, pattern in zip(words, patterns, strict=False):
        if word != pattern and (word is None or not has_wildcard(pattern) or not word_matches(pattern, word)):
            return False
    return True


class Ask(Struct, frozen=True):
    """A request of a tool call to the user: an approval or a question.

    Pending until the first answer; withdrawn when the Run is cancelled or ends."""

    id: str
    workspace_id: str
    session_id: str
    run_id: str
    tool_call_id: str
    tool: str
    kind: Literal["approval", "question"]
    asked_at: int
    #: One line for the user. `params`: all details, as JSON text.
    description: str
    params: str
    action: str = ""
    path: str = ""
    grant: str = ""
    #: As those of the Intent: alternatives of rules to grant, and the commands that edited rules must cover.
    offers: tuple[tuple[str, ...], ...] = ()
    parts: tuple[IntentPart, ...] = ()
    binding: str = ""
    state: Literal["pending", "answered", "withdrawn"] = "pending"
    #: An Answer; for a question "answered" or "cancelled".
    answer: str = ""
    #: The user's text: a reason for a denial, or the answers to a question as JSON text. By rule: what permits it.
    message: str = ""
    answered_by: str = ""
    answered_at: int | None = None
    #: The user who answered. Empty: the owner, a rule or the mode.
    author: str = ""

    @property
    def is_allowed(self) -> bool:
        return self.answer in ("allow", "allow_session", "allow_always")

    def allowed_by_rule(self, reason: str, now: int) -> Ask:
        return replace(self, state="answered", answer="allow", message=reason, answered_by=BY_RULE, answered_at=now)
