"""Approvals: whether a tool call may happen, who has to be asked, and what an answer covers.

Pure, like the Lane. A tool says exactly what it is about to do (an Intent). Rules and grants either settle it or leave
it to people; then an Ask is put to them, durably, and the first answer wins.

    deny rule                        denied, whatever else is said
    needs nobody's leave             allowed (looking at files of the workspace, for example)
    allow rule, or a grant           allowed
    approvals are skipped            allowed
    too large to be shown            refused: nobody is asked about what they cannot see
    anything else                    people are asked

An answer is bound to the Intent's digest (`binding`): the exact command, directory, environment and file content. A
tool whose world has changed while people thought it over does not act on their answer.

Rules are written `bash(git status)`, `edit(src/**)`, `fetch(docs.python.org)`, or the bare name of a tool. For commands
an allow rule covers a single simple command with literal words only; a deny rule looks at every command in the line.
A command that runs others (`env`, `find -exec`, `python x.py`) is covered by a rule that spells it in full, or by
`python -m pytest *`, which says what runs. The bare `bash` covers every command there is.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from kedge.errors import Invalid

#: Of a rule, in characters: a command line a person would still read.
RULE_CHARS_MAX = 1000

Leave = Literal["allow", "deny", "refuse", "ask"]
#: What people may answer to an approval.
Answer = Literal["allow", "allow_session", "allow_always", "deny"]


class Intent(Struct, frozen=True):
    """What a tool call is about to do."""

    #: Names under which rules may speak of it, the tool's own first: ("multiedit", "edit").
    names: tuple[str, ...]
    #: One word: execute, write, read, fetch.
    action: str
    #: What it is about: the whole command, a path (relative inside the workspace, else absolute), a host name.
    subject: str
    #: One line for people.
    description: str
    #: The file or directory it happens in.
    path: str
    #: All that people must see to decide, as JSON text: the command, the diff.
    params: str
    #: Digest of everything the answer is bound to.
    binding: str
    #: False: only a deny rule keeps it from happening.
    needs_leave: bool = True
    #: A command: its words, if it is a single simple command with literal words only.
    words: tuple[str, ...] | None = None
    #: A command: the words of every command in the line, None for one that is not literal. For deny rules.
    commands: tuple[tuple[str | None, ...], ...] = ()
    #: It runs other programs (`env`, `find -exec`) or touches what guards this machine (.git/hooks): a rule with a
    #: wildcard does not cover it, only one that names it in full.
    exact_only: bool = False
    #: The rule that "for this session" and "always" stand for, as people are shown it. Empty: there is none to offer.
    grant: str = ""
    #: Why people cannot be shown all of it; then they are not asked. Empty: they can.
    unshown: str = ""
    #: A path as it was given, if a link led elsewhere: a deny rule may speak of either name.
    given: str = ""


class Rule(Struct, frozen=True):
    tool: str
    #: None: every call of the tool.
    pattern: str | None = None

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"


_RULE = re.compile(r"([A-Za-z_][\w.-]*\*?|\*)(?:\((.+)\))?", re.DOTALL)


@lru_cache(maxsize=1000)
def parse_rule(text: str) -> Rule:
    """Invalid when it is none; the message says what one looks like."""
    found = _RULE.fullmatch(text.strip()) if len(text) <= RULE_CHARS_MAX else None
    if found is None:
        raise Invalid(f"{text[:100]!r} is no rule; write one as bash(git status), edit(src/**) or view")
    return Rule(found[1], found[2].strip() if found[2] else None)


class Rules(Struct, frozen=True):
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()

    def __add__(self, other: Rules) -> Rules:
        return Rules(self.allow + other.allow, self.deny + other.deny)


def parse_rules(allow: tuple[str, ...] | list[str], deny: tuple[str, ...] | list[str]) -> Rules:
    return Rules(tuple(map(parse_rule, allow)), tuple(map(parse_rule, deny)))


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


def granted_in(rule: str, directory: str) -> str:
    """What a grant for a command in a directory of the workspace is called; at its root it is called like the rule."""
    return f"{rule} in {directory}"


def rule_of(grant: str) -> str:
    """The rule that would allow the same, and more."""
    return grant[: grant.index(") in ") + 1] if ") in " in grant else grant


class Permit(Struct, frozen=True):
    """What rules and grants say of an Intent, and which of them said it."""

    leave: Leave
    reason: str = ""


def permit(intent: Intent, rules: Rules, grants: tuple[Grant, ...], *, skip: bool = False) -> Permit:
    """`grants` are those of the workspace; the caller leaves out those of other sessions."""
    for rule in rules.deny:
        if _denies(rule, intent):
            return Permit("deny", f"the rule {rule} denies it")
    if not intent.needs_leave:
        return Permit("allow")
    for rule in rules.allow:
        if _allows(rule, intent):
            return Permit("allow", f"the rule {rule} allows it")
    for grant in grants:
        if intent.grant and grant.rule == intent.grant:
            return Permit("allow", f"it was allowed before: {grant.rule}")
    if skip:
        return Permit("allow", "approvals are skipped")
    return Permit("refuse", f"it needs an approval, but {intent.unshown}") if intent.unshown else Permit("ask")


def is_hidden(rules: Rules, path: str) -> bool:
    """Whether a deny rule keeps this file from being viewed."""
    named = [rule.pattern for rule in rules.deny if rule.pattern is not None and fnmatchcase("view", rule.tool)]
    return any(path_matches(pattern, path) for pattern in named)


def _allows(rule: Rule, intent: Intent) -> bool:
    if not any(fnmatchcase(name, rule.tool) for name in intent.names):
        return False
    pattern = rule.pattern
    if intent.action == "execute":
        if pattern is None:  # whoever allows every command allows these too
            return True
        if intent.exact_only and _has_wildcard(pattern) and not _names_its_module(pattern):
            return False
        return intent.words is not None and words_match(pattern, intent.words)
    if intent.exact_only and (pattern is None or _has_wildcard(pattern)):
        return False
    return pattern is None or path_matches(pattern, intent.subject)


def _has_wildcard(text: str) -> bool:
    return "*" in text or "?" in text


def _names_its_module(pattern: str) -> bool:
    """`python -m pytest *` says what runs, though python runs anything: here the wildcard is for the module's
    own arguments. `python *`, `python -m *` and `env python -m pytest *` do not say it."""
    program, option, module, *_ = [*pattern.split(), "", "", ""]
    return re.fullmatch(r"python[\d.]*", program) is not None and option == "-m" and not _has_wildcard(module or "*")


def _denies(rule: Rule, intent: Intent) -> bool:
    if not any(fnmatchcase(name, rule.tool) for name in intent.names):
        return False
    if rule.pattern is None:
        return True
    if intent.action != "execute":
        # In a workspace a file goes by its place in it; a rule may name it in full all the same.
        return any(path_matches(rule.pattern, name) for name in (intent.subject, intent.given, intent.path) if name)
    # A word that is not literal may turn out to be anything, the denied word included.
    return any(words_match(rule.pattern, command) for command in intent.commands)


def words_match(pattern: str, words: tuple[str | None, ...]) -> bool:
    """`git status` is these two words; `git *` is git with any further words; `npm run test:*` has a wildcard inside.
    A word that is None (not literal) may turn out to be any number of words: only deny rules are given such words."""
    wanted = pattern.split()
    if None in words:
        words = words[: words.index(None)]
        return all(map(_word_matches, words, wanted)) if len(words) <= len(wanted) or wanted[-1:] == ["*"] else False
    if wanted and wanted[-1] == "*":
        wanted.pop()
        if len(words) < len(wanted):
            return False
        words = words[: len(wanted)]
    return len(wanted) == len(words) and all(map(_word_matches, words, wanted))


def _word_matches(word: str | None, wanted: str) -> bool:
    # `*` and `?` are all the wildcards there are, as in paths.
    return word is not None and fnmatchcase(word, wanted.replace("[", "[[]"))


def path_matches(pattern: str, path: str) -> bool:
    """`*` and `?` stay within one part of a path, `**` spans any number of them."""
    return _path_pattern(pattern).fullmatch(path) is not None


@lru_cache(maxsize=1000)
def _path_pattern(pattern: str) -> re.Pattern[str]:
    expression = ""
    for piece in re.split(r"(\*\*/|\*\*|\*|\?)", pattern):
        expression += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(piece) or re.escape(piece)
    return re.compile(expression, re.DOTALL)


class Ask(Struct, frozen=True):
    """Something a tool call puts to people: an approval (may it?) or a question of its own (which of these?).

    Pending until the first answer; withdrawn when the Run is told to stop or ends."""

    id: str
    workspace_id: str
    session_id: str
    run_id: str
    tool_call_id: str
    tool: str
    kind: Literal["approval", "question"]
    asked_at: int
    #: One line for people. `params`: all of it, as JSON text.
    description: str
    params: str
    action: str = ""
    path: str = ""
    grant: str = ""
    binding: str = ""
    state: Literal["pending", "answered", "withdrawn"] = "pending"
    #: An Answer; for a question "answered" or "cancelled".
    answer: str = ""
    #: What a person typed: why not, or the answers to a question as JSON text.
    message: str = ""
    answered_by: str = ""
    answered_at: int | None = None

    @property
    def is_allowed(self) -> bool:
        return self.answer in ("allow", "allow_session", "allow_always")
