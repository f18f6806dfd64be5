"""Changes the code that decides everywhere, and lists the changes that no test sees.

    python tools/mutation_test.py --only balancer

tests/mutants has the promises of the docs, each broken on purpose; this finds what nobody thought
of. cosmic-ray changes Python, and cargo-mutants Rust: operators, comparisons, numbers, results.
Each change is tried with the tests that tests/mutation/modules.toml names for its file, in a copy
of the tree in target/mutation. A change that survives needs a test, or an entry of
tests/mutation/survivors/*.toml with a verdict why none is needed; any other one fails the run. So
does an entry of a change that a test sees by now. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LISTS = ROOT / "tests" / "mutation"
FOLDER = ROOT / "target" / "mutation"
TREE = FOLDER / "tree"
#: Seconds of the tests of one change. A change that makes them hang is seen.
TEST_MAX_S = 300
#: Changes that say the same, or nothing: `A | B` in types, which only the type checker reads.
SKIPPED = [
    "core/ReplaceBinaryOperator_BitOr_.*",
    "core/ReplaceBinaryOperator_.*_(BitOr|BitAnd|BitXor|LShift|RShift|Pow|Mod|FloorDiv)",
    "core/ReplaceBinaryOperator_(Add|Sub)_(Mul|Div)",
    "core/ReplaceBinaryOperator_(Mul|Div)_(Add|Sub)",
    "core/ReplaceComparisonOperator_(Lt|LtE)_(Gt|Eq|NotEq|Is|IsNot)",
    "core/ReplaceComparisonOperator_(Gt|GtE)_(Lt|Eq|NotEq|Is|IsNot)",
    "core/ReplaceComparisonOperator_(Eq|NotEq|Is|IsNot)_(Lt|LtE|Gt|GtE)",
    "core/ReplaceComparisonOperator_(Eq|NotEq)_(Is|IsNot)",
    "core/ReplaceComparisonOperator_(Is|IsNot)_(Eq|NotEq)",
    "core/RemoveDecorator",
]

#: Changes that say the same, too: an argument that callers name may come by position, and what the
#: type checker reads is imported.
SAME = re.compile(r"^\+ .*(/, \w|/,$|not TYPE_CHECKING)", re.MULTILINE)

Change = tuple[str, str]


class Survivors:
    """The changes that may survive, and those that did."""

    def __init__(self) -> None:
        tables = [tomllib.loads(it.read_text("utf-8")) for it in LISTS.glob("survivors/*.toml")]
        listed = [survivor for table in tables for survivor in table["survivor"]]
        if unjudged := [it["change"] for it in listed if not it["verdict"]]:
            sys.exit(f"mutation: without a verdict: {unjudged}")
        self._allowed: set[Change] = {(it["file"], it["change"].strip()) for it in listed}
        self._files: set[str] = set()
        self.new: list[Change] = []
        self.count = 0

    def tried(self, file: str, survived: list[str]) -> None:
        """Takes the changes of a file that no test has seen."""
        self._files.add(file)
        self.count += len(survived)
        for change in sorted(set(survived)):
            if (file, change) in self._allowed:
                self._allowed.remove((file, change))
            else:
                self.new.append((file, change))

    def outdated(self) -> list[Change]:
        """The entries of changes that were seen, or were not tried."""
        return sorted(it for it in self._allowed if it[0] in self._files)


def copy_tree() -> None:
    """Copies the files that git tracks or would add, with the installed extension module."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    shutil.rmtree(TREE, ignore_errors=True)
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name)
    import ucall

    for module in Path(ucall.__file__).parent.glob("_core*.so"):
        shutil.copy2(module, TREE / "python" / "ucall")


