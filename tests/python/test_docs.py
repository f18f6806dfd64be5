"""Every example in README.md and docs/*.md runs, and has the output that it shows.

A page is one program: its ```python blocks share a namespace and run in order; they may use await.
```console blocks run in a shell, one `$ ` line after another, each followed by its output. Only
blocks whose commands are all in PROGRAMS run, and only on pages whose Python has started a server.
They run in a new folder. The end of a run lists the blocks of each page that did not run.

- `expression  # => repr` in Python is checked.
- A line `…` in the output of a command matches any lines.
- `server.run()` serves in the background, as `server.start()` does, until the end of the page. The
  ports 8545, also as a default, and 8443 are replaced by free ones.
- `<!-- first -->` before a block: it runs before all others.
- `<!-- setup` … `-->` contains Python that is not rendered.
- `<!-- not run: why -->` before a block: it does not run.
- `<!-- needs NAME -->` before a block: it runs if that package is installed.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from programs import find, require

import ucall
from harness import free_port
from ucall._client import address
from ucall.queue.utils import allow

ROOT = Path(__file__).resolve().parents[2]
#: `make docs` writes them while the tests run. They have no examples.
GENERATED = {ROOT / "docs/benchmarks-all.md", ROOT / "docs/c-reference.md"}
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - GENERATED)]
PROGRAMS = {"cat", "curl", "echo", "nc", "openssl", "ucall"}
DEFAULT_PORT = "8545"
SECOND_PORT = "8443"

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>first|needs \w+|not run: [^\n]*) -->\n)?^```(?P<kind>python|console)\n"
    r"(?P<text>.*?)^```$|^<!-- setup\n(?P<setup>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
SHOWN = re.compile(r"^(?P<code>\S.*?)  # => (?P<shown>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of a page. `line` is that of its first line of code, from 0."""

    kind: str
    text: str
    line: int
    is_first: bool
    may_run: bool = True


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in the order in which they run."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        mark = match["mark"] or ""
        group = "setup" if match["setup"] is not None else "text"
        kind = match["kind"] or "python"
        line = text.count("\n", 0, match.start(group))
        package = mark.removeprefix("needs ") if mark.startswith("needs ") else None
        is_there = package is None or importlib.util.find_spec(package) is not None
        may_run = is_there and not mark.startswith("not run")
        found.append(Block(kind, match[group], line, mark == "first", may_run))
    return sorted(found, key=lambda block: not block.is_first)


Ports = Callable[[str], str]


class Program:
    """A page's Python. `ports` replaces the ports in it by free ones."""

    def __init__(self, page: Path, ports: Ports) -> None:
        self._page = page
        self._ports = ports
        self._names: dict[str, Any] = {"__name__": "__main__", "_shows": self._shows}

    def run(self, block: Block) -> None:
        source = SHOWN.sub(lambda line: f"_shows(({line['code']}), {line['shown']!r})", block.text)
        source = "\n" * block.line + self._ports(source)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(source, str(self._page), "exec", flags=flags, dont_inherit=True)
        outcome = eval(code, self._names)
        if inspect.iscoroutine(outcome):
            asyncio.run(outcome)

    def _shows(self, value: object, shown: str) -> None:
        assert repr(value) == shown.strip()


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Each command, and its expected output."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def programs_of(block: Block) -> set[str]:
    """The programs that the block's commands run."""
    return {
        part.split()[0]
        for command, _ in commands_of(block)
        for part in re.split(r"[|;]\s", re.sub(r"'[^']*'", "''", command))
    }


