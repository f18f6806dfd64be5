"""Builds C programs against the library, runs them, and calls them."""

import contextlib
import functools
import json
import os
import selectors
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from programs import require, require_header

from wire import Wire, request

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
EXAMPLES = (ROOT / "examples/c", ROOT / "examples/cpp")
PROGRAMS = Path(__file__).parent / "programs"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute()
# `make test-c-release` tests the library as users link it.
PROFILE = os.environ.get("UCALL_C_PROFILE", "test-release")
LIBRARY = TARGET / PROFILE / "libucall.a"
# Where programs of the tests are built.
BUILT = TARGET / "c-tests" / PROFILE
LOCALISE = ROOT / "crates/ucall-capi/localise.sh"
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
SYSTEM_LIBRARIES = ["-lpthread", "-lm", "-ldl"]
# Options with which a program fails on any memory error that the sanitizer finds.
ADDRESS_SANITIZER = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
START_SECONDS_MAX = 60


def example(name: str) -> Path:
    """The source of an example in C or C++."""
    return next(folder / name for folder in EXAMPLES if (folder / name).exists())


def run(command: Sequence, **how) -> str:
    """Runs a command to its end, and shows its output if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **how,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


def static_library() -> Path:
    """Builds the library with cargo, which does nothing if it is up to date."""
    command = ["cargo", "build", "--quiet", "--locked", f"--profile={PROFILE}"]
    # All features of the workspace, as the Makefile builds it, so that no crate is built again.
    tested = ["--workspace", "--exclude=ucall-python"]
    command += ["--package=ucall-capi"] if PROFILE == "release" else tested
    command += ["--features=full"]
    run([*command, "--target-dir", TARGET], cwd=ROOT)
    return LIBRARY


@functools.cache
def rust_linker() -> Path | None:
    """The folder of Rust's copy of LLVM's linker, which takes a third of the time of GNU's; none if
    the toolchain has none, or for the release, which is linked as users link it."""
    if PROFILE == "release":
        return None
    root = Path(run(["rustc", "--print", "sysroot"], cwd=ROOT).strip())
    return next(root.glob("lib/rustlib/*/bin/gcc-ld"), None)


def linked_library() -> Path:
    """The library as it is installed, which takes half the time to link."""
    output = BUILT / "libucall.a"
    changed_at = max(path.stat().st_mtime for path in (LIBRARY, LOCALISE))
    if not output.exists() or output.stat().st_mtime < changed_at:
        BUILT.mkdir(parents=True, exist_ok=True)
        # Renamed when it is complete, because other test processes may link it.
        incomplete = output.with_suffix(f".{os.getpid()}")
        run([LOCALISE, LIBRARY, incomplete])
        incomplete.rename(output)
    return output


def compiler_for(source: Path) -> list[str]:
    if source.suffix == ".cpp":
        # What ucall.hpp has from C++17 on is in one program.
        return ["c++", "-std=c++17" if source.stem == "thrown" else "-std=c++11"]
    return ["cc", "-std=c99", "-D_POSIX_C_SOURCE=200809L"]


def build(source: Path, output: Path, flags: Sequence[str] = ("-O2",)) -> Path:
    more = []
    if source.name == "kv.c":
        require_header("lmdb.h")
        more = ["-llmdb"]
    if source.name == "libuv.c":
        require_header("uv.h")
        more = ["-luv"]
    command = [*compiler_for(source), *STRICT, *flags, "-I", INCLUDE, source, linked_library()]
    folder = rust_linker()
    more += ["-fuse-ld=lld", f"-B{folder}"] if folder else []
    run([*command, *more, *SYSTEM_LIBRARIES, "-o", output])
    return output


def valgrind() -> list[str]:
    """A command prefix under which a program fails on any memory error and leak."""
    kinds = "definite,indirect,possible"
    options = ["--quiet", "--error-exitcode=99", "--leak-check=full"]
    return [
        require("valgrind"),
        *options,
        f"--show-leak-kinds={kinds}",
        f"--errors-for-leak-kinds={kinds}",
    ]


class Server:
    """A server program, which prints `listening on PORT` when it listens."""

    def __init__(self, command: Sequence, **how) -> None:
        self.process = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how
        )
        line = self._first_line().split()
        if line[:2] != ["listening", "on"]:
            self.process.kill()
            errors = self.process.communicate()[1].decode(errors="replace")
            raise StartError(errors.strip() or "it said nothing")
        self.port = int(line[2])
        self.errors = ""
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()

    def _first_line(self) -> str:
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(START_SECONDS_MAX):
                return ""
            return self.process.stdout.readline().decode(errors="replace")

    def _read_errors(self) -> None:
        for line in self.process.stderr:
            self.errors += line.decode(errors="replace")

    def wait(self, seconds: float = 60) -> int:
        """Waits for the end and returns the status; `errors` is then complete."""
        status = self.process.wait(seconds)
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return status

    def stop(self) -> None:
        """Ends the program with SIGTERM; valgrind and the sanitizers must report no error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.wait()
            raise
        assert status == 0, f"status {status}\n{self.errors}"

    def kill(self) -> None:
        self.process.kill()
        self.wait()


