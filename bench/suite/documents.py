"""JSON alone: parsing and writing by ucall, serde_json, simd-json and msgspec.

`bench/json` is a criterion suite; its medians are read from criterion's files. msgspec is timed
here, on the same documents, which the suite writes.
"""

import json
import os
import shutil
import statistics
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from bench import OUTPUT, ROOT
from bench.harness import processes

PART_SECONDS = 17.5
SECONDS_MAX = 120
DOCUMENTS = OUTPUT / "json"
CRITERION = OUTPUT / "criterion"


def parts() -> dict[str, Callable[[], list[dict]]]:
    return {"ucall, serde_json, simd-json": criterion, "msgspec": msgspec_medians}


def criterion() -> list[dict]:
    """Removes results of earlier runs."""
    shutil.rmtree(CRITERION, ignore_errors=True)
    environment = {**os.environ, "CRITERION_HOME": str(CRITERION), "JSON_DOCUMENTS": str(DOCUMENTS)}
    command = [OUTPUT / "json-bench", "--bench", "--noplot", "--quiet"]
    processes.run_load(command, SECONDS_MAX, env=environment, cwd=ROOT / "bench/json")
    return criterion_medians(CRITERION)


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
