"""Breaks the promises of the docs one at a time, and checks that a test sees each break.

    python tools/mutants.py --check
    python tools/mutants.py --kind python --only client

tests/mutants/*.toml list the mutants: a promise; a change of one file that breaks it, by a text
that the file has once (`before`) and its replacement (`after`); and the test that must fail, a node
of pytest or `cargo test -p CRATE … NAME`. Each change is made alone, in a copy of the tree in
target/mutants, which is kept so that Rust builds only what a change affects. First every test runs
once without a change: a test that fails or is skipped anyway sees nothing, so its mutants are not
tried. A mutant with `accepted`, the reason why no test sees it, may survive. With `--check` nothing
is built and run: each mutant must still apply, and its test exist. That of a file of engines is not
in tests/any-engine.txt, so that it runs on both engines. Standard library only.
"""

import argparse
import ast
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "tests" / "mutants"
ENGINES = ROOT / "tools" / "engines-changed.sh"
ANY_ENGINE = ROOT / "tests" / "any-engine.txt"
FOLDER = ROOT / "target" / "mutants"
TREE = FOLDER / "tree"
#: In the order in which they run: mutants of Python need the extension module without a change.
KINDS = ["python", "extension", "rust", "library"]
BUILD_MAX_S = 900
#: A test that hangs has seen its mutant. The limit of pytest is lower.
HANGS_S = 120
PYTEST_OPTIONS = ["-q", "--override-ini=faulthandler_timeout=60", "-p", "no:cacheprovider"]
FAILED = {"pytest": 1, "cargo": 101}
DEFINED = re.compile(r"\b(?:def|fn) (\w+)[(<]")
#: What a runner prints of a test that ran.
PASSED = re.compile(r"\b[1-9]\d* passed\b")
#: What pytest's summary says of each test, and the test.
OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) (\S+)", re.MULTILINE)


class CannotRunError(Exception):
    """A build or a test that says nothing of its mutant."""


@dataclass(frozen=True)
class Mutant:
    promise: str
    file: str
    before: str
    after: str
    test: str
    accepted: str = ""

    @property
    def runner(self) -> str:
        return self.test.split()[0]

    @property
    def kind(self) -> str:
        """What has to be built: nothing, the extension module, tests of Rust, or the C library
        with the programs of its tests."""
        if self.runner == "cargo":
            return "rust"
        if " tests/c/" in self.test:
            return "library"
        return "extension" if self.file.endswith(".rs") else "python"

    def complaints(self) -> Iterator[str]:
        """Why this mutant cannot run."""
        path = ROOT / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (count := text.count(self.before)) != 1:
            yield f"`before` is {count} times in {self.file}, not once"
        if self.before == self.after:
            yield "`after` equals `before`"
        if self.file.endswith(".py"):
            try:
                ast.parse(text.replace(self.before, self.after))
            except SyntaxError as error:
                yield f"`after` is no Python: {error}"
        if self.runner not in FAILED:
            yield f"`test` begins with {self.runner}, not with {' or '.join(FAILED)}"
        elif not self._has_test():
            yield f"no such test: {self.test}"
        elif self._is_of_engines() and self._test_file() in files_for_any_engine():
            yield f"{self.file} is of engines, and its test is of {ANY_ENGINE.name}"

    def _is_of_engines(self) -> bool:
        return any(self.file.startswith(name) for name in files_of_engines())

    def _test_file(self) -> str:
        return self.test.split(maxsplit=1)[1].partition("::")[0]

    def _has_test(self) -> bool:
        if self.runner == "pytest":
            name = self.test.partition("::")[2].partition("[")[0]
            names = defined_in(ROOT / self._test_file())
        else:
            package, *_, name = re.sub(r".* -p ", "", self.test).split()
            names = defined_in(ROOT / "crates" / package)
        return name.rpartition("::")[2] in names


@functools.cache
def defined_in(path: Path) -> set[str]:
    """The names of the functions in a file of Python, or in the files of Rust below a folder."""
    sources = [path] if path.is_file() else path.rglob("*.rs")
    return {name for it in sources for name in DEFINED.findall(it.read_text("utf-8"))}


@functools.cache
def files_of_engines() -> list[str]:
    """The files and folders by which engines differ."""
    return ENGINES.read_text("utf-8").partition("FILES=(\n")[2].partition("\n)")[0].split()


