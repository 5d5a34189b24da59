"""Programs that do more than they say: what a rule with a wildcard must not cover.

Whoever writes `bash(find *)` thinks of looking for files, not of `find -exec`. A use that runs another program or code
given to it, or writes to a place given by an option of a program that otherwise looks, is covered only by a rule that
spells every word. (`python -m build *` is the one exception, see core/approvals: it says which code runs.)

The lists lean to the long side: a wrong entry costs a question, a missing one costs what the question is for. Programs
that run the workspace's own code, and are meant to (`make`, `cargo test`, `npm test`), are covered by a wildcard; their
ways to run something else are not.
"""

from __future__ import annotations

import re


def listed(names: str) -> frozenset[str]:
    return frozenset(names.split())


SHELLS = listed(
    "sh bash zsh dash ksh mksh pdksh fish csh tcsh ash rbash rzsh rksh yash elvish nu xonsh pwsh powershell"
)

#: They run the command that stands behind their own options.
WRAPPERS = listed("""
    env sudo doas su runuser pkexec gosu su-exec timeout gtimeout nice ionice nohup setsid stdbuf unbuffer chroot
    unshare nsenter chrt taskset numactl prlimit setarch linux32 linux64 capsh setpriv start-stop-daemon systemd-run
    xargs gxargs parallel watch entr time gtime strace ltrace perf valgrind script flock run-parts xvfb-run
    dbus-run-session dbus-launch fakeroot proot bwrap firejail busybox toybox catchsegv command builtin exec eval coproc
    trap ssh mosh rsh at batch caffeinate chronic ifne ts daemon daemonize cpulimit rlwrap torsocks proxychains
    proxychains4 direnv ssh-agent sem sg newgrp faketime nocache eatmydata xcrun npx bunx pipx uvx choom uclampset
    x86_64 i386 i486 i586 i686 uname26 hyperfine watchexec ccache sccache distcc scan-build bear systemd-inhibit
    systemd-cat gnome-session-inhibit run0 runcon aa-exec tini dumb-init chpst setuidgid envdir sshpass pee openvt
    """)

#: They run code or programs they are given, in one way or another, or open what does (pagers and editors have `!`).
_RUNNERS = listed("""
    perl ruby irb pry node nodejs deno bun php lua luajit awk gawk mawk nawk tclsh wish expect r rscript julia osascript
    guile racket java jshell groovy kotlin scala runghc ghci ghc ocaml elixir iex erl escript swift sbcl clisp ipython
    ipython3 jupyter ts-node tsx dotnet mono octave gnuplot m4 dc ed ex vi vim nvim view vimdiff rvim gvim emacs
    emacsclient nano pico micro joe code subl less more most pg man info lesspipe xdg-open open gnome-open start
    sqlite3 psql mysql mariadb mongo mongosh redis-cli ftp lftp sftp scp rsync socat nc ncat netcat telnet gdb lldb
    crontab screen tmux byobu docker podman nerdctl kubectl lxc lxc-exec vagrant ansible ansible-playbook terraform
    packer helm nix nix-shell nix-build guix gpg openssl tcpdump nmap rpm dpkg apt apt-get yum dnf brew snap pip pip3
    source . alias unalias enable bind complete compgen fc let hash set shopt gcc g++ cc c++ clang clang++ ld
    hg svn gh glab svnadmin cpio zip 7z 7za ar ant gradle gradlew mvn mvnw sbt bazel buck rake bundle poetry pipenv
    hatch conda mamba asdf mise nvm rbenv pyenv rustup vagga dd tee ip nsupdate systemctl service launchctl loginctl
    fzf peco install mount umount insmod modprobe kexec ldconfig visudo update-alternatives x-terminal-emulator
    xterm gnome-terminal konsole kitty alacritty yt-dlp youtube-dl latex pdflatex xelatex lualatex tex ghostscript gs
    convert magick ffmpeg tox nox pre-commit just task invoke fab celery flask django-admin rails cmd wsl tcc raku hy
    rename prename perl-rename rustc pandoc ssh-keygen
    clojure lein bb logrotate stap bpftrace dtrace xdotool flatpak luarocks cpan aptitude pacman apk zypper emerge
    """)

