"""Counts the functions, files and calls between crates that one call of `sum` passes.

    python tools/walk.py [--of {c,async}] [--list]

| of | program, from a debug build, on epoll |
|---|---|
| `c` | serves `examples/c/sum.c` over HTTP |
| `async` | serves an async function in Python over HTTP |

The program runs under callgrind twice, with few calls and with many: an instruction belongs to the
walk if it ran for most of the calls that the second run adds. Debug information names the functions
at each such instruction, inlined ones included, so the level of optimization hardly matters. A
closure counts as a part of its function. Derived functions do not count, and those whose body is
one line (accessors, forwarding calls) are counted apart. Files are those of `crates/*/src`. A
crossing is an ordered pair of crates of which the first calls the second.

Needs valgrind and binutils (`addr2line`).
"""

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / ".bench" / "walk"
FEW, MANY = 100, 200
BODY = b'{"jsonrpc":"2.0","method":"sum","params":{"a":55,"b":21},"id":1}'
REQUEST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
READ_SECONDS_MAX = 120

ASYNC_SERVER = """
from ucall.posix import Server

server = Server(port=0)


@server
async def sum(a: int, b: int):
    return a + b


server.on_startup(lambda: print("listening on", server.port, flush=True))
server.run()
"""

Address = tuple[str, int]


@dataclass(frozen=True, order=True)
class Function:
    crate: str
    file: str
    name: str


@dataclass
class Profile:
    """Executions of each instruction, and of each call from one instruction to another."""

    instructions: Counter[Address] = field(default_factory=Counter)
    calls: Counter[tuple[Address, Address]] = field(default_factory=Counter)

    def added_by(self, fewer: "Profile") -> "Profile":
        """What ran for most of the additional calls; two calls may share a turn."""
        return Profile(added(self.instructions, fewer.instructions), added(self.calls, fewer.calls))


