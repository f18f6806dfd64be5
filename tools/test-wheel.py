"""Installs a wheel or a source distribution in a new environment outside the tree, and tries it.

    PYTHON tools/test-wheel.py [--package FILE] [PYTEST ARGUMENTS …]

The environment belongs to the interpreter that runs this script. Without a file it takes the wheel
in dist/ for that interpreter. It serves and calls a function, and fails if the
installation, the first call or the import takes longer than the limits below. With arguments for
pytest it runs the Python tests. Standard library only.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVE_AND_CALL = """
import ucall
from ucall.client import Client

server = ucall.Server(port=0)


@server
def sum(a: int, b: int) -> int:
    return a + b


with server, Client(port=server.port) as client:
    assert client.sum(2, 3).json == 5
"""
FIRST_CALL_SECONDS_MAX = 10
IMPORT_SECONDS_MAX = 0.03
# Settings of this build, which a user does not have.
SETTINGS = {"CARGO_TARGET_DIR", "CFLAGS", "CXXFLAGS", "PYO3_PYTHON", "PYTHONPATH", "RUSTFLAGS"}


def wheel_for_this_interpreter() -> Path:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    system = "macosx" if sys.platform == "darwin" else "manylinux"
    found = sorted((ROOT / "dist").glob(f"*-{tag}-{tag}-{system}*_{platform.machine()}.whl"))
    if len(found) != 1:
        sys.exit(f"dist/ holds {len(found)} wheels for {tag} and {platform.machine()}, not one")
    return found[0]


class Environment:
    """A virtual environment, in whose folder commands run."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self._python = folder / "venv" / "bin" / "python"
        self._variables = {name: it for name, it in os.environ.items() if name not in SETTINGS}

    def run(self, *words: str | Path) -> float:
        """Runs Python with these arguments, and returns the seconds that it took."""
        started = time.perf_counter()
        folder = ROOT if "pytest" in words else self._python.parent
        subprocess.run([self._python, *words], cwd=folder, env=self._variables, check=True)
        return time.perf_counter() - started

    def install(self, *what: str | Path) -> float:
        return self.run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)


def try_out(environment: Environment, package: Path) -> None:
    first_call = environment.install(package) + environment.run("-c", SERVE_AND_CALL)
    print(f"installed, and served the first call, in {first_call:.1f} s")
    imported = cpu_seconds(environment, "import ucall") - cpu_seconds(environment, "pass")
    print(f"import ucall: {imported * 1000:.0f} ms of CPU time", flush=True)
    # The source distribution compiles first.
    if package.suffix == ".whl" and first_call > FIRST_CALL_SECONDS_MAX:
        sys.exit(f"the first call took more than {FIRST_CALL_SECONDS_MAX} s")
    if imported > IMPORT_SECONDS_MAX:
        sys.exit(f"the import took more than {IMPORT_SECONDS_MAX * 1000:.0f} ms")


def cpu_seconds(environment: Environment, code: str) -> float:
    """The least of many runs, because other programs of the machine only add to it."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def once() -> float:
        before = used()
        environment.run("-c", code)
        return used() - before

    return min(once() for _ in range(15))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", type=Path)
    options, pytest_arguments = parser.parse_known_args()
    package = (options.package or wheel_for_this_interpreter()).resolve()
    print(f"{package.name} on {platform.python_implementation()} {platform.python_version()}")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # Some tests run the package as another user.
        environment = Environment(Path(folder))
        try_out(environment, package)
        if pytest_arguments:
            environment.install(f"{package}[test]")
            environment.run("-m", "pytest", *pytest_arguments, "tests/python")


main()
