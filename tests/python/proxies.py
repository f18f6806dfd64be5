"""nginx and HAProxy as context managers."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from programs import require

from harness import HOST, eventually

__all__ = ["haproxy", "nginx"]


@contextmanager
def nginx(folder: Path, configuration: str, port: int) -> Iterator[None]:
    """Runs nginx with this ``http`` block; yields once it listens on `port`."""
    folders = "".join(
        f"{name}_temp_path {folder / name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    path = folder / "nginx.conf"
    path.write_text(
        f"daemon off; master_process off; pid {folder / 'pid'}; error_log stderr;\n"
        f"events {{}}\nhttp {{ access_log off;\n{folders}{configuration} }}\n"
    )
    with _running("nginx", ["-p", str(folder), "-c", str(path)], port):
        yield


@contextmanager
def haproxy(folder: Path, configuration: str, port: int) -> Iterator[None]:
    """Runs HAProxy with this configuration; yields once it listens on `port`."""
    path = folder / "haproxy.cfg"
    path.write_text(configuration)
    with _running("haproxy", ["-db", "-f", str(path)], port):
        yield


@contextmanager
def _running(name: str, arguments: list[str], port: int) -> Iterator[None]:
    with subprocess.Popen([require(name), *arguments], stderr=subprocess.DEVNULL) as process:
        try:
            assert eventually(lambda: _listens(port)), f"{name} does not listen"
            yield
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
