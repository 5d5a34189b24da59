"""The arguments that a rule with a wildcard may cover, for each program.

The author of `bash(pytest *)` thinks of running tests, not of `pytest --tx popen//python=...`. An allow list: an option
that is not listed here needs an approval, or a rule that spells the whole command. The language of the table is that of
`read_only_programs`; what a program passes on after `--` has an own entry (`cargo test --`). Paths must stay in the
workspace. Options that destroy work (`git push --force`, `git reset --hard`) are left out on purpose.

A program that is not listed may have plain words only, no options, and not even those if it can run other code.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from msgspec import Struct

from kedge.tools.git_reads import git_reading
from kedge.tools.program_rules import is_sed_printing, program_name, runs_any_code
from kedge.tools.read_only import find_paths
from kedge.tools.read_only_programs import Program, parsed, program, read
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.workspace_paths import real_path

_SCRIPT = """path* -itu --ci --run --coverage --watch=false --watchAll=false --runInBand --silent --verbose --bail
    --check --fix --quiet --no-color --passWithNoTests --testNamePattern=text --maxWorkers=word -t=text"""
_NPM_RUN = "-sw --silent --if-present --workspaces --workspace=path --prefix=path -w=path"
_NPM_INSTALL = """-sD --silent --no-audit --no-fund --ignore-scripts --legacy-peer-deps --prefer-offline --offline
    --frozen-lockfile --immutable --no-save --production --omit=word --include=word --no-progress"""
_CARGO = """-qv --release --workspace --all --all-targets --all-features --no-default-features --lib --bins --tests
    --examples --benches --doc --no-run --no-fail-fast --locked --offline --frozen --keep-going -p=word -j=number
    --features=text -F=text --package=word --bin=word --test=word --example=word --exclude=word --jobs=number
    --profile=word --message-format=word --color=word"""
_GO = """path* -v -x -n -a -race[=word] -short[=word] -cover[=word] -json[=word] -failfast[=word] -benchmem[=word]
    -trimpath[=word] -run=text -skip=text -bench=text
    -count=number -timeout=text -parallel=number -p=number -tags=text -mod=word -coverprofile=path -o=path"""
_VITEST = f"{_SCRIPT} --reporter=word --changed --update --no-coverage"
_GRADLE = """word* -q -x=word --quiet --info --stacktrace --offline --no-daemon --continue --parallel --rerun-tasks
    --tests=text --console=word"""
_MAVEN = "word* -q -B -o -e -U -am[=word] -pl=word --batch-mode --offline --quiet --no-transfer-progress -ntp[=word]"
_DOTNET = "path? -c=word -v=word --configuration=word --verbosity=word --no-build --no-restore --nologo --filter=text"
_GIT_MESSAGE = "-m=text --message=text"

#: Programs with their subcommands.
_TABLE = {
    # Python
    "pytest": """path* -qvxsl -k=text -m=text -r=word -n=word -p=noplugin --maxfail=number --lf --last-failed --ff
        --failed-first --nf --sw --stepwise --tb=word --durations=number --co --collect-only --no-header --no-summary
        --disable-warnings --cov[=path] --cov-report=word --cov-branch --no-cov --cov-fail-under=number --color=word
        --strict-markers --setup-show --markers --exitfirst --quiet --verbose --capture=word --showlocals
        --timeout=number --reruns=number --dist=word --deselect=path --ignore=path --runxfail --full-trace""",
    "unittest": "path* -vqfbc -k=text -s=path --verbose --quiet --failfast --buffer --start-directory=path",
    "mypy": """path* -v -p=word -m=name --strict --ignore-missing-imports --no-incremental --show-error-codes --pretty
        --no-error-summary --check-untyped-defs --python-version=number --follow-imports=word --no-color-output
        --package=word --module=name --warn-unreachable --explicit-package-bases --namespace-packages""",
    "pyright": "path* --stats --outputjson --warnings --verbose",
    "ruff check": """path* -q -v --fix --no-fix --diff --statistics --show-fixes --unsafe-fixes --no-cache
        --select=text --ignore=text --extend-select=text --output-format=word --quiet --exit-zero --preview""",
    "ruff format": "path* -q -v --check --diff --no-cache --quiet --line-length=number --preview",
    "black": "path* -qvS -l=number -t=word --check --diff --quiet --verbose --fast --line-length=number --color",
    "isort": "path* -cqv --check --check-only --diff --quiet --profile=word",
    "flake8": """path* -qv --max-line-length=number --select=text --ignore=text --extend-ignore=text --count
        --statistics --show-source --max-complexity=number""",
    "pylint": "path* -E -j=number --errors-only --disable=text --enable=text --score=word --recursive=word",
    "build": "path? -wsn --wheel --sdist --no-isolation",
    "json.tool": "path? --sort-keys --indent=number --compact",
    "compileall": "path* -qf",
    "pip list": "-o --outdated --format=word --not-required",
    "pip show": "name* -f -v --files --verbose",
    "pip freeze": "-l --local",
    "pip check": "",
    "uv sync": "-q -v --frozen --locked --all-extras --all-groups --dev --no-dev --extra=word --group=word --offline",
    "uv lock": "-q -v --check --offline --upgrade",
    "uv tree": "--depth=number --outdated",
    "uv pip list": "--outdated --format=word",
    "tox": "-qvp -e=text --parallel",
    "nox": "-R -s=text --list -l",
    "coverage report": "-m --show-missing --skip-covered --fail-under=number --precision=number",
    "coverage html": "-q",
    "pre-commit run": "word? -av --all-files --verbose --show-diff-on-failure",
    # JavaScript
    "npm test": f"path* {_NPM_RUN}",
    "npm test --": _SCRIPT,
    "npm run": f"script path* {_NPM_RUN}",
    "npm run --": _SCRIPT,
    "npm start": _NPM_RUN,
    "npm ci": _NPM_INSTALL,
    "npm install": _NPM_INSTALL,
    "npm ls": "name* -a --all --depth=number --json --long --prod",
    "npm outdated": "name* --json --long",
    "npm audit": "--json --production --omit=word --audit-level=word",
    "npm why": "name*",
    "npm pack": "--dry-run --json",
    "npm": "-v --version",
    "pnpm test": f"path* {_NPM_RUN} -r --recursive --filter=text -F=text",
    "pnpm test --": _SCRIPT,
    "pnpm run": f"script path* {_NPM_RUN} -r --recursive --filter=text -F=text",
    "pnpm run --": _SCRIPT,
    "pnpm install": _NPM_INSTALL,
    "pnpm ls": "name* -r --depth=number --json --long --prod",
    "pnpm outdated": "name* -r --json",
    "pnpm why": "name* -r",
    "yarn": "-v --version --frozen-lockfile --immutable",
    "yarn test": _SCRIPT,
    "yarn run": f"script {_SCRIPT}",
    "yarn build": _SCRIPT,
    "yarn lint": _SCRIPT,
    "yarn install": _NPM_INSTALL,
    "yarn why": "name*",
    "bun test": "path* -t=text --coverage --bail[=number] --timeout=number --todo --only",
    "bun run": f"script {_SCRIPT}",
    "bun install": "--frozen-lockfile --no-save --production",
    "tsc": """path* -bp -p=path --project=path --build --noEmit --pretty[=word] --skipLibCheck --strict --incremental
        --listFiles --showConfig --diagnostics --force --dry --clean --verbose --emitDeclarationOnly""",
    "eslint": """path* --fix --fix-dry-run --quiet --cache --color --no-color --ext=text --max-warnings=number -f=word
        --format=word --no-error-on-unmatched-pattern --report-unused-disable-directives""",
    "prettier": """path* -cwlu --check --write --list-different --ignore-unknown --log-level=word --loglevel=word
        --no-error-on-unmatched-pattern""",
    "jest": f"""{_SCRIPT} -w=number --updateSnapshot --onlyChanged --listTests --testPathPattern=text --forceExit
        --testPathPatterns=text --detectOpenHandles --findRelatedTests --json --changedSince=word --no-coverage""",
    "vitest": _VITEST,
    "mocha": "path* -b -g=text --grep=text --bail --reporter=word --timeout=number --exit --recursive",
    "playwright test": "path* -g=text --grep=text --headed --project=word --workers=number --reporter=word",
    # Rust, Go, C, Java, .NET and others
    "cargo build": _CARGO,
    "cargo check": _CARGO,
    "cargo test": f"text* {_CARGO}",
    "cargo test --": "text* -q --nocapture --exact --ignored --include-ignored --test-threads=number --skip=text",
    "cargo bench": f"text* {_CARGO}",
    "cargo clippy": f"{_CARGO} --fix --allow-dirty --allow-staged --no-deps",
    "cargo clippy --": "-D=word -W=word -A=word",
    "cargo fmt": "-qv --all --check -p=word --package=word",
    "cargo fmt --": "--check",
    "cargo doc": f"{_CARGO} --no-deps --document-private-items",
    "cargo tree": "-d -p=word --duplicates --depth=number --edges=text -e=text -i=word",
    "cargo metadata": "--no-deps --format-version=number --offline --locked",
    "cargo": "-V --version",
    "go build": _GO,
    "go test": _GO,
    "go vet": _GO,
    "go fmt": "path* -n -x",
    "go list": "path* -m -e -json[=word] -deps[=word] -test[=word]",
    "go mod tidy": "-v -e -diff[=word]",
    "go mod verify": "",
    "go mod graph": "",
    "go version": "",
    "gofmt": "path* -l -d -s -w -e",
    "golangci-lint run": "path* -v --fix --fast --timeout=text --new-from-rev=text",
    "make": "name* -kswnB -j=number --silent --dry-run --keep-going --always-make --jobs=number --no-print-directory",
    "cmake": """path? -S=path -B=path -D=define -G=text -j=number -t=word --build=path --parallel=number --target=word
        --config=word --clean-first --verbose""",
    "cmake --": "name* -j=number",
    "ctest": "-VQ -N -R=text -E=text -j=number --test-dir=path --output-on-failure --parallel=number --progress",
    "ninja": "name* -vn -C=path -j=number",
    "gradle": _GRADLE,
    "gradlew": _GRADLE,
    "mvn": _MAVEN,
    "mvnw": _MAVEN,
    "dotnet build": _DOTNET,
    "dotnet test": _DOTNET,
    "dotnet format": "path? --verify-no-changes --no-restore",
    "swift build": "-c=word -v",
    "swift test": "-v --filter=text --parallel",
    "rspec": "path* -e=text --example=text --fail-fast --only-failures --seed=number --format=word --color",
    "rubocop": "path* -aA --autocorrect --autocorrect-all --format=word --parallel",
    "rake": "word*",
    "mix test": "path* --trace --failed --stale --cover --only=text --exclude=text --seed=number",
    "mix format": "path* --check-formatted",
    "mix compile": "--warnings-as-errors --force",
    "phpunit": "path* --filter=text --testdox --stop-on-failure --colors[=word]",
    "terraform fmt": "path? -check[=word] -recursive[=word] -diff[=word]",
    "terraform validate": "-json[=word] -no-color[=word]",
    "just": "word*",
    # Files
    "mkdir": "path* -pv --parents --verbose",
    "touch": "path* -c --no-create",
    "cp": "path* -fipnv --force --verbose --no-clobber",
    "mv": "path* -finv --force --verbose --no-clobber",
    "rm": "path* -dfirvR --force --recursive --verbose --dir",
    "rmdir": "path* -pv --parents --verbose",
    "fd": "text path* -HIiasgFl0 -e=word -t=word -d=number --hidden --no-ignore --extension=word --type=word --glob",
    "printf": "text*",
    # git: those that read are in `git_reads`
    "git add": "path* -Aunvf --all --update --dry-run --verbose --intent-to-add --renormalize",
    "git commit": f"""path* -aqvs {_GIT_MESSAGE} --all --amend --no-edit --quiet --verbose --signoff --allow-empty
        --fixup=text --dry-run --only""",
    "git checkout": "path* -bqt -b=text --quiet --detach --track --ours --theirs",
    "git switch": "path* -cqd -c=text --create=text --quiet --detach --track",
    "git restore": "path* -SWq -s=text --staged --worktree --source=text --quiet",
    "git reset": "path* -q --soft --mixed --quiet",
    "git stash": f"-uq {_GIT_MESSAGE}",
    "git stash push": f"path* -ukqS {_GIT_MESSAGE} --include-untracked --keep-index --staged --quiet",
    "git stash pop": "path? -q --index --quiet",
    "git stash apply": "path? -q --index --quiet",
    "git branch": "path* -dmvu -u=text --delete --move --set-upstream-to=text --unset-upstream --quiet",
    "git tag": f"path* -ad {_GIT_MESSAGE} --annotate --delete",
    "git merge": f"path* -q {_GIT_MESSAGE} --no-ff --ff-only --ff --squash --no-commit --no-edit --abort --continue",
    "git cherry-pick": "path* -nx --no-commit --no-edit --abort --continue --skip",
    "git revert": "path* -n --no-commit --no-edit --abort --continue --skip",
    "git rm": "path* -rqn --cached --quiet --dry-run",
    "git mv": "path* -kvn --verbose --dry-run",
    "git fetch": "remote ref* -pqvt --prune --quiet --verbose --tags --depth=number --unshallow --dry-run --all",
    "git pull": "remote ref* -qv --quiet --rebase[=word] --no-rebase --ff-only --no-edit --autostash --prune",
    "git push": "remote ref* -unqv --set-upstream --dry-run --quiet --verbose --tags --follow-tags",
    "git ls-remote": "remote ref* --heads --tags --refs",
    "git format-patch": "path* -NUM -n=number --stdout --cover-letter",
    "git": "--version",
}  # fmt: skip
#: Other names of programs and subcommands.
_SAME = {
    "npm t": "npm test", "npm i": "npm install", "npm run-script": "npm run", "npm list": "npm ls",
    "npm explain": "npm why", "pnpm t": "pnpm test", "pnpm i": "pnpm install", "pnpm list": "pnpm ls",
    "py.test": "pytest", "gmake": "make", "pip3": "pip", "fdfind": "fd", "cargo b": "cargo build",
    "cargo t": "cargo test", "cargo c": "cargo check", "npm clean-install": "npm ci",
}  # fmt: skip
#: Programs that run the program after them, if it is in the table. A rule with a wildcard must spell both.
_RUNS_NEXT = frozenset(
    {"npx", "bunx", "uvx", "uv run", "poetry run", "pdm run", "pipenv run", "rye run", "hatch run", "bundle exec"}
    | {"pnpm exec", "yarn exec", "python -m", "coverage run -m"}
)
#: Wildcards that the approval does not offer: they remove files, or send them, or they need the network, which what a
#: wildcard covers does not have.
_NOT_OFFERED = frozenset(
    {"rm", "mv", "cp", "git push", "git reset", "git checkout", "git restore", "git branch", "tar"}
    | {"git fetch", "git pull", "git ls-remote", "npm ci", "npm install", "npm outdated", "npm audit", "pnpm install"}
    | {"pnpm outdated", "yarn install", "bun install", "uv sync", "uv lock", "uv tree", "go mod tidy"}
)
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
#: A word without a meaning of its own: not an option, an assignment, a file of arguments, a toolchain or a URL.
_PLAIN_WORD = re.compile(r"(?![-+@~])(?!.*(?:::|://|[=\[]))[^\x00]*", re.DOTALL)
#: Builtins that evaluate array subscripts in their arguments: `test -v 'a[$(rm x)]'` runs rm.
_SUBSCRIPT_BUILTINS = frozenset({"test", "[", "printf"})
#: Names of remotes by convention. A directory of this name would be a repository with hooks.
_REMOTES = frozenset({"origin", "upstream"})


class WildcardUse(Struct, frozen=True):
    """A command that a rule with a wildcard may cover."""

    #: Number of the first words that the rule must spell.
    spelled: int
    #: The words of the widest sensible rule, without its `*`. Empty: none is offered.
    offer: tuple[str, ...] = ()


def wildcard_use(words: tuple[str, ...], directory: Path, root: Path) -> WildcardUse | None:
    """Return how a rule with a wildcard may cover a command; None: only an exact rule does. Blocking."""
    entry = _entry(words)
    rest = words[entry.words :]
    if entry.key == "echo":
        return WildcardUse(entry.spelled, words[: entry.words])
    if entry.key in _SUBSCRIPT_BUILTINS and any("[" in word for word in rest):
        return None
    paths = _paths(entry, rest, directory)
    if paths is None or not all(_is_inside(path, directory, root) for path in paths):
        return None
    return WildcardUse(entry.spelled, words[: entry.words] if entry.is_listed and entry.key not in _NOT_OFFERED else ())


def has_wildcard_use(words: tuple[str, ...]) -> bool:
    """Return whether a rule that begins with these words and ends in a wildcard can cover a command."""
    entry = _entry(words) if words else None
    if entry is None or entry.is_listed or entry.is_plain:
        return entry is not None
    begin = " ".join((entry.key, *words[entry.words :]))
    return any(key == begin or key.startswith(f"{begin} ") for key in _TABLE)


class _Entry(Struct, frozen=True):
    #: Program and subcommand as in the table.
    key: str
    #: How many words of the command they are, with those of programs that run it.
    words: int
    spelled: int
    is_listed: bool
    #: It may have arguments that are plain words.
    is_plain: bool = False


def _entry(words: tuple[str, ...]) -> _Entry:
    name = program_name(words[0]).lower().removesuffix(".exe")  # some file systems ignore case
    name = "python" if _PYTHON.fullmatch(name) else _SAME.get(name, name)
    named = (name, *words[1:])
    for count in (3, 2, 1):
        key = " ".join(named[:count])
        if len(named) > count and key in _RUNS_NEXT:
            inner = _entry(words[count:])
            return _Entry(inner.key, count + inner.words, count + inner.spelled, inner.is_listed)
        key = _SAME.get(key, key)
        if len(named) >= count and (key in _TABLE or (key.startswith("git ") and count == 2)):
            return _Entry(key, count, 1, is_listed=True)
    is_reading = name in ("sed", "find", "echo") or program(name) is not None
    return _Entry(name, 1, 1, is_reading, is_plain=not is_reading and not runs_any_code(name))


def _paths(entry: _Entry, rest: tuple[str, ...], directory: Path) -> tuple[str, ...] | None:
    """Return the words that must be paths of the workspace, or None if a word is not covered."""
    if entry.is_plain:
        return rest if all(map(_PLAIN_WORD.fullmatch, rest)) else None
    if entry.key == "sed":
        return rest if is_sed_printing(rest) else None
    if entry.key == "find":
        return find_paths(rest)
    if entry.key.startswith("git"):
        reading = git_reading((*entry.key.split()[1:], *rest))
        if reading is not None and not reading.directory:
            return reading.paths
    rules = _rules(entry.key) or program(entry.key)
    further: tuple[str, ...] = ()
    passed_on = _rules(f"{entry.key} --")
    if passed_on is not None and "--" in rest:
        end = rest.index("--")
        rest, further = rest[:end], rest[end + 1 :]
    words = read(rules, rest, may_have_dash=False) if rules is not None else None
    words_after = read(passed_on, further, may_have_dash=False) if passed_on is not None else None
    if words is None or (further and words_after is None):
        return None
    if rules is not None and rules.arguments[:1] == ("remote",) and words.arguments:
        remote = words.arguments[0]
        if remote not in _REMOTES or (directory / remote).exists():
            return None  # the hooks of a repository in a directory would run
    if not entry.key.startswith("git") and any(path.startswith("@") for path in words.paths):
        return None  # a file with options
    return (*words.paths, *(words_after.paths if words_after is not None else ()))


@cache
def _rules(key: str) -> Program | None:
    return parsed(_TABLE[key]) if key in _TABLE else None


def _is_inside(path: str, directory: Path, root: Path) -> bool:
    if path in ("", "-", "/dev/null"):
        return True
    if path.startswith("~"):
        return False  # some programs expand it
    try:
        return real_path(directory / path).is_relative_to(root)
    except (ToolFailed, ValueError, OSError):
        return False