def run(*command: str, may_fail: bool = False) -> str:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TREE / "python"), str(TREE / "tests")]),
        # Otherwise a change of the same length, within a second, would not be compiled.
        "PYTHONDONTWRITEBYTECODE": "1",
        # Outside of the tree, so that it is built once.
        "CARGO_TARGET_DIR": str(FOLDER / "build"),
    }
    done = subprocess.run(command, cwd=TREE, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode and not may_fail:
        sys.exit(f"mutation: {' '.join(command)} failed\n{done.stdout[-4000:]}")
    return done.stdout


def try_python(module: dict[str, Any], cosmic_ray: str) -> tuple[int, list[str]]:
    """How many changes of a module were tried, and those that survived."""
    session, config = str(FOLDER / "session.sqlite"), FOLDER / "cosmic-ray.toml"
    Path(session).unlink(missing_ok=True)
    tests = " ".join(f"tests/python/{it}" for it in module["tests"])
    options = "-q -x -p no:cacheprovider -o faulthandler_timeout=60"
    config.write_text(
        "[cosmic-ray]\n"
        f"module-path = {json.dumps(module['file'])}\n"
        f"timeout = {TEST_MAX_S}\n"
        "excluded-modules = []\n"
        f"test-command = {json.dumps(f'{sys.executable} -m pytest {options} {tests}')}\n"
        '[cosmic-ray.distributor]\nname = "local"\n'
        f"[cosmic-ray.filters.operators-filter]\nexclude-operators = {json.dumps(SKIPPED)}\n"
    )
    run(cosmic_ray, "baseline", str(config))
    run(cosmic_ray, "init", str(config), session)
    run(str(Path(cosmic_ray).with_name("cr-filter-operators")), session, str(config))
    run(cosmic_ray, "exec", str(config), session)
    tried, survived = 0, []
    for line in run(cosmic_ray, "dump", session).splitlines():
        item, result = json.loads(line)
        if result is None or result["worker_outcome"] == "skipped":
            continue
        [mutation] = item["mutations"]
        change = describe(mutation["definition_name"], result["diff"])
        if SAME.search(change):
            continue
        tried += 1
        if result["test_outcome"] == "survived":
            survived.append(change)
    return tried, survived


def describe(definition: str | None, difference: str) -> str:
    """A change without the numbers of its lines, which other changes move."""
    lines = [line for line in difference.splitlines() if re.match(r"[-+](?![-+])", line)]
    return "\n".join([definition or "module", *(f"{it[0]} {it[1:].strip()}" for it in lines)])


def try_rust(package: dict[str, Any]) -> Iterator[tuple[str, int, list[str]]]:
    """For each file how many changes were tried, and those that survived."""
    files = [option for file in package["files"] for option in ("--file", file)]
    options = ["--no-shuffle", "--in-place", "--output", str(FOLDER), "--timeout", "120"]
    # It fails if a change survives.
    run("cargo", "mutants", "--package", package["package"], *files, *options, may_fail=True)
    outcomes = json.loads((FOLDER / "mutants.out" / "outcomes.json").read_text("utf-8"))["outcomes"]
    found: dict[str, tuple[list[str], list[str]]] = {it: ([], []) for it in package["files"]}
    for outcome in outcomes:
        if outcome["scenario"] == "Baseline":
            if outcome["summary"] != "Success":
                sys.exit(f"mutation: the tests of {package['package']} fail without a change")
            continue
        mutant = outcome["scenario"]["Mutant"]
        change = re.sub(r"^.*?:\d+:\d+: ", "", mutant["name"])
        tried, survived = found[mutant["file"]]
        tried.append(change)
        if outcome["summary"] == "MissedMutant":
            survived.append(change)
    for file, (tried, survived) in found.items():
        yield file, len(tried), survived


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="TEXT", help="in the name of the file")
    parser.add_argument("--cosmic-ray", default="cosmic-ray", help="the program")
    options = parser.parse_args()
    survivors = Survivors()
    modules = tomllib.loads((LISTS / "modules.toml").read_text("utf-8"))
    copy_tree()
    total = 0
    for module in modules["python"]:
        if options.only in module["file"]:
            tried, survived = try_python(module, options.cosmic_ray)
            total += report(survivors, module["file"], tried, survived)
    for package in modules["rust"]:
        package["files"] = [file for file in package["files"] if options.only in file]
        for file, tried, survived in try_rust(package) if package["files"] else ():
            total += report(survivors, file, tried, survived)
    print(f"mutation: {total} changes, {survivors.count} survived, {len(survivors.new)} are new")
    for file, change in survivors.new:
        print(
            f"\n[[survivor]]\nfile = {json.dumps(file)}\nchange = '''\n{change}'''\nverdict = \"\""
        )
    outdated = survivors.outdated()
    for file, change in outdated:
        print(f"\nno survivor any more, {file}: {change}")
    sys.exit(1 if survivors.new or outdated else 0)


def report(survivors: Survivors, file: str, tried: int, survived: list[str]) -> int:
    print(f"{file}: {tried} changes, {len(survived)} survived", flush=True)
    survivors.tried(file, survived)
    return tried


main()
