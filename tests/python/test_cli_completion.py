"""Completion of the command in shells, offline and from a server's description."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import forking
import pexpect
import programs
import pytest
from described import DOCUMENT, Described, described, method, param

from ucall import cli


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The variables of a shell that has the command."""
    (tmp_path / "bin").mkdir()
    forking.write_command(tmp_path / "bin" / "ucall")
    return {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TERM": "dumb"}


@pytest.fixture
def peer() -> Iterator[Described]:
    with described() as peer:
        yield peer


@pytest.fixture
def complete(capfd: pytest.CaptureFixture[str]) -> Iterator[object]:
    """The candidates for the last word, without their descriptions."""

    def complete(*words: str, shell: str = "fish") -> list[str]:
        assert cli.main(["__complete", shell, *words]) == 0
        out, errors = capfd.readouterr()
        assert errors == ""
        return [line.partition("\t")[0] for line in out.splitlines()]

    yield complete


def test_options_need_no_server(complete) -> None:
    assert complete("--for") == ["--format"]
    assert {"--help", "--typed", "-p", "--list"} <= set(complete("-"))
    assert complete("--format", "n") == ["numpy"]
    assert complete("--completion", "") == ["bash", "zsh", "fish"]
    assert complete("-o", "") == complete("--uri", "") == []


def test_methods_and_params_of_the_server(complete, peer: Described) -> None:
    server = ("-p", str(peer.port))
    assert complete(*server, "") == [it["name"] for it in DOCUMENT["methods"]]
    assert complete(*server, "s") == ["sum", "store", "scale"]
    assert complete(*server, "sum", "") == ["a=", "b="]
    assert complete(*server, "sum", "a=1", "") == ["b="]
    assert complete(*server, "sum", "a:int=1", "") == ["b="]
    assert complete(*server, "paint", "unit=") == ["unit=mm", "unit=cm"]
    assert complete(*server, "paint", "wide=t") == ["wide=true"]
    assert complete(*server, "absent", "") == complete(*server, "sum", "a=") == []
    assert peer.requests == []


def test_descriptions(peer: Described, capfd: pytest.CaptureFixture[str]) -> None:
    cli.main(["__complete", "zsh", "-p", str(peer.port), "sum", ""])
    assert capfd.readouterr() == ("a=\tint\nb=\tint >= 0\n", "")


def test_bash_gets_what_follows_its_word_breaks(complete, peer: Described) -> None:
    line = f"ucall -p {peer.port} "
    breaks = " \t\n\"'@><=;|&(:"
    assert complete(f"{line}su", breaks, shell="bash") == ["sum"]
    assert complete(f"{line}paint unit=m", breaks, shell="bash") == ["mm"]
    assert complete(f"{line}paint 'unit=m", breaks, shell="bash") == ["'unit=mm'"]
    assert complete(f'{line}paint "un', breaks, shell="bash") == ['"unit=']
    assert complete(f"{line}paint ", " ", shell="bash")[:2] == ["unit=", "wide="]


def test_the_server_is_asked_once(complete, cache: Path) -> None:
    with described() as peer:
        server = ("-p", str(peer.port))
        for _ in range(3):
            assert complete(*server, "su") == ["sum"]
        assert peer.asked == 1
        (kept,) = (cache / "ucall").iterdir()
        assert kept.stat().st_mode & 0o777 == 0o600
        assert json.loads(kept.read_text())["expires"] <= time.time() + 60
        assert complete(*server, "-H", "Authorization: x", "su") == ["sum"]
        assert peer.asked == 2  # Another caller may see other methods.
        kept.write_text(json.dumps(json.loads(kept.read_text()) | {"expires": 0}))
        assert complete(*server, "su") == ["sum"]
        assert peer.asked == 3
    assert complete(*server, "su") == ["sum"]  # It is gone, but its answer is kept.


@pytest.mark.parametrize("kept", ["", "[]", "{", '{"expires": "x"}', '{"expires": 1e99}'])
def test_a_damaged_file_is_replaced(complete, cache: Path, peer: Described, kept: str) -> None:
    complete("-p", str(peer.port), "s")
    (path,) = (cache / "ucall").iterdir()
    path.write_text(kept)
    assert complete("-p", str(peer.port), "su") == ["sum"]


def test_without_a_server_nothing_is_printed(complete, tmp_path: Path) -> None:
    assert complete("-p", "1", "su") == []
    assert complete("--uri", "ftp://x", "su") == complete("--nonsense", "su") == []
    assert complete("-p", "1") == complete("-p", "1", "") == []
    assert complete("-p", "x", "su") == complete("ucall 'a", shell="bash") == []
    with described({"methods": 5}) as peer:
        assert complete("-p", str(peer.port), "su") == []


def test_a_server_that_does_not_reply(complete) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        assert complete("-p", port, "su") == []
        silent.settimeout(0)
        silent.accept()[0].close()
        assert complete("-p", port, "su") == []
        with pytest.raises(BlockingIOError):
            silent.accept()  # It is not asked again at once.


def test_the_server_has_a_second_to_reply(complete, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []

    def new_client(options: argparse.Namespace, observer: object) -> NoReturn:
        timeouts.append(options.timeout)
        raise OSError

    monkeypatch.setattr(cli, "_client", new_client)
    assert complete("su") == complete("--timeout", "0.5", "-p", "1", "su") == []
    assert timeouts == [1.0, 0.5]


def test_a_folder_that_cannot_be_written(
    complete, peer: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert complete("-p", str(peer.port), "su") == ["sum"]


#: Names and values that a word of the command line cannot be, or would be something else.
UNSAFE = ["a\nb", "a\rb", "a\tb", "\x1b[2K", "a\u202eb", "", "-o.bashrc", "--output=x"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_words_that_are_no_candidates(complete, shell: str) -> None:
    choices = {"enum": [*UNSAFE[:5], "@.ssh/id_rsa", "safe"]}
    params = [param(name, {}) for name in (*UNSAFE, "a=b", "a=@.ssh/id_rsa", "a:text") if name]
    document = {
        "methods": [
            *(method(name, summary="x\ty\x1b") for name in UNSAFE if name),
            method("safe", param("to", choices), *params, summary="x\ny"),
        ]
    }
    with described(document) as peer:
        words = ("-p", str(peer.port)) if shell != "bash" else (f"ucall -p {peer.port} ", " ")

        def candidates(typed: str) -> list[str]:
            if shell == "bash":
                return complete(words[0] + typed, words[1], shell=shell)
            return complete(*words, *typed.split(" "), shell=shell)

        assert candidates("") == ["safe"]
        assert candidates("safe ") == ["to="]
        assert candidates("safe to=") == ["to=safe"]


def test_no_word_of_a_menu_is_run(tmp_path: Path, environment: dict[str, str]) -> None:
    names = [
        "sum\n$(touch owned) #",
        "sun\r$(touch owned) #",
        "sup;touch owned",
        "su$(touch owned)",
    ]
    with described({"methods": [method(name) for name in names]}) as peer:
        child = pexpect.spawn(
            programs.require("bash"),
            ["--norc", "--noprofile", "-i"],
            cwd=str(tmp_path),
            env=environment,
            encoding="utf-8",
            timeout=60,
        )
        child.sendline(f"PS1='>''>'; bind 'TAB:menu-complete'; {SETUP['bash']}; echo is-'ready'")
        child.expect("is-ready\r\n.*>>")
        for tabs in range(1, len(names) + 2):
            # The words are printed, so that a prompt follows each line.
            child.send(f"ucall -p {peer.port} su{tabs * chr(9)}\x01printf 'is:%s,' \r")
            if child.expect_exact(["is:ucall,", "\r\n> "]):
                child.sendintr()  # A menu may show a common beginning, whose quote is open.
            child.expect_exact(">>")
        child.close(force=True)
    assert list(tmp_path.glob("owned*")) == []


def test_bash_runs_nothing_that_a_server_names(complete) -> None:
    document = {"methods": [{"name": "$(touch owned);x", "params": []}]}
    with described(document) as peer:
        found = complete(f"ucall -p {peer.port} ", " ", shell="bash")
    assert found == ["'$(touch owned);x'"]


SETUP = {
    "bash": "source <(ucall --completion bash)",
    "zsh": "autoload -U compinit && compinit -u -D && source <(ucall --completion zsh)",
}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_in_a_shell(
    shell: str, peer: Described, tmp_path: Path, environment: dict[str, str]
) -> None:
    flags = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}[shell]
    (tmp_path / "numbers.npy").touch()
    child = pexpect.spawn(
        programs.require(shell),
        flags,
        cwd=str(tmp_path),
        env=environment,
        encoding="utf-8",
        timeout=60,
    )
    child.sendline(f"PS1='>''>'; {SETUP[shell]}; echo is-'ready'")
    child.expect("is-ready\r\n.*>>")
    for typed, rest in (
        (f"ucall -p {peer.port} gen\t", "erate "),
        ("pro\t", "mpt="),
        ("hi --form\t", "at "),
        ("num\t", "py"),
    ):
        child.send(typed)
        child.expect_exact(rest)
    child.sendcontrol("u")
    child.send(f"ucall -p {peer.port} paint unit=c\t")
    child.expect_exact("cm")
    child.sendcontrol("u")
    child.send(f"ucall -p {peer.port} store data=@num\t")
    child.expect_exact("bers.npy")
    child.close(force=True)


#: What is typed before a tab, and the words that bash then has.
TYPED_IN_BASH = [
    ("mail to=a", ["mail", "to=ada@home"]),
    ("mail to=ada@", ["mail", "to=ada@home"]),
    ('mail "to=ada', ["mail", "to=ada@home"]),
    ('mail to="t', ["mail", "to=two words"]),
    ("mail 'to=two ", ["mail", "to=two words"]),
    ("mail 'to=i", ["mail", "to=it's"]),
    (
        'mail "to=$',
        ["mail", 'to=$HOME "`'],
    ),
    ('mail "to=n', ["mail", "to=no!x"]),
    ('"su', ['sum "$HOME"']),
]


def test_bash_has_the_word_that_was_completed(tmp_path: Path, environment: dict[str, str]) -> None:
    choices = ["ada@home", "two words", "it's", '$HOME "`', "no!x"]
    document = {"methods": [method("mail", param("to", {"enum": choices})), method('sum "$HOME"')]}
    with described(document) as peer:
        child = pexpect.spawn(
            programs.require("bash"),
            ["--norc", "--noprofile", "-i"],
            cwd=str(tmp_path),
            env=environment,
            encoding="utf-8",
            timeout=60,
            dimensions=(24, 200),
        )
        child.sendline(f"PS1='>''>'; {SETUP['bash']}; echo is-'ready'")
        child.expect("is-ready\r\n.*>>")
        for typed, words in TYPED_IN_BASH:
            # Control-A is the beginning of the line, where printf is put before the command.
            child.send(f"ucall -p {peer.port} {typed}\t\x01printf 'is:%s,' \r")
            shown = "".join(f"is:{it}," for it in ["ucall", "-p", str(peer.port), *words])
            child.expect_exact(f"{shown}>>")
        child.close(force=True)


def test_in_fish(peer: Described, tmp_path: Path, environment: dict[str, str]) -> None:
    fish = programs.require("fish")
    (tmp_path / "numbers.npy").touch()

    def completed(line: str) -> list[str]:
        command = f"ucall --completion fish | source; complete -C '{line}'"
        done = subprocess.run(
            [fish, "--no-config", "-c", command],
            cwd=tmp_path,
            env={**environment, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    assert completed(f"ucall -p {peer.port} su") == ["sum\tAdds two numbers."]
    assert completed(f"ucall -p {peer.port} sum ") == ["a=\tint", "b=\tint >= 0"]
    assert completed("ucall --form")[0].startswith("--format\t")
    assert [it.partition("\t")[0] for it in completed("ucall store data=@num")] == [
        "data=@numbers.npy"
    ]
