"""The distribution ``ucall-rpc``: its name, its version, and the earlier ``ucall`` beside it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pip
import pytest

import ucall

ROOT = Path(__file__).parents[2]
CHECK_VERSION = ROOT / "tools" / "check-version.py"
DISTRIBUTION = "ucall-rpc"
#: Runs pip for each line of arguments, and prints its status. Only pip comes from this environment.
#: To import it takes most of its time.
PIP = f"""
import json, os, sys
sys.path.insert(0, {str(Path(pip.__path__[0]).parent)!r})
from pip._internal.cli.main import main
del sys.path[0]
for line in sys.stdin:
    if (child := os.fork()) == 0:
        os.dup2(2, 1)
        os._exit(main(json.loads(line)))
    print(os.waitpid(child, 0)[1], flush=True)
"""


def project() -> dict[str, object]:
    loaded: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


def test_one_distribution_has_the_module() -> None:
    assert metadata.packages_distributions()["ucall"] == [DISTRIBUTION]
    assert project()["name"] == DISTRIBUTION


def test_the_extras_are_those_of_the_project() -> None:
    declared = project()["optional-dependencies"]
    assert isinstance(declared, dict)
    installed = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    assert sorted(installed) == sorted(declared)


def check_version(*arguments: str, script: Path = CHECK_VERSION) -> str:
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else done.stderr


def test_each_file_names_the_version() -> None:
    semantic, python = re.fullmatch(r"version: (\S+), (\S+) in Python\n", check_version()).groups()  # type: ignore[union-attr]
    assert python == ucall.__version__ == metadata.version(DISTRIBUTION)
    client = json.loads((Path(ucall.__path__[0]) / "static" / "package.json").read_text())
    assert (client["name"], client["version"]) == ("ucall-client", semantic)
    assert check_version(f"v{semantic}") == check_version()
    assert "the tag v0.9.0 is not that of the version" in check_version("v0.9.0")


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("include/ucall/ucall.h", "VERSION_MAJOR 1", "VERSION_MAJOR 9"),
        ("include/ucall/ucall.h", 'define UCALL_VERSION "1', 'define UCALL_VERSION "9'),
        ("python/ucall/static/package.json", '"version": "1', '"version": "9'),
        ("docs/install.md", "tar -xf ucall-c-1", "tar -xf ucall-c-9"),
        ("README.md", "Version 1", "Version 9"),
        ("CHANGELOG.md", "## 1", "## 9"),
    ],
)
def test_a_file_of_another_version_is_named(
    tmp_path: Path, file: str, before: str, after: str
) -> None:
    files = {"Cargo.toml", "README.md", "CHANGELOG.md", "docs/install.md"}
    files |= {"include/ucall/ucall.h", "python/ucall/static/package.json", "tools/check-version.py"}
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    script = tmp_path / "tools" / "check-version.py"
    assert check_version(script=script) == check_version()
    text = (tmp_path / file).read_text()
    assert before in text
    (tmp_path / file).write_text(text.replace(before, after))
    assert check_version(script=script).startswith(f"{file}: ")


# The earlier project in the same environment. pip does not tell that they share a module.


class Environment:
    """An empty virtual environment, into which this one's pip installs."""

    def __init__(self, python: Path, pip: subprocess.Popen[str]) -> None:
        self._python = python
        self._pip = pip

    def pip(self, *arguments: str | Path) -> None:
        assert self._pip.stdin is not None and self._pip.stdout is not None
        words = ["--quiet", "--disable-pip-version-check", *map(str, arguments)]
        print(json.dumps(words), file=self._pip.stdin, flush=True)
        assert self._pip.stdout.readline() == "0\n"

    def install(self, wheel: Path, *options: str) -> None:
        self.pip("install", "--no-compile", "--no-deps", "--no-index", *options, wheel)

    def imported(self) -> str:
        """What ``from ucall import Server`` prints, with its error."""
        program = "from ucall import Server; print('made by', Server.__module__)"
        command = [self._python, "-I", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout + done.stderr


@contextmanager
def environment_in(folder: Path) -> Iterator[Environment]:
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pipe = subprocess.PIPE
    with subprocess.Popen([python, "-c", PIP], stdin=pipe, stdout=pipe, text=True) as pip:
        yield Environment(python, pip)


def wheel_of(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\nucall = ucall.cli:main\n",
        **files,
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for at, content in {**files, f"{info}/RECORD": record.encode()}.items():
            wheel.writestr(at, content)
    return path


def this_wheel(folder: Path) -> Path:
    package = Path(ucall.__path__[0])
    files = {
        f"ucall/{path.relative_to(package)}": path.read_bytes()
        for path in package.rglob("*")
        if path.suffix in (".py", ".so")
    }
    return wheel_of(folder, "ucall_rpc", ucall.__version__, files)


def earlier_wheel(folder: Path) -> Path:
    """The files of 0.5.4, without what they do and its static libraries."""
    names = "__init__.py _server.py cli.py client.py posix.so rich_posix.py rich_uring.py uring.so"
    return wheel_of(folder, "ucall", "0.5.4", {f"ucall/{name}": b"" for name in names.split()})


def test_the_earlier_project_in_the_same_environment(tmp_path: Path) -> None:
    ours, theirs = this_wheel(tmp_path), earlier_wheel(tmp_path)
    with environment_in(tmp_path / "environment") as environment:

        def mend() -> None:
            """The commands that the warning and docs/coming-from-ucall.md name."""
            environment.pip("uninstall", "--yes", "ucall")
            environment.install(ours, "--force-reinstall")
            assert environment.imported() == "made by ucall.server\n"

        environment.install(theirs)
        environment.install(ours)
        printed = environment.imported()
        assert "made by ucall.server\n" in printed
        assert "has files of ucall 0.4 or 0.5 from PyPI" in printed
        assert ": _server.py, posix.so, uring.so. " in printed
        assert "Run pip uninstall ucall, then install ucall-rpc again" in printed
        mend()
        environment.install(theirs)
        assert "cannot import name 'Server' from 'ucall'" in environment.imported()
        mend()
