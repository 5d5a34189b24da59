"""Programs that run others: shells, wrappers, interpreters and the like.

A rule with a wildcard covers them only as `wildcard_programs` lists. The lists are long on purpose: a wrong entry costs
a question, a missing entry costs what the question protects.
"""

from __future__ import annotations

import re


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
    unzip gunzip bunzip2 unxz tar bsdtar patch curl wget http aria2c axel yarn pnpm npm uv pdm rye pixi opam gem zig
    dart cabal stack dune mix cargo go coverage yq split csplit shuf date jobs ctest pylint ag ack bat batcat nm objdump
    clojure lein bb logrotate stap bpftrace dtrace xdotool flatpak luarocks cpan aptitude pacman apk zypper emerge
    """)

_ANY_CODE = SHELLS | WRAPPERS | _RUNNERS

#: Names of find and fd, and their options before a command.
FINDERS = listed("find gfind fd fdfind")
FIND_RUNS = listed("-exec -execdir -ok -okdir -x -X --exec --exec-batch")

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


def runs_any_code(name: str) -> bool:
    """Return whether a program can run other code or programs, or writes files that its arguments do not name."""
    versioned = _VERSIONED.fullmatch(name)  # perl5.36, clang-17
    names = {name, versioned[1]} if versioned else {name}
    if not names.isdisjoint(_ANY_CODE):
        return True
    return not name or bool(_PYTHON.fullmatch(name)) or name.startswith(("ld-linux", "ld-musl", "ld.so", "ld64"))


def without_git_options(words: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Return `git push` for `git -C x push`, for deny rules."""
    index = 1
    while index < len(words) and (word := words[index]) is not None and word.startswith("-"):
        index += 2 if word in _GIT_VALUES else 1
    return (words[0], *words[index:])


def is_sed_printing(rest: tuple[str, ...]) -> bool:
    """Return whether sed only prints, deletes and substitutes: `w` and -i write, `e` runs, -f reads a script."""
    scripts: list[str] = []
    words = list(rest)
    while words:
        word = words.pop(0)
        if word in ("-e", "--expression"):
            if not words:
                return False
            scripts.append(words.pop(0))
        elif word.startswith("-") and word != "-":
            if word not in ("-n", "-E", "-r", "-u", "-z", "--quiet", "--silent", "--regexp-extended", "--version"):
                return False
        elif not scripts:
            scripts.append(word)
    return all(_SED_SCRIPT.fullmatch(script) for script in scripts)
