"""Programs in Python that begin in milliseconds: a process that has imported the package forks.

A new interpreter that imports the package takes ten times the processor's time. Programs that test
how an interpreter or an import begins, or how an interpreter ends, need one: `subprocess.Popen`, or
`new_interpreter` of harness.py.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import marshal
import math
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Those of a test are for its own program alone.
_ENVIRONMENT = dict(os.environ)
#: A request begins with its length.
LENGTH_BYTES = 4
#: The command `ucall`.
UCALL = [sys.executable, "-m", "ucall.cli"]
_PROGRAM = Path(__file__).with_name("fork_server.py")
_EXECUTE = [*inspect.signature(subprocess.Popen._execute_child).parameters][1:]
#: A command that imports little, so that it takes a tenth of the time of its program.
_COMMAND = """#!{executable} -IS
import _socket, marshal, posix, sys
server = _socket.socket(_socket.AF_UNIX)
server.connect({address!r})
request = {{
    "command": sys.orig_argv,
    "kind": "-c",
    "what": {source!r},
    "arguments": sys.argv,
    "folder": posix.getcwd(),
    "environment": {{
        name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
        for name, value in posix.environ.items()
    }},
    "new_session": False,
}}
data = marshal.dumps(request)
standard = b"".join(it.to_bytes(4, sys.byteorder) for it in range(3))
ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, standard)]
server.sendmsg([len(data).to_bytes({length_bytes})], ancillary)
server.sendall(data)
status = posix.waitstatus_to_exitcode(int(server.recv(100)))
sys.exit(status if status >= 0 else 128 - status)
"""


class _Server:
    """The process that forks, of this test process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair()
        # A path of a test's folder may be too long for a socket.
        self._folder = tempfile.TemporaryDirectory()
        #: Where a command of a shell connects.
        self.address = f"{self._folder.name}/socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.address)
        listener.listen()
        with theirs, listener:
            descriptors = [theirs.fileno(), listener.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(_PROGRAM), *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                pass_fds=descriptors,
            )
        atexit.register(self.close)

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """The id of a process with these standard descriptors, and one for its status."""
        with self._lock:
            data = marshal.dumps(request)
            socket.send_fds(self._requests, [len(data).to_bytes(LENGTH_BYTES)], descriptors)
            self._requests.sendall(data)
            answer = self._requests.recv(100)
        assert answer, "the process that forks has ended"
        return int(answer)

    def close(self) -> None:
        self._requests.close()
        self._process.wait()
        self._folder.cleanup()


@functools.cache
def server() -> _Server:
    """That of this test process, which starts at its first use."""
    return _Server()


class Python(subprocess.Popen[Any]):
    """`subprocess.Popen` of ``[sys.executable, "-c", SOURCE, …]``, of ``[…, "-m", MODULE, …]``, or
    of ``[…, SCRIPT, …]``.

    Its output has no buffer, as with `-u`, unless PYTHONUNBUFFERED is empty. Options other than
    pipes, text, a folder, the environment and a new session have no effect.
    """

    def _execute_child(self, *given: Any) -> None:
        how = dict(zip(_EXECUTE, given, strict=True))
        # Members of a `StrEnum` become plain words.
        command = [str.__str__(os.fspath(word)) for word in how["args"]]
        assert command[0] == sys.executable
        words = command[2:] if command[1] == "-u" else command[1:]
        kind, what, arguments = "", words[0], words
        if words[0] in ("-c", "-m"):
            kind, what, *others = words
            arguments = [kind, *others]
        request = {
            "command": command,
            "kind": kind,
            "what": what,
            "arguments": arguments,
            "folder": os.path.abspath(how["cwd"] or "."),
            "environment": dict(os.environ if how["env"] is None else how["env"]),
            "new_session": how["start_new_session"],
        }
        pipes = [how["p2cread"], how["c2pwrite"], how["errwrite"]]
        inherited = [number if pipe == -1 else pipe for number, pipe in enumerate(pipes)]
        self._status, theirs = socket.socketpair()
        with theirs:
            self.pid = server().fork(request, [*inherited, theirs.fileno()])
        self._child_created = True
        names = ["p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"]
        self._close_pipe_fds(*(how[name] for name in names))

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        return self._wait_for_status(0)

    def _wait(self, timeout: float | None) -> int:
        status = self._wait_for_status(timeout)
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return status

    def _wait_for_status(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and _is_readable(self._status, timeout_s):
            status = self._status.recv(100)
            self._status.close()
            # Without a status the server has been killed, and may have left the program.
            self.returncode = os.waitstatus_to_exitcode(int(status)) if status else 255
        return self.returncode


def _is_readable(connected: socket.socket, timeout_s: float | None) -> bool:
    # Unlike `select`, this allows descriptors of any number.
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000)))


def run(
    command: Sequence[str], *, input: Any = None, timeout: float = 60, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` of such a command, whose output is captured."""
    pipe = subprocess.PIPE
    options = {"stdin": pipe, "stdout": pipe, "stderr": pipe} | options
    with Python(command, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def write_command(path: Path, source: str = "from ucall import cli; exit(cli.main())") -> None:
    """Writes a command for shells that runs such a program with its words, input and output."""
    text = _COMMAND.format(
        executable=sys.executable,
        address=server().address,
        source=source,
        length_bytes=LENGTH_BYTES,
    )
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