@functools.cache
def files_for_any_engine() -> set[str]:
    """The files of tests that do not depend on the engine."""
    lines = ANY_ENGINE.read_text("utf-8").splitlines()
    return {f"tests/{line}" for line in lines if not line.startswith("#")}


def read_table() -> list[Mutant]:
    tables = [tomllib.loads(path.read_text("utf-8")) for path in sorted(TABLES.glob("*.toml"))]
    mutants = [Mutant(**entry) for table in tables for entry in table["mutant"]]
    return sorted(mutants, key=lambda mutant: KINDS.index(mutant.kind))


def check(mutants: list[Mutant]) -> None:
    found = [f"{it.promise}: {complaint}" for it in mutants for complaint in it.complaints()]
    if found:
        sys.exit("\n".join(["tests/mutants:", *found]))
    print(f"mutants: {len(mutants)} apply")


def copy_tree() -> None:
    """Copies the files that git tracks or would add. A file without a change keeps its time. What
    tools/install-conformance.sh has installed is linked."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = {name for name in listed.splitlines() if (ROOT / name).is_file()}
    copied = {str(it.relative_to(TREE)) for it in TREE.rglob("*") if it.is_file()}
    for name in copied - names:
        (TREE / name).unlink()
    for name in names:
        source, target = ROOT / name, TREE / name
        if not target.is_file() or source.read_bytes() != target.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
            os.utime(target)
    _copy_extension()
    packages = TREE / ".bench" / "conformance"
    packages.parent.mkdir(exist_ok=True)
    if not packages.is_symlink():
        packages.symlink_to(ROOT / ".bench" / "conformance")


def _copy_extension() -> None:
    """Takes the extension module of the virtual environment that runs this program."""
    import ucall

    for module in Path(ucall.__file__).parent.glob("_core*.so"):
        shutil.copy2(module, TREE / "python" / "ucall")


def run(*command: str, most_s: float = BUILD_MAX_S) -> tuple[int, str]:
    """The status of a command, which fails after `most_s`, and its output."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TREE / "python"), str(TREE / "tests")]),
        "PYO3_PYTHON": sys.executable,
        "CARGO_TARGET_DIR": str(FOLDER / "build"),
        "CARGO_INCREMENTAL": "1",
    }
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        # In a group of its own, which ends with it.
        process = subprocess.Popen(
            command,
            cwd=TREE,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(most_s)
        except subprocess.TimeoutExpired:
            status = FAILED["cargo"] if command[0] == "cargo" else FAILED["pytest"]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return status, output.read()


def build(mutant: Mutant) -> None:
    """Builds what the test runs."""
    if mutant.kind == "extension":
        wheels = FOLDER / "wheels"
        shutil.rmtree(wheels, ignore_errors=True)
        # As for all tests: the dependencies are compiled once for all kinds.
        options = ["--profile=test-release", "--locked", "--interpreter", sys.executable]
        maturin = [sys.executable, "-m", "maturin", "build", "--quiet", *options]
        commands = [[*maturin, "--out", str(wheels)]]
    elif mutant.runner == "cargo":
        commands = [[*mutant.test.split(), "--no-run", "--quiet"]]
    elif mutant.kind == "library":
        library = ["cargo", "build", "--quiet", "--locked", "--features=full"]
        library += ["--profile=test-release", "--workspace", "--exclude=ucall-python"]
        commands = [library, [sys.executable, "tests/c/build.py"]]
    else:
        commands = []
    for command in commands:
        status, output = run(*command)
        if status:
            raise CannotRunError(f"does not compile: {output[-2000:]}")
    if mutant.kind == "extension":
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as file:
                names = [name for name in file.namelist() if name.startswith("ucall/_core.c")]
                file.extractall(TREE / "python", names)


def run_test(mutant: Mutant) -> tuple[bool, str]:
    """Whether the test fails, and its output."""
    command = mutant.test.split()
    if mutant.runner == "pytest":
        command = [sys.executable, "-m", *command, "-x", *PYTEST_OPTIONS]
    status, output = run(*command, most_s=HANGS_S)
    # A crash has seen its mutant, too.
    if (status > 0 and status != FAILED[mutant.runner]) or status == -signal.SIGKILL:
        raise CannotRunError(f"the test cannot run, status {status}: {output[-2000:]}")
    return status != 0, output


def find_unusable_tests(mutants: list[Mutant]) -> dict[str, str]:
    """The tests that see nothing, because they fail or do not run without a change, and why."""
    unusable: dict[str, str] = {}
    tests = {mutant.test: mutant for mutant in mutants}
    # The tree has the extension module of the virtual environment, which nothing has changed.
    unbuilt = ("python", "extension")
    for test in find_passed(test for test, mutant in tests.items() if mutant.kind in unbuilt):
        del tests[test]
    for number, mutant in enumerate(tests.values(), start=1):
        print(f"{number}/{len(tests)} without a change: {mutant.test}", flush=True)
        try:
            if mutant.kind not in unbuilt:
                build(mutant)
            fails, output = run_test(mutant)
        except CannotRunError as error:
            unusable[mutant.test] = str(error)
            continue
        if fails:
            unusable[mutant.test] = f"fails without a change: {output[-2000:]}"
        elif not PASSED.search(output):
            unusable[mutant.test] = "is skipped"
    return unusable


def find_passed(tests: Iterable[str]) -> set[str]:
    """Those tests of pytest of which some variant passes and none fails, in one run of each of the
    folders of `tests/`, since their helpers share names."""
    nodes = [test.removeprefix("pytest ") for test in tests]
    options = ["-rA", "--show-capture=no", *PYTEST_OPTIONS]
    pytest = [sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "worksteal"]
    outcomes: dict[str, set[str]] = {}
    for folder in sorted({Path(node).parts[1] for node in nodes}):
        inside = [node for node in nodes if Path(node).parts[1] == folder]
        print(f"{len(inside)} tests of tests/{folder} without a change", flush=True)
        _, output = run(*pytest, *options, *inside, most_s=HANGS_S * len(inside))
        for outcome, node in OUTCOME.findall(output):
            for name in {node, node.partition("[")[0]}:
                outcomes.setdefault(name, set()).add(outcome)
    return {f"pytest {node}" for node in nodes if outcomes.get(node) == {"PASSED"}}


def write(path: Path, text: str) -> None:
    """Replaces a file. Python would know the change by its second and the length of the text, which
    another mutant may share, so what it has compiled is removed."""
    path.write_text(text, encoding="utf-8")
    Path(cache_from_source(path)).unlink(missing_ok=True)


def try_mutant(mutant: Mutant) -> str:
    """Breaks the promise, and returns the verdict: seen, survived, accepted, or why neither."""
    path = TREE / mutant.file
    text = path.read_text(encoding="utf-8")
    try:
        write(path, text.replace(mutant.before, mutant.after))
        build(mutant)
        fails, _ = run_test(mutant)
    except CannotRunError as error:
        return f"not tried: {error}"
    finally:
        write(path, text)
    if fails:
        return "seen"
    return f"accepted: {mutant.accepted}" if mutant.accepted else "survived"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="whether all mutants still apply")
    parser.add_argument("--kind", choices=KINDS, help="what has to be built")
    parser.add_argument("--only", default="", metavar="TEXT", help="in the promise or the file")
    options = parser.parse_args()
    mutants = read_table()
    check(mutants)
    if options.check:
        return
    mutants = [it for it in mutants if options.kind in (None, it.kind)]
    mutants = [it for it in mutants if options.only in f"{it.promise} {it.file}"]
    copy_tree()
    unusable = find_unusable_tests(mutants)
    verdicts = {}
    for number, mutant in enumerate(mutants, start=1):
        reason = unusable.get(mutant.test)
        verdict = f"not tried: {reason}" if reason else try_mutant(mutant)
        print(f"{number}/{len(mutants)} {verdict}: {mutant.promise}", flush=True)
        verdicts[mutant] = verdict
    report(verdicts)


def report(verdicts: dict[Mutant, str]) -> None:
    """Counts the verdicts, and fails if a mutant survived or was not tried."""
    counts = Counter(verdict.partition(":")[0] for verdict in verdicts.values())
    print(f"mutants: {len(verdicts)};", ", ".join(f"{n} {it}" for it, n in counts.items()))
    missed = [
        f"{verdict}: {it.promise} ({it.test})"
        for it, verdict in verdicts.items()
        if not verdict.startswith(("seen", "accepted"))
    ]
    if missed:
        sys.exit("\n".join(missed))


main()
