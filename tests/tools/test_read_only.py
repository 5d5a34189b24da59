"""Read-only command lines: what passes without an approval, what asks, and what the shell gets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import structs

from kedge.core.approvals import Rules, hides_files, is_hidden, parse_rules
from kedge.tools.read_only import ReadOnlyLine, Surroundings, check_line
from kedge.tools.strict_line import parse_strictly

_DIRECTORY = Path(__file__).parent


def lines_of(name: str) -> list[str]:
    """Return the lines of a corpus. `##` begins a comment, and `<U+000A>` stands for a character."""
    lines = (_DIRECTORY / name).read_text().splitlines()
    return [
        re.sub(r"<U\+([0-9A-F]{4,6})>", lambda match: chr(int(match[1], 16)), line)
        for line in lines
        if line.strip() and not line.startswith("##")
    ]


def make_repository(base: Path) -> Path:
    """Make the workspace of the corpus, with traps around it."""
    root = base / "workspace"
    for name in (
        "src/app",
        "tests",
        "docs",
        "build",
        "dir with space",
        "node_modules/x",
        ".github/workflows",
        "config",
    ):
        (root / name).mkdir(parents=True)
    for name in ("README.md", "src/main.py", "src/app/models.py", "src/util.py", "tests/test_app.py", "docs/index.md"):
        (root / name).write_text("import os\n\n\ndef main():  # TODO: error\n    return 1\n" * 3)
    for name in ("a.txt", "b.txt", "Makefile", "setup.py", "go.mod", "Cargo.toml", "app.log", ".gitignore", "run.sh"):
        (root / name).write_text("one\ntwo\nthree\n")
    (root / "package.json").write_text('{"name": "x", "scripts": {"test": "jest"}, "dependencies": {"a": "1"}}\n')
    (root / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\n')
    (root / "dir with space/c d.txt").write_text("x\n")
    (root / ".github/workflows/ci.yml").write_text("on: push\n")
    for name in (".env", ".env.production", "server.pem", "config/credentials.json", ".npmrc"):
        (root / name).write_text("SECRET=1\n")
    (root / ".env.example").write_text("SECRET=\n")
    (base / "outside").mkdir()
    (base / "outside/secret.txt").write_text("outside\n")
    (root / "link_out").symlink_to(base / "outside")
    (root / "link_file").symlink_to(base / "outside/secret.txt")
    (root / "link_in").symlink_to("src")
    (root / "link_deep").symlink_to("src/app")
    (root / "link_env").symlink_to(".env")
    run_git(root, "init", "-q", "-b", "main")
    run_git(root, "add", "README.md", "src", "tests", "a.txt")
    run_git(root, "commit", "-q", "-m", "first")
    (root / "a.txt").write_text("one\ntwo\n3\n")
    return root.resolve()


def run_git(root: Path, *words: str) -> None:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    person = ("-c", "user.name=x", "-c", "user.email=x@example.com")
    subprocess.run(["git", *person, *words], cwd=root, env=environment, check=True, capture_output=True)


def around(root: Path, rules: Rules | None = None, variables: Mapping[str, str] = {}) -> Surroundings:
    hidden = rules or Rules()
    return Surroundings(
        cwd=root,
        root=root,
        environment={"PATH": f"{root.parent}/tools:/usr/bin:/bin", "HOME": str(root.parent), **variables},
        is_hidden=lambda subject: is_hidden(hidden, subject),
        hides_files=hides_files(hidden),
    )


def checked(line: str, surroundings: Surroundings) -> ReadOnlyLine | None:
    parsed = parse_strictly(line)
    return check_line(parsed, surroundings) if parsed is not None else None


def passes(line: str, surroundings: Surroundings) -> bool:
    result = checked(line, surroundings)
    return result is not None and all(result.parts)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_repository(tmp_path_factory.mktemp("read_only"))
    tools = root.parent / "tools"
    tools.mkdir()
    for name in ("rg", "tree", "jq", "node", "file", "xxd", "strings", "gcc", "make", "java", "docker"):
        if not os.path.exists(f"/usr/bin/{name}"):  # only found, never run
            (tools / name).write_text("#!/bin/sh\n")
            (tools / name).chmod(0o755)
    return root


def test_everyday_lines_pass(root: Path) -> None:
    lines = lines_of("lines_that_pass.txt")
    assert len(set(lines)) >= 300
    assert [line for line in lines if not passes(line, around(root))] == []


def test_tricks_ask(root: Path) -> None:
    lines = lines_of("lines_that_ask.txt")
    assert len(set(lines)) >= 300
    assert [line for line in lines if passes(line, around(root))] == []


def test_hidden_and_own_files_ask(root: Path) -> None:
    rules = parse_rules((), ("view(docs/**)", "view(b.txt)"))
    for line in ("cat b.txt", "cat docs/index.md", "grep -r x .", "rg x", "git diff", "git log -p", "cat b*"):
        assert passes(line, around(root)), line
        assert not passes(line, around(root, rules)), line
    for line in ("cat a.txt", "ls docs", "git status", "grep x a.txt"):
        assert passes(line, around(root, rules)), line
    own = structs.replace(around(root), guarded=(root / "docs",))
    for line in ("cat docs/index.md", "ls docs", "grep -r x .", "find src | xargs cat"):
        assert not passes(line, own), line


@pytest.mark.found("audit of issue 20", "searches printed the lines of `.env` unasked; they now skip credentials")
def test_commands_that_read_many_files_skip_credentials(tmp_path: Path) -> None:
    """The lines run without a sandbox: what they print must not depend on one."""
    root = make_repository(tmp_path)
    run_git(root, "add", "-A", "-f", ".")
    run_git(root, "commit", "-q", "-m", "tracked")
    for name in (".env", "b.txt"):
        (root / name).write_text("SECRET=2\n" if name == ".env" else "public SECRET\n")
    (root / ".aws").mkdir()
    (root / ".aws/config").write_text("SECRET=3\n")
    (root / "src/KEYS.PEM").write_text("SECRET=4\n")
    run_git(root, "stash", "push", "-q")
    run_git(root, "stash", "apply", "-q")
    blob, tree = (
        subprocess.run(["git", "rev-parse", name], cwd=root, check=True, capture_output=True, text=True).stdout.strip()
        for name in ("HEAD:.env", "HEAD:config")
    )
    rg = Path(shutil.which("rg", path=f"{sys.prefix}/bin:/usr/bin") or "")
    surroundings = around(root, variables={"PATH": f"{rg.parent}:/usr/bin:/bin"})
    for line, is_shown in (
        ("grep -rn SECRET .", True),
        ("grep -rn -- SECRET .", True),
        ("grep -r --include=.env --include='*.pem' SECRET . src", False),
        ("grep -r SECRET b.txt src", True),
        ("echo . | xargs grep -r SECRET", True),
        ("echo . | xargs rg --hidden SECRET", True),
        ("rg --hidden --no-ignore SECRET .", True),
        ("rg -g '.env*' --iglob '*.pem' --hidden SECRET .", False),
        ("diff -r --no-dereference --new-file . src", True),
        ("git grep SECRET", True),
        ("git grep --untracked SECRET", True),
        ("cd src && git grep --untracked SECRET", False),
        ("git grep -e SECRET stash@{0}", True),
        ("git grep SECRET HEAD:config", False),
        ("git diff", True),
        ("git diff HEAD -- '.e*' b.txt", True),
        ("git diff -- ':(icase).EnV*'", False),
        ("git log -p", False),
        ("git show", False),
        ("git show HEAD~0", False),
        ("git stash show -p", True),
        ("git stash show --patch stash@{0}", True),
        ("git reflog -p", False),
        ("git diff-tree -p HEAD~1 HEAD", False),
        (f"git show {blob}", False),
        (f"git show {blob[:7]}", False),
        (f"git diff {blob} {blob}", False),
        (f"git diff HEAD..{blob}", False),
        (f"git grep SECRET {blob}", False),
        (f"git grep SECRET {tree}", False),
        (f"git show {tree}:x", False),
    ):
        result = checked(line, surroundings)
        assert result is not None
        assert all(result.parts), line
        done = subprocess.run(
            ["bash", "-c", result.text], cwd=root, env={"PATH": "/usr/bin:/bin"}, check=False, capture_output=True
        )
        assert b"SECRET=" not in done.stdout, line
        assert (b"public SECRET" in done.stdout) == is_shown, (line, done)
    for line in (
        f"git show {blob}^{{blob}}",
        f"git show {tree}^{{tree}}",
        f"git cat-file -p {blob}",
        f"git cat-file blob {blob}",
        "git stash list -p",
        "git log -p --follow .",
        "grep -re -- .",
    ):
        assert not passes(line, surroundings), line


def test_history_is_complete_without_credentials(tmp_path: Path) -> None:
    root = make_repository(tmp_path)
    (root / ".env").write_text("SECRET=2\n")
    run_git(root, "add", "-f", ".env")
    run_git(root, "commit", "-q", "-m", "only credentials")
    for line in ("git log -p --oneline", "git show --oneline"):
        result = checked(line, around(root))
        assert result is not None
        done = subprocess.run(["bash", "-c", result.text], cwd=root, check=True, capture_output=True, text=True)
        assert "only credentials" in done.stdout
        assert "SECRET" not in done.stdout


def test_programs_and_variables_of_a_workspace_ask(root: Path) -> None:
    (root / "bin").mkdir()
    (root / "bin" / "cat").write_text("#!/bin/sh\n")
    (root / "bin" / "cat").chmod(0o755)
    inside = around(root, variables={"PATH": f"{root}/bin:/usr/bin:/bin"})
    assert passes("ls", inside)
    for line in ("cat a.txt", "ls | cat", "find src | xargs cat"):
        assert not passes(line, inside), line
    for name in ("BASH_ENV", "LD_PRELOAD", "BASH_FUNC_ls%%", "CDPATH", "SHELLOPTS", "POSIXLY_CORRECT", "MAGIC"):
        assert not passes("ls", around(root, variables={name: "x"})), name
    for name in ("GIT_EXTERNAL_DIFF", "GIT_DIR", "GIT_TRACE", "GIT_CONFIG_KEY_1", "GIT_EXEC_PATH"):
        assert not passes("git status", around(root, variables={name: "x"})), name
    assert not passes("rg x", around(root, variables={"RIPGREP_CONFIG_PATH": "x"}))


@pytest.mark.parametrize(
    "config",
    [
        '[filter "x"]\n\tclean = ./evil\n',
        '[diff "x"]\n\ttextconv = ./evil\n',
        "[diff]\n\texternal = ./evil\n",
        "[include]\n\tpath = ../evil\n",
        "[core]\n\tworktree = /\n",
        "[gpg]\n\tprogram = ./evil\n",
        '[lfs "extension.x"]\n\tclean = ./evil\n',
        '[remote "origin"]\n\tpromisor = true\n',
        '[user] name = x\\\n[filter "x"] clean = y\n',
        '[filter "x"] clean = y\n',
        "nonsense [\n",
    ],
)
def test_repository_that_names_programs_asks(tmp_path: Path, config: str) -> None:
    (tmp_path / ".git").mkdir()
    for name in ("objects", "refs"):
        (tmp_path / ".git" / name).mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git" / "config").write_text("[core]\n\tbare = false\n")
    assert passes("git status", around(tmp_path))
    (tmp_path / ".git" / "config").write_text(f"[core]\n\tbare = false\n{config}")
    assert not passes("git status", around(tmp_path))
    assert passes("ls", around(tmp_path))


def test_repository_around_the_workspace_shows_no_contents(root: Path, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    assert passes("git diff", around(tmp_path / "part"))
    run_git(tmp_path, "init", "-q")
    for line in ("git status", "git log --oneline -5 --stat", "git branch"):
        assert passes(line, around(tmp_path / "part")), line
    for line in ("git diff", "git log -p", "git show HEAD:x", "git log -U1", "git grep x", "git log ../x"):
        assert not passes(line, around(tmp_path / "part")), line
    run_git(tmp_path, "config", "diff.external", "./evil")
    assert not passes("git status", around(tmp_path / "part"))
    bare = tmp_path / "part" / "bare"
    (bare / "objects").mkdir(parents=True)
    (bare / "HEAD").touch()
    assert not passes("cd bare && git log", around(tmp_path / "part"))
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / ".git").write_text(f"gitdir: {root}/.git\n")
    assert not passes("git status", around(tmp_path / "file"))


def test_programs_named_by_a_repository_do_not_run(tmp_path: Path) -> None:
    """Also in a nested repository that no configuration names as a submodule."""
    root = tmp_path / "workspace"
    root.mkdir()
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    evil.chmod(0o755)
    for repository in (root, root / "sub"):
        repository.mkdir(exist_ok=True)
        run_git(repository, "init", "-q", "-b", "main")
        (repository / "f").write_text("1\n")
        run_git(repository, "add", "f")
        run_git(repository, "commit", "-q", "-m", "first")
    run_git(root, "add", "sub")
    run_git(root, "commit", "-q", "-m", "second")
    for repository in (root, root / "sub"):
        (repository / "f").write_text("2\n")
        run_git(repository, "config", "core.fsmonitor", str(evil))
        run_git(repository, "config", "core.pager", str(evil))
        for hook in ("post-index-change", "fsmonitor-watchman"):
            (repository / ".git" / "hooks" / hook).write_text(evil.read_text())
            (repository / ".git" / "hooks" / hook).chmod(0o755)
    # The configuration of the nested repository is not read by the check.
    run_git(root / "sub", "config", "filter.x.clean", str(evil))
    (root / "sub" / ".git" / "info" / "attributes").write_text("f filter=x\n")
    (tmp_path / "ran").unlink(missing_ok=True)
    for line in ("git status", "git diff", "git status -s && git log -p -1", "git diff HEAD --stat"):
        result = checked(line, around(root))
        assert result is not None
        assert all(result.parts)
        done = subprocess.run(
            ["bash", "-c", result.text],
            cwd=root,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            check=True,
            capture_output=True,
        )
        assert done.stdout
    assert not (tmp_path / "ran").exists()


@pytest.mark.found("issue 20", "git used another repository than the one that was checked; such a directory asks")
def test_git_directory_that_leads_elsewhere_asks(tmp_path: Path) -> None:
    root = make_repository(tmp_path)
    dot_git = root / ".git"
    assert passes("git log -p", around(root))

    (root / "other").mkdir()
    (dot_git / "commondir").write_text("../other\n")
    (root / "other/config").write_text('[filter "x"]\n\tclean = ./run.sh\n')
    assert not passes("git status", around(root))
    (dot_git / "commondir").unlink()

    head = (dot_git / "HEAD").read_text()
    (dot_git / "HEAD").write_text("not valid, so git uses the parent\n")
    assert not passes("git status", around(root))
    (dot_git / "HEAD").write_text(head)

    (dot_git / "objects/ab").symlink_to(tmp_path / "outside")
    assert not passes("git log -p", around(root))
    (dot_git / "objects/ab").unlink()

    (dot_git / "config").unlink()
    os.mkfifo(dot_git / "config")
    assert not passes("git status", around(root))

    shutil.move(dot_git, tmp_path / "outside.git")
    dot_git.write_text("gitdir: other\n")
    (root / "other/gitdir").write_text(f"{dot_git}\n")
    (root / "other/commondir").write_text(f"{tmp_path}/outside.git\n")
    assert not passes("git log -p", around(root))


def test_scripts_ask_if_the_workspace_is_in_path(tmp_path: Path) -> None:
    root = make_repository(tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/egrep").write_text('#!/bin/sh\nexec grep -E "$@"\n')
    (tmp_path / "tools/egrep").chmod(0o755)
    assert passes("egrep x a.txt", around(root))
    path = f"{tmp_path}/tools:{root}/bin:/usr/bin:/bin"
    assert not passes("egrep x a.txt", around(root, variables={"PATH": path}))
    assert passes("grep -E x a.txt", around(root, variables={"PATH": path}))
    assert not passes("egrep x a.txt", around(root, variables={"PERL5LIB": "lib"}))
    (tmp_path / "tools/rustup").write_bytes(b"program")
    (tmp_path / "tools/rustup").chmod(0o755)
    os.link(tmp_path / "tools/rustup", tmp_path / "tools/cargo")
    assert not passes("cargo --version", around(root))


def test_xargs_passes_only_paths_of_the_workspace(root: Path) -> None:
    (root / "names.txt").write_text("a.txt\n-n\n")
    for line, is_read in (
        ("echo a.txt | xargs cat", True),
        ("echo src/main.py a.txt | xargs -n1 head -1", True),
        ("echo ../outside/secret.txt | xargs cat", False),
        ("echo link_file | xargs cat", False),
        ("echo .env | xargs cat", False),
        ("echo link_env | xargs cat", False),
        ("cat names.txt | xargs cat", False),
        ("printf 'a.txt\\n../outside/secret.txt\\n' | xargs -I{} cat {}", False),
        ("echo 'x ../outside/secret.txt' | xargs cat", False),
    ):
        result = checked(line, around(root))
        assert result is not None
        assert all(result.parts), line
        done = subprocess.run(
            ["bash", "-c", result.text], cwd=root, env={"PATH": "/usr/bin:/bin"}, check=False, capture_output=True
        )
        assert (b"one" in done.stdout or b"import" in done.stdout) == is_read, (line, done)
        assert b"outside" not in done.stdout
        assert b"SECRET" not in done.stdout


def test_globs_are_expanded_before_the_check(root: Path, tmp_path: Path) -> None:
    for name in ("--output=x", "a.txt", "b c.txt", ".hidden"):
        (tmp_path / name).touch()
    assert not passes("sort *", around(tmp_path))
    result = checked("ls *.txt '*' ./*x; touch d.txt; ls *.txt", around(tmp_path))
    assert result is not None
    assert result.parts == (True, False, False), "the glob may mean other files by then"
    ls = shutil.which("ls", path="/usr/bin:/bin")
    assert result.text == f"{ls} a.txt 'b c.txt' '*' ./--output=x ; touch d.txt ; ls *.txt"


@pytest.mark.timeout(60)
def test_long_lines_take_bounded_time(tmp_path: Path) -> None:
    """A pattern that is tried in all ways, or globs that multiply, would take hours."""
    for number in range(200):
        (tmp_path / f"{'a' * 200}{number}").touch()
    blanks, brackets = " " * 9000, "[^a]" * 2000
    for line in (
        f"sed -n '{blanks}x' f",
        f"sed -n '/{brackets}' f",
        f"sed -n '{'1,2p;' * 1500}w x' f",
        f"printf '%{'0' * 9000}'",
        f"jq '{'env ' * 2000}x' f",
        "cat " + "*a*a*a*a*a*b " * 600,
        "cat " + "* " * 4000,
        ";".join(["cat *"] * 100),
    ):
        assert not passes(line, around(tmp_path)), line[:50]
