"""Unix sockets: servers, their files, and several clients."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forking
import pytest
from applications import PID
from both_clients import NewClient
from functions import add
from programs import require

import ucall
from harness import eventually, http, refuses_descriptors, request
from wire import Wire

Serve = Callable[..., ucall.Server]


def peer(ctx: ucall.Context) -> Any:
    assert isinstance(ctx.peer, ucall.Process)
    return ctx.peer._asdict()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a socket"


def _exchange(path: Path, data: bytes) -> bytes:
    """Sends all bytes, shuts down the sending side, and reads until the server closes."""
    with Wire(path) as wire:
        wire.send(data)
        wire.end()
        return wire.rest()


def test_both_protocols(serve: Serve, path: Path) -> None:
    server = serve(add, uds=path)
    call = request("add", [40, 2])
    assert json.loads(_exchange(path, call))["result"] == 42
    assert b'"result":42' in _exchange(path, http(call, "Connection: close"))
    assert (server.host, server.port) == (f"unix:{path}", 0)
    assert f"on unix://{path}," in repr(server)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_socket_file_has_its_mode_and_is_removed(serve: Serve, path: Path, mode: int) -> None:
    umask = os.umask(0o077)
    try:
        server = serve(add, uds=path, uds_mode=mode)
    finally:
        os.umask(umask)
    for _ in range(2):
        found = path.stat().st_mode
        assert stat.S_ISSOCK(found) and stat.S_IMODE(found) == mode
        assert json.loads(_exchange(path, request("add", [1, 1])))["result"] == 2
        server.stop()
        assert not path.exists()
        server.start()


@pytest.mark.parametrize("mode", [660, 600, -1, 0o1000])
def test_a_mode_that_is_no_permissions_is_refused(path: Path, mode: int) -> None:
    with pytest.raises(ValueError, match=f"uds_mode: expected permissions up to 0o777, got {mode}"):
        ucall.Server(uds=path, uds_mode=mode)


def test_a_path_in_use_is_refused_and_a_stale_one_reused(serve: Serve, path: Path) -> None:
    serve(add, uds=path)
    with pytest.raises(OSError, match="another process listens there already"):
        ucall.Server(uds=path).start()
    assert json.loads(_exchange(path, request("add", [1, 1])))["result"] == 2
    left = path.with_name("left")
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(left))
    serve(add, uds=left)
    assert json.loads(_exchange(left, request("add", [1, 1])))["result"] == 2
    precious = path.with_name("precious")
    precious.write_text("data")
    with pytest.raises(OSError, match="not a socket"):
        ucall.Server(uds=precious).run()
    assert precious.read_text() == "data"
    with pytest.raises(OSError):
        ucall.Server(uds="/nowhere/at/all").start()


@pytest.mark.parametrize("place", [{"host": "unix:"}, {"uds": ""}])
def test_an_empty_path_is_refused(place: dict[str, Any]) -> None:
    with pytest.raises(OSError, match=r"expected the path of a socket, as in unix:/run/app\.sock"):
        ucall.Server(**place)


def test_a_locked_folder_times_out(serve: Serve, path: Path) -> None:
    keeper = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), 2); print(1, flush=True)"
    command = [sys.executable, "-c", f"{keeper}; sys.stdin.read()", str(path.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()

        def steps_meanwhile() -> int:
            steps = 0
            with ThreadPoolExecutor() as pool:
                started = pool.submit(ucall.Server(uds=path).start)
                while not started.done():
                    time.sleep(0.01)
                    steps += 1
            with pytest.raises(TimeoutError, match=r"keeps .* locked \(flock\).*lslocks"):
                started.result()
            return steps

        # Other threads run while it waits for a second.
        assert eventually(lambda: steps_meanwhile() > 20)
        assert not path.exists()
        process.communicate()
    serve(add, uds=path)
    assert json.loads(_exchange(path, request("add", [1, 1])))["result"] == 2


LISTENS_ON_AFTER_ITS_END = """
import os, socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen(4096)
if os.fork():
    os._exit(0)