#: Builtins that evaluate an array's subscript in their words: `test -v 'a[$(rm x)]'` runs rm.
_SUBSCRIPT_BUILTINS = listed(
    "test [ printf read unset declare typeset local export readonly getopts mapfile readarray wait"
)

#: Names of find and fd, and the options of theirs that a command follows.
FINDERS = listed("find gfind fd fdfind")
FIND_RUNS = listed("-exec -execdir -ok -okdir -x -X --exec --exec-batch")

#: Options that run something, or write somewhere, of programs that otherwise look: long ones without dashes (an
#: abbreviation counts: programs accept it), short ones as letters (anywhere in a cluster).
_OPTIONS: dict[str, tuple[str, str]] = {
    "fd": ("exec exec-batch", "xX"),
    "fdfind": ("exec exec-batch", "xX"),
    "rg": ("pre hostname-bin search-zip", "z"),
    "ag": ("pager", ""),
    "ack": ("pager output files-from", ""),
    "bat": ("pager paging", ""),
    "batcat": ("pager paging", ""),
    "ctest": ("script script-new-process build-and-test build-makeprogram test-command", "S"),
    "pylint": ("init-hook load-plugins rcfile", ""),
    "tar": (
        "to-command checkpoint-action use-compress-program rsh-command rmt-command info-script new-volume-script "
        "files-from index-file listed-incremental volno-file",
        "IFTg",
    ),
    "bsdtar": ("use-compress-program files-from", "IT"),
    "sort": ("compress-program output", "o"),
    "shuf": ("output", "o"),
    "tree": ("output", "o"),
    "split": ("filter", ""),
    "csplit": ("prefix", "f"),
    "diff": ("output", ""),
    "sdiff": ("diff-program output", "o"),
    "diff3": ("diff-program", ""),
    "date": ("set", "s"),
    "file": ("compile magic-file", "Cm"),
    "yq": ("inplace", "i"),
    "curl": ("output remote-name remote-name-all output-dir config dump-header cookie-jar trace trace-ascii stderr "
             "libcurl hsts etag-save upload-file engine proto unix-socket netrc-file write-out alt-svc data data-ascii "
             "data-binary data-urlencode url-query form json", "oOKDcTwdF"),
    "wget": ("output-document output-file append-output execute use-askpass config directory-prefix post-file "
             "body-file save-cookies warc-file rejected-log hsts-file", "OoaeP"),
    "make": ("eval file makefile directory include-dir", "fCIE"),
    "gmake": ("eval file makefile directory include-dir", "fCIE"),
    "ninja": ("", "fC"),
    "cmake": ("toolchain install open", "PEC"),
    "go": ("exec toolexec vettool overlay modfile C", ""),
    "cargo": ("config manifest-path", "ZC"),
    "npm": ("script-shell prefix globalconfig userconfig node-options shell editor viewer git", "C"),
    "yarn": ("cwd script-shell use-yarnrc", ""),
    "pnpm": ("script-shell dir", "C"),
    "xxd": ("revert", "r"),
    "jobs": ("", "x"),
    "nm": ("plugin", ""),
    "objdump": ("plugin", ""),
}  # fmt: skip
#: go takes its long options with a single dash.
_SINGLE_DASH = frozenset({"go", "find"})