def added(more: Counter, less: Counter) -> Counter:
    return Counter(
        {key: n - less[key] for key, n in more.items() if n - less[key] > (MANY - FEW) // 2}
    )


def parse(report: str) -> Profile:
    """Reads callgrind's format, with instructions and without compression."""
    profile = Profile()
    of_call: tuple[int, Address] | None = None
    binary = callee_binary = ""
    for line in report.splitlines():
        if line.startswith("ob="):
            binary = callee_binary = line[3:]
        elif line.startswith("cob="):
            callee_binary = line[4:]
        elif line.startswith("calls="):
            count, target = line[6:].split()[:2]
            of_call = int(count), (callee_binary, int(target, 16))
        elif line.startswith("0x"):
            address, _, cost = line.split()[:3]
            source = (binary, int(address, 16))
            if of_call:
                profile.calls[source, of_call[1]] += of_call[0]
                of_call, callee_binary = None, binary
            else:
                profile.instructions[source] += int(cost)
    return profile


def profile(command: list[str], calls: int, directory: Path) -> Profile:
    report = directory / f"calls-{calls}"
    options = ["--dump-instr=yes", "--compress-pos=no", "--compress-strings=no"]
    valgrind = ["valgrind", "--tool=callgrind", "--quiet", *options]
    command = [*valgrind, f"--callgrind-out-file={report}", *command]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        call(int(server.stdout.readline().split()[-1]), calls)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(READ_SECONDS_MAX)
    return parse(report.read_text(errors="replace"))


def call(port: int, calls: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=READ_SECONDS_MAX) as connection:
        for _ in range(calls):
            connection.sendall(REQUEST)
            reply = connection.recv(65536)
            if not reply.endswith(b'"result":76}'):
                sys.exit(f"unexpected reply: {reply!r}")


def stacks(addresses: Iterable[Address]) -> dict[Address, list[Function]]:
    """Our functions at each address, from the innermost inlined one to the compiled one."""
    by_binary = defaultdict(list)
    for binary, address in addresses:
        by_binary[binary].append(address)
    found = {}
    for binary, places in by_binary.items():
        if Path(binary).is_file() and b"ucall_proto" in Path(binary).read_bytes():
            found.update(symbolized(binary, sorted(set(places))))
    return found


def symbolized(binary: str, addresses: list[int]) -> dict[Address, list[Function]]:
    text = "\n".join(map(hex, addresses))
    tool = ["addr2line", "--functions", "--inlines", "--demangle", "--addresses", "-e", binary]
    output = subprocess.run(tool, input=text, capture_output=True, text=True, check=True).stdout
    found: dict[Address, list[Function]] = {}
    lines = iter(output.splitlines())
    stack: list[Function] = []
    for line in lines:
        if line.startswith("0x"):
            stack = found.setdefault((binary, int(line, 16)), [])
            continue
        # Line 0 marks code of no source line.
        place = re.search(r"crates/(ucall-\w+)/src/([\w/]+\.rs):[1-9]", next(lines))
        if place:
            # The name of an export has no path.
            name = plain_name(line).removeprefix(f"{Path(place[2]).stem}::")
            stack.append(Function(place[1], place[2], name))
    return found


def plain_name(name: str) -> str:
    """A function's own name, without its path, its type's parameters and its closures."""
    name = re.sub(r"(::\{\{?closure.*?\}\}?(#\d+\})?)+", "", name)
    while re.search(r"<[^<>]*>", name):
        name = re.sub(r"(::)?<[^<>]*>", "", name)
    return "::".join(part for part in name.split("::")[-2:] if part)


@cache
def body_lines(function: Function) -> int:
    """The lines between a function's braces; 0 for a derived function."""
    source = (ROOT / "crates" / function.crate / "src" / function.file).read_text()
    name = re.escape(function.name.rpartition("::")[2])
    bodies = re.findall(
        rf"^( *)[^\n/]*\bfn {name}\b.*?{{\n(.*?)^\1}}", source, re.DOTALL | re.MULTILINE
    )
    return max((body.count("\n") for _, body in bodies), default=0)


@dataclass
class Walk:
    """All counted functions are longer than a line."""

    functions: set[Function]
    short: set[Function]
    edges: set[tuple[Function, Function]]

    @property
    def files(self) -> set[tuple[str, str]]:
        return files_of(self.functions)

    @property
    def crossings(self) -> set[tuple[str, str]]:
        return {(a.crate, b.crate) for a, b in self.edges if a.crate != b.crate}


def files_of(functions: set[Function]) -> set[tuple[str, str]]:
    return {(function.crate, function.file) for function in functions}


def walk(command: list[str]) -> Walk:
    with tempfile.TemporaryDirectory() as directory:
        few, many = (profile(command, calls, Path(directory)) for calls in (FEW, MANY))
    ran = many.added_by(few)
    at = stacks([*ran.instructions, *(place for pair in ran.calls for place in pair)])
    functions = {function for place in ran.instructions for function in at.get(place, [])}
    edges = {pair for place in ran.instructions for pair in pairs(at.get(place, []))}
    for source, target in ran.calls:
        if at.get(source) and at.get(target):
            edges.add((at[source][0], at[target][-1]))
    lines = {function: body_lines(function) for function in functions}
    longer = {function for function, count in lines.items() if count > 1}
    return Walk(longer, {function for function in lines if lines[function] == 1}, edges)


def pairs(stack: list[Function]) -> Iterable[tuple[Function, Function]]:
    return zip(stack[1:], stack, strict=False)


def build(crate: str) -> None:
    command = ["cargo", "build", "--quiet", "--locked", "--package", crate]
    # PyO3 then links to no libpython.
    environment = {**os.environ, "PYO3_BUILD_EXTENSION_MODULE": "1", "PYO3_PYTHON": sys.executable}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def python_package() -> None:
    """Puts the package and a debug build of its core into a folder."""
    build("ucall-python")
    folder = PACKAGE / "ucall"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "ucall", folder, ignore=shutil.ignore_patterns("*.so"))
    core = ROOT / "target" / "debug" / "libucall_python"
    shutil.copy(core.with_suffix(".so"), folder / "_core.so")


def async_server() -> list[str]:
    python_package()
    return [sys.executable, "-c", ASYNC_SERVER]


def c_server() -> list[str]:
    build("ucall-capi")
    binary = ROOT / ".bench" / "walk-sum"
    binary.parent.mkdir(exist_ok=True)
    sources = ["examples/c/sum.c", "target/debug/libucall.a"]
    libraries = ["-lpthread", "-lm", "-ldl"]
    subprocess.run(
        ["cc", "-g", "-Iinclude", "-o", str(binary), *sources, *libraries], cwd=ROOT, check=True
    )
    return [str(binary), "--port", "0", "--engine", "posix"]


SUBJECTS: dict[str, Callable[[], list[str]]] = {
    "c": c_server,
    "async": async_server,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts what one call of sum passes.")
    parser.add_argument("--of", choices=SUBJECTS, default="c", help="what to count")
    parser.add_argument("--list", action="store_true", help="name the functions by file")
    options = parser.parse_args()
    found = walk(SUBJECTS[options.of]())
    by_crate = Counter(function.crate for function in found.functions)
    print(
        f"{len(found.functions)} functions in {len(found.files)} files,"
        f" {len(found.crossings)} crossings; with functions of one line"
        f" {len(found.functions | found.short)} in {len(files_of(found.functions | found.short))}"
    )
    print("functions:", ", ".join(f"{crate} {n}" for crate, n in sorted(by_crate.items())))
    print("crossings:", ", ".join(sorted(f"{a} -> {b}" for a, b in found.crossings)))
    if options.list:
        for crate, file in sorted(found.files):
            names = sorted(f.name for f in found.functions if (f.crate, f.file) == (crate, file))
            print(f"{crate} {file}: {', '.join(names)}")


if __name__ == "__main__":
    main()