def run_commands(block: Block, ports: Ports, folder: Path, where: str) -> None:
    for command, shown in commands_of(block):
        done = subprocess.run(
            ["bash", "-c", ports(command)],
            cwd=folder,
            env={
                "HOME": str(folder),
                "LC_ALL": "C.UTF-8",
                "PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
        expected = re.escape(ports(shown).rstrip()).replace("…", ".*")
        came = done.stdout.decode().rstrip()
        assert re.fullmatch(expected, came, re.DOTALL), f"{where}: $ {command}\n{came}"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, which becomes the default port of servers and clients of this process."""
    port = free_port()
    schemes = {
        scheme: (is_http, is_secure, port if default == address.DEFAULT_PORT else default)
        for scheme, (is_http, is_secure, default) in address._SCHEMES.items()
    }
    monkeypatch.setattr(address, "_SCHEMES", schemes)
    kind = inspect.getmodule(ucall.Server).Server  # type: ignore[union-attr]
    monkeypatch.setattr(inspect.unwrap(kind.__init__), "__defaults__", ("127.0.0.1", port))
    return port


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int) -> Iterator[Path]:
    """The folder in which a page's program runs. The command `ucall` there uses the port."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "ucall"
    command.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "from ucall import cli\n"
        "from ucall._client import address\n"
        f"address._SCHEMES = {{**address._SCHEMES, '': (True, False, {port}),"
        f" 'tcp': (False, False, {port})}}\n"
        "sys.exit(cli.main())\n"
    )
    command.chmod(0o755)
    (tmp_path / ".curlrc").write_text("silent\nshow-error\n")
    # Removed with its content after the test. Socket paths must be shorter than `tmp_path`.
    with tempfile.TemporaryDirectory() as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        yield tmp_path


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ucall.Server]]:
    """Makes `server.run()` return at once, and stops all servers after the test."""
    started: list[ucall.Server] = []
    start = ucall.Server.start

    def start_for_the_page(server: ucall.Server, **how: Any) -> None:
        started.append(server)
        start(server, **how)

    for name in ("run", "start"):
        monkeypatch.setattr(ucall.Server, name, start_for_the_page)
    yield started
    for server in started:
        server.stop()


@pytest.fixture
def allowed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page allows in messages of queues, it allows for itself alone."""
    monkeypatch.setattr(allow, "_allowed", dict(allow._allowed))


def test_no_page_says_pip_install_ucall() -> None:
    folders = [ROOT / "python", ROOT / "examples"]
    sources = [it for folder in folders for end in ("py", "md") for it in folder.rglob(f"*.{end}")]
    install_command = re.compile(r"pip install[^\n]*[ '\"]ucall(?![\w/.-])[^\n]*")
    for path in (*PAGES, *sources):
        text = path.read_text(encoding="utf-8")
        # The name with an extra, such as types in brackets, would install that project, too.
        found = install_command.search(text) or re.search(r"\bucall\[[a-z,]+\]", text)
        assert found is None, f"{path}: {found and found[0]}"


def test_each_page_begins_with_a_sentence_on_its_subject() -> None:
    names = ("*.md", "bench/*.md", "docs/*.md", "examples/*/*.md")
    for page in {path for name in names for path in ROOT.glob(name)} - GENERATED:
        text = re.sub(r"<!--.*?-->\n*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        opening = re.match(r"# [^\n]+\n+(?P<first>.+?)\n\n", text, re.DOTALL)
        assert opening and re.match(r"[A-Z`u][^|]*[.:]$", opening["first"], re.DOTALL), page


@pytest.mark.usefixtures("allowed_here")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples(
    page: Path,
    port: int,
    folder: Path,
    servers: list[ucall.Server],
    record_property: Callable[[str, object], None],
) -> None:
    second_port = str(free_port())

    def ports(text: str) -> str:
        return text.replace(DEFAULT_PORT, str(port)).replace(SECOND_PORT, second_port)

    program = Program(page, ports)
    missing: set[str] = set()
    unrun: list[str] = []
    for block in blocks_of(page):
        if "openssl" in missing:
            break  # Later blocks may need its certificate.
        if block.may_run and block.kind == "python":
            program.run(block)
        elif block.may_run and servers and (used := programs_of(block)) <= PROGRAMS:
            if not (absent := {name for name in used - {"ucall"} if not find(name)}):
                run_commands(block, ports, folder, f"{page.name}:{block.line + 1}")
            missing |= absent
        else:
            unrun.append(f"{block.line} ({block.kind})")
    if unrun:
        blocks = ", ".join(unrun)
        record_property("not run", f"{page.relative_to(ROOT)}: blocks that do not run: {blocks}")
    # The blocks that ran have passed.
    for name in sorted(missing):
        require(name)
