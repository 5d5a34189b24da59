"""Rules for the language of the product: plain technical English, one name per thing.

`python -m tests.test_house_language PATH...` lists every breach below the paths.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.source import ROOT, SRC, web_files

#: Phrases for comments, docstrings, messages and documents that have a plainer word.
BANNED_PHRASES = [
    r"somebody|whoever|nobody|anybody|everybody|people|anew|foresaw|draught|wishes|shall",
    r"go(es)? on|went on|going on|gone on",
    r"at work|in the making|made whole|put whole",
    r"told|tells|is said|was said|be said|been said|hears?",
    r"lets? go|letting go|look(s|ed|ing)? (away|again|after)|makes? room|takes? places?|see to it",
    r"all the same|by itself|by themselves|once more|(this|the) very (?!first|last)",
    r"(?<!there )is no (?!longer|more|less|such)|(?<!there )are no (?!longer|more|less|such)|there is none|be had",
    r"mend(s|ed|ing)?|deeds?|signs of life|what there is|says so|of ours|of theirs",
    r"(is|are|was|were) over(?! (\d|the|its|that|this|a|an|half)\b)|comes? to (its|an) end",
    r"(?<!left )(?<!leaves )(?<!leave )(?<!leaving )(?<!falls )(?<!fall )(?<!fallen )(?<!fell )behind",
    r"(with|without|needs?|need no|has no|have no|asks? for) leave|leave of",
]
PHRASE = re.compile(r"\b(" + "|".join(BANNED_PHRASES) + r")\b", re.IGNORECASE)
#: Texts that may contain such a phrase: (path, phrase), each with its reason.
EXCEPTIONS: set[tuple[str, str]] = set()
#: Local names that do not say what they hold.
VAGUE_NAMES = {"about", "found", "given", "kept", "place", "said", "told", "wanted"}
#: A first line of a docstring that begins with one of these is a relative clause, not a noun or an imperative.
RELATIVE = re.compile(r"(What|Whether|Which|Who|Whom|Whose|How|Where|Why|Whatever|Whoever|That which|Those)\b")
TEST_NAME_CHARS_MAX = 60
#: Module names that siblings share on purpose.
SIBLINGS = {"__init__", "__main__", "base", "codec"}
#: The ratchet: how many breaches are left. A number may only fall.
LEFT = {
    "phrases": 0,
    "docstrings": 0,
    "locals": 0,
    "classes": 0,
    "modules": 0,
    "starred": 0,
    "test names": 0,
}


@cache
def python_files() -> dict[str, ast.Module]:
    files = [path for name in ("src", "tests", "bench", "proof", "scripts") for path in (ROOT / name).rglob("*.py")]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(), str(path)) for path in sorted(files)}


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *SRC.rglob("*.md")])


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            match node.body[0]:
                case ast.Expr(value=ast.Constant(value=str()) as text):
                    yield text
                case _:
                    pass


def comments(source: str) -> Iterator[tuple[int, str]]:
    """The comments of a file. Those on consecutive lines are one text."""
    first, last, text = 0, 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if line != last + 1:
                yield first, text
                first, text = line, ""
            last, text = line, f"{text} {token.string.lstrip('#: ')}"
    yield first, text


def prose() -> Iterator[tuple[str, int, str]]:
    """(path, line, text) of each text: all strings of the product, comments and docstrings elsewhere, documents, and
    the source of the web page."""
    for path, tree in python_files().items():
        if path == "tests/test_house_language.py" or "mutants" in path:
            continue
        for line, text in comments((ROOT / path).read_text()):
            yield path, line, text
        strings = ast.walk(tree) if path.startswith("src/") else docstrings(tree)
        for node in strings:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path, node.lineno, node.value
    texts = {str(document.relative_to(ROOT)): document.read_text() for document in documents()} | web_files()
    for name, text in texts.items():
        for number, block in enumerate(text.split("\n\n")):
            yield name, number, block


def phrases() -> list[str]:
    return [
        f"{path}:{line}: {match.group()!r} in: {plain[max(0, match.start() - 40) : match.end() + 40]}"
        for path, line, text in prose()
        for plain in [" ".join(text.split())]
        for match in PHRASE.finditer(plain)
        if (path, match.group().lower()) not in EXCEPTIONS
    ]


def relative_docstrings() -> list[str]:
    return [
        f"{path}:{text.lineno}: {str(text.value).strip().splitlines()[0]}"
        for path, tree in python_files().items()
        for text in docstrings(tree)
        if RELATIVE.match(str(text.value).strip())
    ]


def vague_names() -> list[str]:
    breaches = []
    for path, tree in python_files().items():
        for node in ast.walk(tree) if path.startswith("src/") else ():
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in VAGUE_NAMES:
                    breaches.append(f"{path}:{node.lineno}: {name}")
                case _:
                    pass
    return breaches


def class_names() -> list[str]:
    homes: dict[str, list[str]] = {}
    for path, tree in python_files().items():
        if path.startswith("src/"):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(path)
    return [f"{paths[0]}: {name}, also in {', '.join(paths[1:])}" for name, paths in homes.items() if len(paths) > 1]


def module_names() -> list[str]:
    homes: dict[str, list[str]] = {}
    for path in python_files():
        if path.startswith("src/") and Path(path).stem not in SIBLINGS:
            homes.setdefault(Path(path).stem, []).append(path)
    return [f"{paths[0]}: also {', '.join(paths[1:])}" for paths in homes.values() if len(paths) > 1]


def starred_literals() -> list[str]:
    """`[*("a", "b"), *("c",)]`: a trick against the formatter."""
    return [
        f"{path}:{node.lineno}"
        for path, tree in python_files().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List | ast.Set)
    ]


def long_test_names() -> list[str]:
    return [
        f"{path}:{node.lineno}: {node.name} has {len(node.name)} characters"
        for path, tree in python_files().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > TEST_NAME_CHARS_MAX
    ]


RULES: dict[str, Callable[[], list[str]]] = {
    "phrases": phrases,
    "docstrings": relative_docstrings,
    "locals": vague_names,
    "classes": class_names,
    "modules": module_names,
    "starred": starred_literals,
    "test names": long_test_names,
}


@pytest.mark.parametrize("rule", RULES)
def test_language(rule: str) -> None:
    breaches = RULES[rule]()
    assert len(breaches) <= LEFT[rule], "\n".join(breaches[:200])


def main(paths: list[str]) -> None:
    counts = Counter[str]()
    for rule, check in RULES.items():
        for breach in check():
            if not paths or breach.startswith(tuple(paths)):
                counts[rule] += 1
                print(f"{rule}: {breach}")
    print(*(f"{rule} {counts[rule]}" for rule in RULES), sep=", ")


if __name__ == "__main__":
    main(sys.argv[1:])