#: Parts of a program that run what they are given: a rule such as `npm *` was hardly written for `npm exec`.
_RUNNING_PARTS: dict[str, frozenset[str]] = {
    "npm": listed("exec x init create innit explore edit config set c help docs bugs repo install-test pkg"),
    "yarn": listed("dlx exec node create config init set plugin"),
    "pnpm": listed("dlx exec create config env x"),
    "go": listed("run generate tool get install env"),
    "cargo": listed("install run r config script rustc rustdoc"),
    "uv": listed("run tool pip"),
    "pdm": listed("run"),
    "rye": listed("run"),
    "pixi": listed("run exec"),
    "coverage": listed("run"),
    "opam": listed("exec install"),
    "gem": listed("install exec"),
    "zig": listed("run"),
    "dart": listed("run"),
    "cabal": listed("run exec install"),
    "stack": listed("run exec install"),
    "dune": listed("exec"),
    "mix": listed("run"),
}
#: Parts that install what the workspace names, which is meant, or a package given to them, whose scripts then run.
_INSTALLING_PARTS: dict[str, frozenset[str]] = {
    "npm": listed("install i in ins add isntall update up upgrade link"),
    "yarn": listed("add up upgrade link"),
    "pnpm": listed("install i add update up link"),
    "uv": listed("add"),
}
#: Programs that take any abbreviation of a part, or run what they do not know: only these parts are looked at.
_KNOWN_PARTS: dict[str, frozenset[str]] = {
    "npm": listed("""run run-script test t start stop restart ci clean-install ls list ll la view info show outdated
        audit why explain fund ping prune dedupe search pack whoami root bin query doctor uninstall remove rm"""),
    "pnpm": listed("run test t start stop remove rm uninstall ls list ll la why outdated audit prune fetch root bin"),
}
#: Settings of cmake that name a program, or code of its own to read.
_CMAKE_SETTING = re.compile(
    r"COMPILER|LAUNCHER|PROGRAM|EXECUTABLE|LINKER|TOOLCHAIN|RULE|EMULATOR|INCLUDE|MODULE_PATH|_(AR|RANLIB|NM|STRIP)\b"
)

#: Parts of git that a wildcard may cover. Others run commands (`bisect run`, `submodule foreach`), set what will be run
#: (`config`), or may be an alias for anything.
_GIT_PARTS = listed("""
    status diff log show branch tag add commit checkout switch restore reset stash push pull fetch merge cherry-pick
    revert rm mv blame annotate grep ls-files ls-tree ls-remote rev-parse rev-list cat-file describe shortlog reflog
    merge-base name-rev show-ref show-branch symbolic-ref remote count-objects diff-tree diff-index diff-files clean
    format-patch whatchanged check-ignore check-attr check-mailmap for-each-ref hash-object cherry range-diff
    """)
_GIT_OPTIONS = (
    "upload-pack receive-pack exec ext-diff textconv output output-directory template open-files-in-pager config "
    "config-env exec-path edit-description interactive edit patch paginate pathspec-from-file repo"
)
#: Parts of git that run a command given to them, for deny rules.
GIT_WRAPPERS = listed("bisect submodule rebase filter-branch difftool mergetool")
#: Of git itself, before the part: with a value as the next word.
_GIT_VALUES = listed(
    "-c -C --git-dir --work-tree --namespace --exec-path --config-env --super-prefix --attr-source --shallow-file"
)

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*w?")
_VERSIONED = re.compile(r"([a-z][a-z+-]*?)-?\d+(?:\.\d+)*")
#: A script of sed that only prints, deletes or substitutes: no file to write, no command to run.
_SED_SCRIPT = re.compile(
    r"(?:\d+|\$)?(?:,(?:\d+|\$|\+\d+))?"  # lines
    r"(?:[pdq=]|s([/|,:#])(?:(?!\1)[^\\\n]|\\[^\n])*\1(?:(?!\1)[^\\\n]|\\[^\n])*\1[gpiI\d]*)"
)


def program_name(word: str) -> str:
    """The name a program goes by, wherever it lies."""
    return word.rpartition("/")[2]


