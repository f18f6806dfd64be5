"""``python -m ucall module:server``: its flags, variables and module."""

from __future__ import annotations

import inspect
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forking
import pytest
from serving import NO_URING

import ucall
from harness import Wire, listening_port, program, request
from ucall._command.settings import GatewaySettings, Settings
from ucall.options import GROUPS, PLACES

APP = """
import threading, ucall
inner = ucall.Server(port=0)
@inner
def engine() -> str:
    return inner.engine
@inner
def thread() -> str:
    return threading.current_thread().name
class Holder:
    server = inner
inner.run()  # Ignored: it is only imported.
"""


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[int]:
    (folder / "app.py").write_text(APP)
    process = forking.Python(
        [sys.executable, "-m", "ucall", *arguments],
        cwd=folder,
        env=os.environ | environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield listening_port(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_an_imported_server_is_served(tmp_path: Path, engine: str) -> None:
    with serving(tmp_path, "app:inner", "--engine", engine) as port, Wire(port) as wire:
        assert wire.result("engine") == engine
        assert not wire.result("thread").startswith("ucall-thread")


FAILING = """
import ucall
server = ucall.Server(port=0)
@server
def fail(text: str) -> None:
    raise ValueError(text)
"""


def test_control_characters_in_log_records_are_escaped(
    tmp_path: Path,
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    command = [sys.executable, "-m", "ucall", "failing:server"]
    with forking.Python(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            found = re.search(rb"//127.0.0.1:(\d+)", process.stderr.readline())
            assert found
            forged = "1970-01-01 00:00:00,000 1 ERROR ucall: forged"
            with Wire(int(found[1])) as wire:
                wire.error("fail", [f"a\x1b[2Jb\r\n{forged}\u2028c\x9bd\tё"])
        finally:
            process.terminate()
        log = process.stderr.read().decode()
    first, *others = log.split("\n")
    assert first.endswith(" ERROR ucall: fail raised (- tcp id=1)")
    assert f"  ValueError: a\\x1b[2Jb\\r\n  {forged}\\u2028c\\x9bd\tё\n" in log
    assert others[0] == "  Traceback (most recent call last):"
    assert not any(line.startswith(forged) for line in others)


def test_attributes_and_threads(tmp_path: Path) -> None:
    with serving(tmp_path, "app:Holder.server", "--threads", "2") as port, Wire(port) as wire:
        assert wire.result("thread").startswith("ucall-thread")


def test_flags_override_variables(tmp_path: Path) -> None:
    with serving(
        tmp_path, "app:inner", "--port", "0", UCALL_PORT="1", UCALL_ENGINE="posix"
    ) as port:
        assert port > 1
        with Wire(port) as wire:
            assert wire.result("engine") == "posix"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere:server"], "no module nowhere in"),
        (["app:nothing"], "app has no nothing; there is app:inner\n"),
        (["app:Holder"], "expected a ucall.Server"),
        (["two"], "two has no server; there is two:first, two:second\n"),
        (["empty"], "empty has no server; there is no ucall.Server in it\n"),
        (
            ["app:inner", "--ssl-certfile", "absent.pem"],
            "/absent.pem: No such file or directory\n",
        ),
        (["app:inner", "--host", "192.0.2.1"], "192.0.2.1"),
    ],
)
def test_an_unservable_app_is_reported(tmp_path: Path, arguments: list[str], problem: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "empty.py").write_text("")
    servers = "first, second = ucall.Server(port=0), ucall.Server(port=0)"
    (tmp_path / "two.py").write_text(f"import ucall\n{servers}\n")
    command = [sys.executable, "-m", "ucall", *arguments]
    done = forking.run(command, cwd=tmp_path, text=True)
    assert done.returncode == 1 and problem in done.stderr


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("UCALL_")]:
        monkeypatch.delenv(name)
    assert Settings.read(["a:b"]) == Settings("a:b", None, None, None, None, None, False, "info")
    monkeypatch.setenv("UCALL_WORKERS", "3")
    monkeypatch.setenv("UCALL_RELOAD", "1")
    monkeypatch.setenv("UCALL_HOST", "::1")
    settings = Settings.read(["a:b", "--port", "9", "--log-level", "debug"])
    assert (settings.workers, settings.reload, settings.port) == (3, True, 9)
    assert (settings.host, settings.log_level) == ("::1", "debug")
    assert Settings.read(["a:b", "--workers", "1"]).workers == 1


def test_a_port_in_use_is_reported_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "ucall", "app:inner", "--port", port]
        done = forking.run(command, cwd=tmp_path, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("listens there already; choose another by --port or --uds\n")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--port", "65536"], "--port: expected a port from 0 to 65535, got 65536"),
        (["--workers", "0"], "--workers: expected at least 1"),
        (["--engine", "epoll"], "--engine: invalid choice: 'epoll'"),
        (["--log-level", "loud"], "--log-level: invalid choice: 'loud'"),
        (["--work", "2"], "unrecognized arguments: --work 2"),
        ([], "required: module:server"),
    ],
)
def test_invalid_settings_are_rejected_in_one_line(
    capsys: pytest.CaptureFixture[str], flags: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as refused:
        Settings.read([*(["a:b"] if flags else []), *flags])
    assert refused.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("python -m ucall: ") and shown.count("\n") == 1 and complaint in shown


@pytest.mark.parametrize(
    ("variable", "complaint"),
    [
        ("UCALL_ENGINE", "UCALL_ENGINE: expected one of auto, uring, posix, got 'x'"),
        ("UCALL_PORT", "UCALL_PORT: expected a number, got 'x'"),
    ],
)
def test_an_invalid_variable_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    complaint: str,
) -> None:
    monkeypatch.setenv(variable, "x")
    with pytest.raises(SystemExit):
        Settings.read(["a:b"])
    assert complaint in capsys.readouterr().err


