"""Runs tests, and those that failed once more, alone, up to twice. Standard library only.

    python tools/run-tests.py pytest [OPTION…] PATH…     options with a value as --name=value
    python tools/run-tests.py cargo [OPTION…]            the options of `cargo test`
    python tools/run-tests.py flaky

A test that fails and then passes is flaky. The run passes, .bench/flaky.json counts the test, and
`flaky` lists the tests of that file. Each hides a fault of the test or of the program; delete its
entry after mending it. A test that fails three times fails the run. So do more than 20 failures at
once, because they are no chance, and errors of a build, an import or an option. Alone means without
tests of its own suite: `make test` runs two suites at a time. Run it at the root.
"""

import fcntl
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

FLAKY = Path(".bench", "flaky.json")
RETRIES = 2
FAILURES_MAX = 20
# Options of pytest-xdist: what failed runs alone.
AT_ONCE = re.compile(r"-n\d*|--(numprocesses|dist|max-worker-restart)\b")
TESTS_FAILED = 1
# What cargo prints of a target that failed, and of a test of it.
RUST_TARGET = re.compile(r"to rerun pass `([^`]+)`")
RUST_TEST = re.compile(r"^---- (.+) stdout ----$")


def main(arguments: list[str]) -> int:
    runners = {"pytest": run_pytest, "cargo": run_cargo, "flaky": list_flaky}
    if not arguments or arguments[0] not in runners:
        print(__doc__, file=sys.stderr)
        return 2
    return runners[arguments[0]](arguments[1:])


def run_pytest(arguments: list[str]) -> int:
    paths = [it for it in arguments if not it.startswith("-") and Path(it).exists()]
    options = [it for it in arguments if it not in paths]
    alone = [it for it in options if not AT_ONCE.match(it)]
    code, failed, unfinished = pytest(options, paths)
    # A test process has died. The others have ended then, too.
    if code == TESTS_FAILED and unfinished:
        print(f"\n{len(unfinished)} tests did not run: a test process died", flush=True)
        code, more, unfinished = pytest(options, unfinished)
        failed = list(dict.fromkeys(failed + more))
        if unfinished:
            return TESTS_FAILED
        code = TESTS_FAILED if failed else code
    if code != TESTS_FAILED or not failed:
        return code
    return retry({test: [*alone, test] for test in failed}, lambda command: pytest(command)[0])


def pytest(options: list[str], tests: Iterable[str] = ()) -> tuple[int, list[str], list[str]]:
    """The exit status, and the tests that failed and that did not run."""
    with tempfile.TemporaryDirectory() as folder:
        names, outcomes = Path(folder) / "tests", Path(folder) / "outcomes"
        names.write_text("\n".join(tests), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", f"--outcomes={outcomes}", *options]
        command += [f"@{names}"] if names.stat().st_size else []
        code = subprocess.run(command).returncode
        if not outcomes.exists():
            return code or TESTS_FAILED, [], []
        found = json.loads(outcomes.read_text(encoding="utf-8"))
        return code, found["failed"], found["unfinished"]


def run_cargo(arguments: list[str]) -> int:
    # The packages stay, because features may be those of others. A target's name selects it.
    options = [it for it in arguments if it != "--all-targets"]
    code, failed = cargo([*arguments, "--no-fail-fast"])
    if code == 0 or not failed:
        return code
    commands: dict[str, list[str]] = {}
    for target, tests in failed.items():
        again = [*options, *re.sub(r"-p \S+ ?", "", target).split()]
        for test in tests:
            commands[f"{target} {test}"] = [*again, "--", "--exact", test]
        if not tests:  # Its process died.
            commands[target] = again
    return retry(commands, lambda command: cargo(command)[0])


def cargo(arguments: list[str]) -> tuple[int, dict[str, list[str]]]:
    """The exit status, and the tests that failed by the options that select their target."""
    process = subprocess.Popen(
        ["cargo", "test", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout
    failed: dict[str, list[str]] = {}
    tests: list[str] = []
    for line in process.stdout:
        print(line, end="", flush=True)
        if match := RUST_TEST.match(line.rstrip()):
            tests.append(match[1])
        elif match := RUST_TARGET.search(line):
            failed[match[1]], tests = tests, []
    return process.wait(), failed


def retry(commands: dict[str, list[str]], run: Callable[[list[str]], int]) -> int:
    """Runs each test alone until it passes, and records those that do; 0 if all do."""
    if len(commands) > FAILURES_MAX:
        print(f"\n{len(commands)} tests failed, which is no chance: they are not run again")
        return TESTS_FAILED
    failed = []
    for test, command in commands.items():
        for attempt in range(1, RETRIES + 1):
            print(f"\nOnce more, alone ({attempt} of {RETRIES}): {test}", flush=True)
            if run(command) == 0:
                record(test)
                break
        else:
            failed.append(test)
    for test in failed:
        print(f"FAILED {RETRIES + 1} times: {test}")
    return TESTS_FAILED if failed else 0


def known() -> dict[str, dict[str, object]]:
    return json.loads(FLAKY.read_text(encoding="utf-8")) if FLAKY.exists() else {}


def record(test: str) -> None:
    FLAKY.parent.mkdir(exist_ok=True)
    # Another suite may run at the same time.
    with FLAKY.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _record(test)


def _record(test: str) -> None:
    flaky = known()
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True)
    flaky[test] = {
        "times": flaky.get(test, {}).get("times", 0) + 1,
        "last": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": commit.stdout.strip(),
    }
    FLAKY.write_text(json.dumps(flaky, indent=2) + "\n", encoding="utf-8")


def list_flaky(_: list[str]) -> int:
    flaky = known()
    print(f"flaky: {len(flaky)}" if flaky else "flaky: none")
    for test, entry in flaky.items():
        print(f"  {test}: {entry['times']} times, last at {entry['last']}, {entry['commit']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