def runs_others(words: tuple[str, ...]) -> bool:
    name = program_name(words[0]).lower().removesuffix(".exe")  # some file systems do not mind capitals
    rest = words[1:]
    base = found[1] if (found := _VERSIONED.fullmatch(name)) else name  # perl5.36, clang-17
    for known in (name, base):
        if known in SHELLS or known in WRAPPERS or known in _RUNNERS:
            return True
    if not name or _PYTHON.fullmatch(name) or name.startswith(("ld-linux", "ld-musl", "ld.so", "ld64")):
        return True
    if name in _SUBSCRIPT_BUILTINS:
        return any("[" in word for word in rest)
    if name == "git":
        return _git_runs_others(rest)
    if name in ("sed", "gsed"):
        return _sed_runs_others(rest)
    if name in ("find", "gfind"):  # fd has options like other programs
        return any(word.startswith(("-exec", "-ok", "-delete", "-fprint", "-fls", "-files0")) for word in rest)
    if name in ("uniq", "xxd") and sum(word == "-" or not word.startswith("-") for word in rest) > 1:
        return True  # the second file is written
    if name in ("make", "gmake") and any("=" in word for word in rest):
        return True  # SHELL=...
    if name in ("tar", "bsdtar") and (
        any(":" in word for word in rest) or _has_letter(f"-{rest[0] if rest else ''}", "IFTg")
    ):
        return True  # host:archive runs a remote shell; `tar cIf` needs no dash
    if name == "go" and any("extld" in word for word in rest):
        return True
    if name == "cmake" and any(
        _CMAKE_SETTING.search(word) or word in ("--", "..") or word.startswith(("/", "../")) for word in rest
    ):
        return True  # behind -- stands what make is given; elsewhere lies code of others
    if name == "curl" and any("@" in word for word in rest):
        return True  # -H @file, --variable name@file: what it reads it sends
    given = [word for word in rest if not word.startswith("-")]
    if len(given) > 1 and not _INSTALLING_PARTS.get(name, frozenset()).isdisjoint(given):
        return True
    parts = _RUNNING_PARTS.get(name)
    if parts is not None and any(word in parts for word in rest):
        return True
    known_parts = _KNOWN_PARTS.get(name)
    if known_parts is not None and given and given[0] not in known_parts | _INSTALLING_PARTS[name]:
        return True
    return name in _OPTIONS and _has_option(rest, *_OPTIONS[name], single_dash=name in _SINGLE_DASH)


def _has_option(words: tuple[str, ...], long: str, letters: str, *, single_dash: bool = False) -> bool:
    names = long.split()
    for word in words:
        if word.startswith("--") or (single_dash and word.startswith("-")):
            given = word.lstrip("-").split("=", 1)[0]
            if given and any(name.startswith(given) for name in names):
                return True
        elif _has_letter(word, letters):
            return True
    return False


def _has_letter(word: str, letters: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and any(letter in word for letter in letters)


def _git_runs_others(rest: tuple[str, ...]) -> bool:
    if any("::" in word for word in rest):  # ext::sh -c ... is a remote
        return True
    if not rest or rest in (("--version",), ("version",)):
        return False
    part = rest[0]
    if part not in _GIT_PARTS:  # an option before the part, too: -c core.pager=..., -C elsewhere, --exec-path
        return True
    if part == "push" and any(re.match(r"[./~]|file:", word) for word in rest[1:]):
        return True  # a repository here: its hooks run, whoever has put it there
    given = next((word for word in rest[1:] if not word.startswith("-")), "")
    if part == "push" and "/" in given:
        return True
    return _has_option(rest[1:], _GIT_OPTIONS, {"grep": "O", "format-patch": "o"}.get(part, ""))


def without_git_options(words: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """`git -C x push` is `git push`, for a deny rule."""
    place = 1
    while place < len(words) and (word := words[place]) is not None and word.startswith("-"):
        place += 2 if word in _GIT_VALUES else 1
    return (words[0], *words[place:])


def _sed_runs_others(rest: tuple[str, ...]) -> bool:
    """Everything but printing, deleting and substituting lines: `w` writes, `e` runs, -i writes, -f reads a script."""
    scripts: list[str] = []
    words = list(rest)
    while words:
        word = words.pop(0)
        if word in ("-e", "--expression"):
            if not words:
                return True
            scripts.append(words.pop(0))
        elif word.startswith("-") and word != "-":
            if word not in ("-n", "-E", "-r", "-u", "-z", "--quiet", "--silent", "--regexp-extended", "--version"):
                return True
        elif not scripts:
            scripts.append(word)
    return any(not _SED_SCRIPT.fullmatch(script) for script in scripts)
