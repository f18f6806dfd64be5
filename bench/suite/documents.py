"""JSON alone: parsing and writing by ucall, serde_json, simd-json and msgspec.

`bench/json` is a criterion suite; its medians are read from criterion's files. msgspec is timed
here, on the same documents, which the suite writes.
"""

import json
import os
import shutil
import statistics
import subprocess
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from bench import OUTPUT, ROOT
from bench.harness import processes
from bench.suite.rounds import Run

ESTIMATE_SECONDS = 35.0
SECONDS_MAX = 120
DOCUMENTS = OUTPUT / "json"
CRITERION = OUTPUT / "criterion"


def estimate(brief: bool) -> float:
    return ESTIMATE_SECONDS


def measure_all(brief: bool, run: Run) -> list[dict]:
    run.progress.print_line("JSON: parsing and writing")
    try:
        run_criterion()
        found = criterion_medians(CRITERION) + msgspec_medians()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        run.records.problem(f"json: {error}")
        found = []
    run.progress.advance(ESTIMATE_SECONDS)
    return found


def run_criterion() -> None:
    """Removes results of earlier runs."""
    program = OUTPUT / "json-bench"
    shutil.rmtree(CRITERION, ignore_errors=True)
    environment = {**os.environ, "CRITERION_HOME": str(CRITERION), "JSON_DOCUMENTS": str(DOCUMENTS)}
    core, _ = processes.cores()
    done = subprocess.run(
        ["taskset", "-c", str(core), str(program), "--bench", "--noplot", "--quiet"],
        env=environment,
        cwd=ROOT / "bench/json",
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    if done.returncode:
        raise ValueError(done.stderr[-300:])


def criterion_medians(directory: Path) -> list[dict]:
    """Reads criterion's estimates, in nanoseconds; names have the form `task/library/document`."""
    found = []
    for path in sorted(directory.glob("**/new/benchmark.json")):
        task, library, document = json.loads(path.read_text())["full_id"].split("/")
        estimates = json.loads((path.parent / "estimates.json").read_text())
        median = estimates["median"]["point_estimate"]
        found.append({"task": task, "library": library, "document": document, "ns": median})
    if not found:
        raise ValueError("criterion left no estimates")
    return found


def msgspec_medians() -> list[dict]:
    found = []
    for path in sorted(DOCUMENTS.glob("*.json")):
        text = path.read_bytes()
        value = msgspec.json.decode(text)
        for task, function, argument in (
            ("parse", msgspec.json.Decoder().decode, text),
            ("write", msgspec.json.Encoder().encode, value),
        ):
            ns = median_ns(partial(function, argument))
            about = {"task": task, "library": "msgspec (Python)", "document": path.stem}
            found.append({**about, "ns": ns})
    return found


def median_ns(call: Callable[[], object]) -> float:
    timer = timeit.Timer(call)
    count = max(timer.autorange()[0] // 4, 1)
    return statistics.median(timer.repeat(5, count)) / count * 1e9