class StartError(Exception):
    """The program ended, or printed nothing, before it announced its port."""


@contextlib.contextmanager
def serving(command: Sequence, **how) -> Iterator[Server]:
    server = Server(command, **how)
    try:
        yield server
    except BaseException:
        server.kill()
        raise
    server.stop()


class Client(Wire):
    """A connection whose calls have numbers, and named params."""

    calls = 0

    def submit(self, method: str, params=None, text: str | None = None) -> int:
        """Sends a call with these params, or with this text as its params."""
        self.calls += 1
        params = json.dumps(params or {}) if text is None else text
        request = f'{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":{self.calls}}}\n'
        self.send(request.encode())
        return self.calls

    def notify(self, method: str, params=None) -> None:
        self.send(request(method, params or {}, id=...))

    def call(self, method: str, params=None, text: str | None = None):
        """The result, or raises `RemoteError`."""
        number = self.submit(method, params, text)
        reply = self.message()
        assert reply["id"] == number
        if "error" in reply:
            raise RemoteError(reply["error"])
        return reply["result"]

    def error_of(self, method: str, params=None, text: str | None = None) -> dict:
        try:
            result = self.call(method, params, text)
        except RemoteError as error:
            return error.args[0]
        raise AssertionError(f"no error but {result!r}")


class FrameClient(Client):
    """A client whose requests and replies may have parts."""

    def send_parts(self, method: str, params, *parts: bytes) -> None:
        self.calls += 1
        request = {"jsonrpc": "2.0", "method": method, "params": params, "id": self.calls}
        text = json.dumps(request).encode()
        lengths = struct.pack(f"<{len(parts)}Q", *map(len, parts))
        frame = struct.pack("<BBHI", 0xB1, 1, len(parts), len(text)) + lengths + text
        for part in parts:
            frame += bytes(-len(frame) % 64) + part
        self.send(frame)

    def receive_parts(self):
        """The reply, and its parts."""
        start = self.take(1)
        if start != b"\xb1":
            return json.loads(start + self.line()), []
        _, count, length = struct.unpack("<BHI", self.take(7))
        lengths = struct.unpack(f"<{count}Q", self.take(8 * count))
        reply, end = json.loads(self.take(length)), 8 + 8 * count + length
        parts = []
        for length in lengths:
            padding = -end % 64
            assert self.take(padding) == bytes(padding)
            parts.append(self.take(length))
            end += padding + length
        return reply, parts

    def call_parts(self, method: str, params, *parts: bytes):
        self.send_parts(method, params, *parts)
        return self.receive_parts()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class RemoteError(Exception):
    """An error reply."""