def test_log_levels_are_case_insensitive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCALL_LOG_LEVEL", "WARNING")
    assert Settings.read(["a:b"]).log_level == "warning"
    assert Settings.read(["a:b", "--log-level", "Debug"]).log_level == "debug"


def test_help_is_complete() -> None:
    command = [sys.executable, "-m", "ucall", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    for flag in ("--host", "--port", "--workers", "--engine", "--threads", "--reload", "--uds"):
        assert flag in shown


def test_a_refused_io_uring_is_reported(tmp_path: Path) -> None:
    if not NO_URING:
        pytest.skip("io_uring may be used here")
    with program("import ucall.uring; ucall.uring.Server(port=0)") as process:
        assert "EngineError" in process.communicate(timeout=60)[1]


def _run(folder: Path, source: str, *arguments: str, **environment: str) -> str:
    """The log of a server that ends at once."""
    (folder / "ending.py").write_text(source)
    command = [sys.executable, "-m", "ucall", *arguments]
    errors: str = forking.run(command, cwd=folder, env=os.environ | environment, text=True).stderr
    return errors


ENDING = """
import logging, ucall
%s = ucall.Server(port=0, title="mine", limits=ucall.Limits(max_nesting=7))
{}.on_startup({}.stop)
"""


def _ending(name: str, more: str = "") -> str:
    return ENDING.replace("%s", name).replace("{}", name) + more


@pytest.mark.parametrize("name", ["server", "other"])
def test_a_module_alone_means_its_only_server(tmp_path: Path, name: str) -> None:
    log = _run(tmp_path, _ending(name), "ending")
    assert f" INFO ucall: serving ending:{name}\n" in log
    assert " INFO ucall: listening on http://127.0.0.1:" in log
    assert "serving" not in _run(tmp_path, _ending(name), f"ending:{name}")


def test_a_module_with_several_servers_means_the_one_called_server(tmp_path: Path) -> None:
    log = _run(tmp_path, _ending("server", "another = ucall.Server(port=0)"), "ending")
    assert "serving ending:server\n" in log


def test_an_unknown_variable_is_warned_of(tmp_path: Path) -> None:
    variables = {"UCALL_PROT": "1", "UCALL_SOMETHING_ELSE": "1"}
    log = _run(tmp_path, _ending("server"), "ending", **variables)
    assert "WARNING ucall: UCALL_PROT is no variable of ucall; did you mean UCALL_PORT?\n" in log
    assert "WARNING ucall: UCALL_SOMETHING_ELSE is no variable of ucall\n" in log
    known = {"UCALL_RELOAD": "0", "UCALL_LOG_LEVEL": "info", "UCALL_MAX_NESTING": "9"}
    assert "WARNING" not in _run(tmp_path, _ending("server"), "ending", **known)


def test_a_gateway_warns_of_variables_that_it_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCALL_WORKERS", "2")
    monkeypatch.setenv("UCALL_MAX_BODY_BYTES", "9")
    settings = GatewaySettings.read(["config.toml"])
    assert settings.workers == 2
    assert settings.warnings == ["UCALL_MAX_BODY_BYTES is no variable of ucall"]


def test_every_option_of_a_server_has_a_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = set(inspect.signature(ucall.Server).parameters)
    options = (own - {*GROUPS, "others"}) | {*PLACES, "udp"}
    values = {"host": "::1", "engine": "posix", "uds_mode": "660", "allowed_hosts": "a,b"}
    values |= {"ssl_client_auth": "none", "debug": "yes", "describe": "no", "title": "a title"}
    values |= {"access_log": "text", "log_format": "json"}
    for name in options - {"auth", "lifespan"}:
        monkeypatch.setenv(f"UCALL_{name.upper()}", values.get(name, "1"))
    settings = Settings.read(["a:b"])
    assert settings.warnings == []
    given = {name for name in options if getattr(settings, name, None) is not None}
    assert given | set(settings.options) == options - {"auth", "lifespan"}
    assert settings.options["allowed_hosts"] == ["a", "b"]
    assert (settings.options["uds_mode"], settings.options["title"]) == (0o660, "a title")
    assert (settings.options["debug"], settings.options["describe"]) == (True, False)
    assert settings.options["drain_timeout_s"] == 1.0
    for name, complaint in (
        ("debug", "yes or no"),
        ("uds_mode", "octal"),
        ("timeout_ms", "a num"),
        ("reload", "yes or no"),
    ):
        monkeypatch.setenv(f"UCALL_{name.upper()}", "x")
        with pytest.raises(SystemExit):
            Settings.read(["a:b"])
        assert f"UCALL_{name.upper()}: expected {complaint}" in capsys.readouterr().err
        monkeypatch.delenv(f"UCALL_{name.upper()}")


def test_variables_override_the_options_of_a_server(tmp_path: Path) -> None:
    source = """
import sys, ucall
inner = ucall.Server(port=0, limits=ucall.Limits(max_batch_calls=5))
@inner
def nothing(): pass
"""
    (tmp_path / "limited.py").write_text(source)
    with serving(tmp_path, "limited:inner", UCALL_MAX_BATCH_CALLS="1") as port, Wire(port) as wire:
        wire.send(b"[%s,%s]" % (request("nothing"), request("nothing")))
        assert b"-32600" in wire.line()


def test_a_variable_whose_value_is_invalid_is_named(tmp_path: Path) -> None:
    (tmp_path / "limited.py").write_text("import ucall\nserver = ucall.Server(port=0)\n")
    done = forking.run(
        [sys.executable, "-m", "ucall", "limited:server"],
        cwd=tmp_path,
        env=os.environ | {"UCALL_MAX_BODY_BYTES": "-1"},
        text=True,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "UCALL_MAX_BODY_BYTES: expected an int from 1 to" in done.stderr


LOGGING = """
@server.on_startup
def speak():
    logging.getLogger("ucall").debug("own")
    logging.getLogger("other").debug("too much")
    logging.getLogger("other").warning("important")
"""


def test_the_log_level_is_that_of_ucall_alone(tmp_path: Path) -> None:
    log = _run(tmp_path, _ending("server", LOGGING), "ending", "--log-level", "debug")
    assert " DEBUG ucall: own\n" in log
    assert "too much" not in log and "\nimportant\n" in log


def test_a_program_that_configures_logging_gets_all_records_once(tmp_path: Path) -> None:
    configured = LOGGING + 'logging.basicConfig(format="mine: %(message)s")\n'
    log = _run(tmp_path, _ending("server", configured), "ending", "--log-level", "debug")
    assert "mine: own\n" in log and "mine: important\n" in log
    assert log.count("own") == 1 and "too much" not in log


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--group", "models"], "group: has no effect without broker"),
        (["--advertise", "a"], "advertise: has no effect without broker"),
        (["--broker", "nats://a"], "group: expected the name of the servers"),
        (["--ssl-keyfile", "a"], "ssl_certfile: expected a certificate"),
    ],
)
def test_flags_that_need_another(flags: list[str], problem: str) -> None:
    settings = Settings.read(["a:b", *flags])
    with pytest.raises(ValueError, match=problem):
        settings.registration()
        settings.server_options()
