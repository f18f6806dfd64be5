"""Every example in README.md and docs/*.md runs as it is written, and has the output that it shows.

The ```python blocks of a page run in order, and may use await. They are one program up to the block
with `server.run()`, after which no line of that program runs. So of the later blocks

- one that uses the server, as by `@server`, is a part of its program, above `run()`;
- one that makes a server and runs it is another program, which takes the place of the first;
- all others are the program of another terminal, and share none of the server's names.

A block whose first line is a comment with a file's name, such as `# app.py`, is that file, too.
```console blocks run in a shell, one `$ ` line after another, each followed by its output. Only
blocks whose commands are all in PROGRAMS run, and only on pages whose Python has started a server.
They run in a new folder. The end of a run lists the blocks of each page that did not run.

- `# => repr` in the line after an expression is checked. A further line that begins with `#    `
  goes on with it, after a space.
- A line `…` in the output of a command matches any lines.
- `server.run()` serves in the background, as `server.start()` does, until the page ends or runs the
  next program on its port. The ports 8545, also as a default, and 8443 are replaced by free ones.
- `<!-- first -->` before a block: it runs before all others.
- `<!-- not run: why -->` before a block: it does not run.
- `<!-- needs NAME -->` before a block: it runs if that package is installed.

The pages in SHARING are older: their blocks share all names, values may be at the end of the line,
and `<!-- setup` … `-->` contains Python that is not rendered.
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

import forking
import pytest
from inner_pytest import without_plugins
from programs import find, require

import ucall
from harness import free_port
from ucall._client import address
from ucall.queue.utils import allow

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
#: `make docs` writes them while the tests run. They have no examples.
GENERATED = {ROOT / "docs/benchmarks-all.md", ROOT / "docs/c-reference.md"}
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - GENERATED)]
#: Pages whose examples use names of their other examples.
SHARING = {
    "asgi.md",
    "hooks.md",
}
#: In place of packages that are not installed.
STAND_INS = Path(__file__).parent / "stand_ins"
PROGRAMS = {"cat", "curl", "echo", "nc", "openssl", "printf", "pytest", "python", "ucall"}
DEFAULT_PORT = "8545"
SECOND_PORT = "8443"

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>first|needs \w+|not run: [^\n]*) -->\n)?^```(?P<kind>python|console)\n"
    r"(?P<text>.*?)^```$|^<!-- setup\n(?P<setup>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
SHOWN = re.compile(r"^(?P<before>.*?)# => (?P<shown>.+(?:\n *#    .+)*)$", re.MULTILINE)
FILE_NAME = re.compile(r"# (?P<name>\w+\.py)\n")


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
Names = dict[str, Any]


class Programs:
    """The programs of a page. `ports` replaces the ports in them by free ones."""

    def __init__(self, page: Path, ports: Ports) -> None:
        self._page = page
        self._ports = ports
        self._shares = page.name in SHARING
        self._current = self._names()
        self._served: Names | None = None

    def run(self, block: Block) -> None:
        if (file := FILE_NAME.match(block.text)) is not None:
            Path(file["name"]).write_text(self._ports(block.text))
        tree = self._parse(block)
        names = self._names_for(tree)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(tree, str(self._page), "exec", flags=flags, dont_inherit=True)
        outcome = eval(code, names)
        if inspect.iscoroutine(outcome):
            asyncio.run(outcome)
        if server_run_by(tree) and not self._shares:
            self._served, self._current = names, self._names()

    def _parse(self, block: Block) -> ast.Module:
        """The block's code, in which each expression before a `# =>` is compared with it."""
        source = "\n" * block.line + self._ports(block.text)
        tree = ast.parse(source, str(self._page))
        ends = {it.end_lineno: it for it in ast.walk(tree) if isinstance(it, ast.Expr)}
        for shown in SHOWN.finditer(source):
            line = source.count("\n", 0, shown.start()) + 1
            is_below = not shown["before"].strip()
            where = f"{self._page.name}:{line}"
            assert is_below or self._shares, f"{where}: write the value below the code"
            statement = ends.get(line - 1 if is_below else line)
            assert statement is not None, f"{where}: the value of no expression"
            value = re.sub(r"\n *#    ", " ", shown["shown"])
            arguments = [statement.value, ast.Constant(value)]
            call = ast.Call(ast.Name("_shows", ast.Load()), arguments, [])
            statement.value = ast.copy_location(call, statement.value)
        return ast.fix_missing_locations(tree)

    def _names_for(self, tree: ast.Module) -> Names:
        """The program that the block is a part of."""
        if self._served is None:
            return self._current
        made, used = names_in(tree)
        if server_run_by(tree) in made:
            return self._names()
        return self._served if used & self._servers() else self._current

    def _servers(self) -> set[str]:
        served = (self._served or {}).items()
        return {name for name, value in served if isinstance(value, ucall.Server | ucall.Group)}

    def _names(self) -> Names:
        return {"__name__": "__main__", "_shows": shows}


