"""Programs that a rule with a wildcard must not cover.

The author of `bash(find *)` thinks of finding files, not of `find -exec`. A command that runs another program or code,
or writes to a path in an option of an otherwise read-only program, is covered only by a rule that spells every word.
(`python -m build *` is the one exception, see core/approvals: it names the code that runs.)

The lists are long on purpose: a wrong entry costs a question, a missing entry costs what the question protects. A
wildcard covers programs whose purpose is to run the workspace's own code (`make`, `cargo test`, `npm test`), but not
their ways to run other code.
"""

from __future__ import annotations

import re
from collections.abc import Callable


def listed(names: str) -> frozenset[str]:
    return frozenset(names.split())


SHELLS = listed(
    "sh bash zsh dash ksh mksh pdksh fish csh tcsh ash rbash rzsh rksh yash elvish nu xonsh pwsh powershell"
)

#: Programs that run the command after their own options.
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

#: Programs that can run other code or programs, or open a program that does (pagers and editors have `!`).
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

_ANY_CODE = SHELLS | WRAPPERS | _RUNNERS

#: Builtins that evaluate array subscripts in their arguments: `test -v 'a[$(rm x)]'` runs rm.
_SUBSCRIPT_BUILTINS = listed(
    "test [ printf read unset declare typeset local export readonly getopts mapfile readarray wait"
)

#: Names of find and fd, and their options before a command.
FINDERS = listed("find gfind fd fdfind")
FIND_RUNS = listed("-exec -execdir -ok -okdir -x -X --exec --exec-batch")

#: Options of otherwise read-only programs that run programs or write files: long options without dashes (programs
#: accept abbreviations, so they count), short options as letters (anywhere in a cluster).
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

#: Subcommands that run other code: a rule such as `npm *` is hardly meant for `npm exec`.
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
#: Subcommands that install the workspace's dependencies, which is fine, or a named package, whose scripts then run.
_INSTALLING_PARTS: dict[str, frozenset[str]] = {
    "npm": listed("install i in ins add isntall update up upgrade link"),
    "yarn": listed("add up upgrade link"),
    "pnpm": listed("install i add update up link"),
    "uv": listed("add"),
}
#: Known subcommands of programs that accept abbreviations, or run names that they do not know.
_KNOWN_PARTS: dict[str, frozenset[str]] = {
    "npm": listed("""run run-script test t start stop restart ci clean-install ls list ll la view info show outdated
        audit why explain fund ping prune dedupe search pack whoami root bin query doctor uninstall remove rm"""),
    "pnpm": listed("run test t start stop remove rm uninstall ls list ll la why outdated audit prune fetch root bin"),
}
#: Settings of cmake that name a program, or a file with code.
_CMAKE_SETTING = re.compile(
    r"COMPILER|LAUNCHER|PROGRAM|EXECUTABLE|LINKER|TOOLCHAIN|RULE|EMULATOR|INCLUDE|MODULE_PATH|_(AR|RANLIB|NM|STRIP)\b"
)

#: Subcommands of git that a wildcard may cover. Others run commands (`bisect run`, `submodule foreach`), configure
#: commands (`config`), or may be an alias.
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
#: Subcommands of git that run another command, for deny rules.
GIT_WRAPPERS = listed("bisect submodule rebase filter-branch difftool mergetool")
#: Options of git before the subcommand whose value is the next word.
_GIT_VALUES = listed(
    "-c -C --git-dir --work-tree --namespace --exec-path --config-env --super-prefix --attr-source --shallow-file"
)

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*w?")
_VERSIONED = re.compile(r"([a-z][a-z+-]*?)-?\d+(?:\.\d+)*")
#: A sed script that only prints, deletes or substitutes: it writes no file and runs no command.
_SED_SCRIPT = re.compile(
    r"(?:\d+|\$)?(?:,(?:\d+|\$|\+\d+))?"  # lines
    r"(?:[pdq=]|s([/|,:#])(?:(?!\1)[^\\\n]|\\[^\n])*\1(?:(?!\1)[^\\\n]|\\[^\n])*\1[gpiI\d]*)"
)


def program_name(word: str) -> str:
    """Return the name of a program without its directory."""
    return word.rpartition("/")[2]


def runs_others(words: tuple[str, ...]) -> bool:
    """Return whether a command runs other programs or code, or writes to a place that it names."""
    name = program_name(words[0]).lower().removesuffix(".exe")  # some file systems ignore case
    rest = words[1:]
    if _runs_any_code(name):
        return True
    if name in _DECIDING_CHECKS:
        return _DECIDING_CHECKS[name](rest)
    if name in _FURTHER_CHECKS and _FURTHER_CHECKS[name](rest):
        return True
    if _has_running_part(name, rest):
        return True
    return name in _OPTIONS and _has_option(rest, *_OPTIONS[name], single_dash=name == "go")