listening.accept()
print("somebody has looked whether it is in use", flush=True)
sys.stdin.read()
"""


def test_a_waiting_connection_to_a_dead_server_does_not_block_a_start(
    path: Path,
) -> None:
    numbers = itertools.count()

    def starts_meanwhile() -> bool:
        left, another = (path.with_name(str(next(numbers))) for _ in range(2))
        command = [sys.executable, "-c", LISTENS_ON_AFTER_ITS_END, str(left)]
        successor = ucall.Server(uds=left)
        with (
            ThreadPoolExecutor() as pool,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        ):
            assert process.wait() == 0
            waiting = pool.submit(successor.start)
            assert process.stdout is not None and process.stdout.readline()
            try:
                with ucall.Server(uds=another):
                    pass
            except TimeoutError:
                return False
            finally:
                is_over = waiting.done()
                process.communicate()
                has_started = waiting.exception() is None
                successor.stop()
            return not is_over and has_started

    # On a busy machine either may time out before it runs.
    assert eventually(starts_meanwhile)


def test_the_peer_process_is_known(serve: Serve, path: Path) -> None:
    serve(peer, uds=path)
    # io_uring detects it only if the kernel can make a normal descriptor of a direct one.
    found = json.loads(_exchange(path, request("peer")))["result"]
    assert found == {"pid": os.getpid(), "uid": os.geteuid(), "gid": os.getegid()}


def test_a_caller_hands_over_no_descriptors(serve: Serve, path: Path) -> None:
    # Closing one may block the server as long as the caller chooses (SO_LINGER).
    serve(add, uds=path)
    with Wire(path) as wire:
        assert refuses_descriptors(wire.socket)
        assert wire.result("add", [40, 2]) == 42


def test_auth_may_use_the_peer_process(serve: Serve, path: Path) -> None:
    def auth(ctx: ucall.Context) -> int | None:
        assert isinstance(ctx.peer, ucall.Process)
        return ctx.peer.uid if ctx.peer.uid != os.geteuid() else None

    serve(add, uds=path, auth=auth)
    assert b"-32004" in _exchange(path, request("add", [1, 1]))
    assert _exchange(path, http(request("add", [1, 1]))).startswith(b"HTTP/1.1 401 ")


def test_any_host_is_accepted_but_foreign_origins_are_not(serve: Serve, path: Path) -> None:
    serve(add, uds=path)
    call = http(request("add", [1, 1]), "Connection: close").replace(b"127.0.0.1", b"box.example")
    assert b'"result":2' in _exchange(path, call)
    page = call.replace(b"\r\n\r\n", b"\r\nOrigin: https://evil.example\r\n\r\n")
    assert _exchange(path, page).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("scheme", ["unix", "tcp+unix"])
def test_clients(serve: Serve, path: Path, scheme: str, new_client: NewClient) -> None:
    serve(add, uds=path)
    uri = f"{scheme}://{path}"
    with new_client(uri) as client:
        assert [client.add(number, 1).json for number in range(3)] == [1, 2, 3]
        assert repr(client).endswith(f" of {uri}>")


def test_a_client_names_a_missing_socket(path: Path, new_client: NewClient) -> None:
    with new_client(f"unix://{path}") as client, pytest.raises(ucall.ConnectionError) as raised:
        client.add(1, 1)
    assert str(raised.value) == f"cannot connect to {path}: No such file or directory"
    for wrong in ("unix://relative", "unix://", "tcp+unix://host/path"):
        with pytest.raises(ValueError):
            new_client(wrong)
    with pytest.raises(ValueError):
        new_client(f"unix://{path}", port=1)


def test_the_command_line(serve_once: Serve, path: Path) -> None:
    serve_once(add, uds=path)
    command = [sys.executable, "-m", "ucall.cli", "--uri", f"unix://{path}", "add", "a=40", "b=2"]
    assert forking.run(command, text=True).stdout == "42\n"


def test_curl(serve: Serve, path: Path) -> None:
    serve(add, uds=path)
    command = [require("curl"), "-sS", "--unix-socket", path, "-d", request("add", [40, 2])]
    shown = subprocess.run([*command, "http://localhost/"], capture_output=True, check=True)
    assert json.loads(shown.stdout)["result"] == 42


@contextmanager
def _serving(folder: Path, path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "app.py").write_text(PID)
    command = [sys.executable, "-m", "ucall", "app:server", "--uds", str(path), *arguments]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: _pid(path) > 0)
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.wait()


def _pid(path: Path) -> int:
    try:
        # A worker that drains may send a notification, too.
        messages = map(json.loads, _exchange(path, request("pid")).splitlines())
        return next((int(it["result"]) for it in messages if "result" in it), 0)
    except (OSError, ValueError):
        return 0


def test_python_dash_m(tmp_path: Path, path: Path) -> None:
    with _serving(tmp_path, path) as process:
        assert _pid(path) == process.pid
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_workers_share_the_socket_across_restarts(tmp_path: Path, path: Path) -> None:
    with _serving(tmp_path, path, "--workers", "2") as process:
        found: set[int] = set()
        assert eventually(lambda: found.add(_pid(path)) or len(found) == 2)
        file = path.stat().st_ino
        process.send_signal(signal.SIGHUP)

        def are_new() -> bool:
            asked = {_pid(path) for _ in range(20)}
            assert 0 not in asked, "a connection was refused meanwhile"
            return not asked & found

        assert eventually(are_new)
        assert path.stat().st_ino == file


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_killed_server_does_not_block_the_next(
    tmp_path: Path, path: Path, engine: str, is_waited_for: bool
) -> None:
    with pytest.raises(AssertionError), _serving(tmp_path, path, "--engine", engine) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if is_waited_for:
            process.wait()
        # At once: the kernel releases io_uring's sockets some time after the process has ended.
        successor = ucall.Server(uds=path)
        process.wait()
        successor.add(add)
        with successor:
            assert json.loads(_exchange(path, request("add", [1, 1])))["result"] == 2