def shows(value: object, shown: str) -> None:
    assert repr(value) == shown


def names_in(tree: ast.Module) -> tuple[set[str], set[str]]:
    """The names that the code binds, and those that it uses and does not bind."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    made = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    return made, {node.id for node in nodes if isinstance(node.ctx, ast.Load)} - made


def server_run_by(tree: ast.Module) -> str | None:
    """The name of the server that the code runs, as its last statement, until it is stopped."""
    last = ast.unparse(tree.body[-1]) if tree.body else ""
    run = re.fullmatch(r"(?P<name>\w+)\.run\(.*\)", last)
    return run and run["name"]


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
                "PATH": f"{folder / 'bin'}:{BIN}:/usr/local/bin:/usr/bin:/bin",
                "PYTEST_ADDOPTS": " ".join(without_plugins("ucall", "anyio")),
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
    monkeypatch.setattr(sys, "path", [*sys.path, str(STAND_INS)])
    (tmp_path / "bin").mkdir()
    forking.write_command(
        tmp_path / "bin" / "ucall",
        "import sys\n"
        "from ucall import cli\n"
        "from ucall._client import address\n"
        f"address._SCHEMES = {{**address._SCHEMES, '': (True, False, {port}),"
        f" 'tcp': (False, False, {port})}}\n"
        "sys.exit(cli.main())\n",
    )
    (tmp_path / ".curlrc").write_text("silent\nshow-error\n")
    # Removed with its content after the test. Socket paths must be shorter than `tmp_path`.
    with tempfile.TemporaryDirectory() as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith((f"{tmp_path}/", f"{STAND_INS}/")):
            del sys.modules[name]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ucall.Server]]:
    """Makes `server.run()` return at once, and stops all servers after the test."""
    started: list[ucall.Server] = []
    start = ucall.Server.start

    def start_for_the_page(server: ucall.Server, **how: Any) -> None:
        for other in started:
            if other is not server and other.port == server.port is not None:
                other.stop()  # As its user does, by Ctrl-C, before the next program.
        started.append(server)
        start(server, **how)

    def run_for_the_page(server: ucall.Server, **how: Any) -> None:
        if sys._getframe(1).f_globals["__name__"] == "__main__":  # Else a module that is imported.
            start_for_the_page(server, **how)

    monkeypatch.setattr(ucall.Server, "run", run_for_the_page)
    monkeypatch.setattr(ucall.Server, "start", start_for_the_page)
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
    install_command = re.compile(r"(?:pip install|uv add)[^\n]*[ '\"]ucall(?![\w/.-])[^\n]*")
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


def test_no_example_has_a_part_that_is_not_shown() -> None:
    for page in PAGES:
        assert page.name in SHARING or "<!-- setup" not in page.read_text(encoding="utf-8"), page


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

    programs = Programs(page, ports)
    missing: set[str] = set()
    unrun: list[str] = []
    for block in blocks_of(page):
        if "openssl" in missing:
            break  # Later blocks may need its certificate.
        if block.may_run and block.kind == "python":
            programs.run(block)
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