def _runs_any_code(name: str) -> bool:
    versioned = _VERSIONED.fullmatch(name)  # perl5.36, clang-17
    names = {name, versioned[1]} if versioned else {name}
    if not names.isdisjoint(_ANY_CODE):
        return True
    return not name or bool(_PYTHON.fullmatch(name)) or name.startswith(("ld-linux", "ld-musl", "ld.so", "ld64"))


def _has_running_part(name: str, rest: tuple[str, ...]) -> bool:
    plain = [word for word in rest if not word.startswith("-")]
    installing = _INSTALLING_PARTS.get(name, frozenset())
    if len(plain) > 1 and not installing.isdisjoint(plain):
        return True
    if not _RUNNING_PARTS.get(name, frozenset()).isdisjoint(rest):
        return True
    return name in _KNOWN_PARTS and bool(plain) and plain[0] not in _KNOWN_PARTS[name] | installing


def _has_subscript(rest: tuple[str, ...]) -> bool:
    return any("[" in word for word in rest)


def _find_runs_others(rest: tuple[str, ...]) -> bool:
    return any(word.startswith(("-exec", "-ok", "-delete", "-fprint", "-fls", "-files0")) for word in rest)


def _has_output_file(rest: tuple[str, ...]) -> bool:
    """uniq and xxd write to their second file."""
    return sum(word == "-" or not word.startswith("-") for word in rest) > 1


def _sets_variable(rest: tuple[str, ...]) -> bool:
    """`make SHELL=...`"""
    return any("=" in word for word in rest)


def _tar_runs_others(rest: tuple[str, ...]) -> bool:
    """host:archive starts a remote shell; `tar cIf` needs no dash."""
    return any(":" in word for word in rest) or _has_letter(f"-{rest[0] if rest else ''}", "IFTg")


def _sets_linker(rest: tuple[str, ...]) -> bool:
    """`go build -ldflags -extld=...`"""
    return any("extld" in word for word in rest)


def _cmake_runs_others(rest: tuple[str, ...]) -> bool:
    """Words after -- are for make; a path outside the workspace holds foreign code."""
    return any(_CMAKE_SETTING.search(word) or word in ("--", "..") or word.startswith(("/", "../")) for word in rest)


def _sends_file(rest: tuple[str, ...]) -> bool:
    """`curl -H @file`, `--variable name@file`."""
    return any("@" in word for word in rest)


def _has_option(words: tuple[str, ...], long: str, letters: str, *, single_dash: bool = False) -> bool:
    """`single_dash`: long options have one dash, as those of go."""
    names = long.split()
    for word in words:
        if word.startswith("--") or (single_dash and word.startswith("-")):
            option = word.lstrip("-").split("=", 1)[0]
            if option and any(name.startswith(option) for name in names):
                return True
        elif _has_letter(word, letters):
            return True
    return False


def _has_letter(word: str, letters: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and any(letter in word for letter in letters)


def _git_runs_others(rest: tuple[str, ...]) -> bool:
    if any("::" in word for word in rest):  # a remote: ext::sh -c ...
        return True
    if not rest or rest in (("--version",), ("version",)):
        return False
    part = rest[0]
    if part not in _GIT_PARTS:  # also an option before the subcommand: -c core.pager=..., -C elsewhere, --exec-path
        return True
    if part == "push" and _pushes_to_path(rest[1:]):
        return True
    return _has_option(rest[1:], _GIT_OPTIONS, {"grep": "O", "format-patch": "o"}.get(part, ""))


def _pushes_to_path(rest: tuple[str, ...]) -> bool:
    """Return whether a push goes to a repository on this machine, whose hooks would run."""
    remote = next((word for word in rest if not word.startswith("-")), "")
    return "/" in remote or any(re.match(r"[./~]|file:", word) for word in rest)


def without_git_options(words: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Return `git push` for `git -C x push`, for deny rules."""
    index = 1
    while index < len(words) and (word := words[index]) is not None and word.startswith("-"):
        index += 2 if word in _GIT_VALUES else 1
    return (words[0], *words[index:])


def _sed_runs_others(rest: tuple[str, ...]) -> bool:
    """Return whether sed does more than print, delete and substitute: `w` and -i write, `e` runs, -f reads a script."""
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


#: Programs with a check of their own. It alone decides.
_DECIDING_CHECKS: dict[str, Callable[[tuple[str, ...]], bool]] = {
    **dict.fromkeys(_SUBSCRIPT_BUILTINS, _has_subscript),
    "git": _git_runs_others,
    "sed": _sed_runs_others,
    "gsed": _sed_runs_others,
    "find": _find_runs_others,  # fd has options like other programs
    "gfind": _find_runs_others,
}
#: Programs with a check in addition to their options and parts.
_FURTHER_CHECKS: dict[str, Callable[[tuple[str, ...]], bool]] = {
    "uniq": _has_output_file,
    "xxd": _has_output_file,
    "make": _sets_variable,
    "gmake": _sets_variable,
    "tar": _tar_runs_others,
    "bsdtar": _tar_runs_others,
    "go": _sets_linker,
    "cmake": _cmake_runs_others,
    "curl": _sends_file,
}
