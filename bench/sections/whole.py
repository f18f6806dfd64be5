"""Measures ucall, the floor and other projects' servers: `make bench` and `make bench-peers`.

Writes `bench/results/DATE.json`, or `DATE-peers.json`, from which the section `report` writes
docs/benchmarks.md, its charts and the README's section. With `--rows` or `--brief` it writes
`.bench/part.json` instead, so a partial run never replaces the results of a whole one.

`--peers` saves what it has after each step, and goes on from there when it is started again at the
same commit.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from bench import OUTPUT, ROOT
from bench.harness import certificate, figures, processes
from bench.sections import report
from bench.suite import calibration, drivers, exact, idle, machine, plan, rounds

OURS = ("headline", "same", "clients", "quoted", "tails", "exact")
#: Sections that do not consist of groups.
SPECIAL = {"idle": idle, "exact": exact}
PEERS = tuple(name for name in (*plan.SECTIONS, *SPECIAL) if name not in OURS)
OPTIONS = {
    "--rows": {"default": "", "help": f"some of {','.join((*OURS, *PEERS))}"},
    "--peers": {"action": "store_true", "help": "what is not in the README's table"},
    "--brief": {"action": "store_true", "help": "each once, to check that all servers run"},
}
PART, UNFINISHED = OUTPUT / "part.json", OUTPUT / "peers.json"


@dataclass(frozen=True)
class Step:
    """A part of a run, which is not interrupted. It returns what it measured, if that is not
    samples."""

    name: str
    seconds: float
    measure: Callable[[rounds.Run], list[dict] | None]


def steps(name: str, brief: bool) -> Iterator[Step]:
    """The steps of a section."""
    if special := SPECIAL.get(name):
        seconds = special.PART_SECONDS * len(special.parts())
        yield Step(name, seconds, partial(measure_parts, name, special))
        return
    for number, group in enumerate(plan.groups_of(name, brief)):
        measure = partial(rounds.run_group, group, f"{name}.{number}")
        yield Step(f"{name}.{number}", group.estimate, measure)


def measure_parts(name: str, section: ModuleType, run: rounds.Run) -> list[dict]:
    found = []
    for label, measure in section.parts().items():
        run.progress.print_line(f"{name}: {label}")
        try:
            found += measure()
        except drivers.FAILURES as error:
            run.records.problem(f"{name}: {label}: {error}")
        run.progress.advance(section.PART_SECONDS)
    return found


def new_results(options: argparse.Namespace) -> dict:
    return {
        "machine": machine.describe(),
        "is_brief": options.brief,
        "rows": options.chosen,
        "done": [],
        "minutes": 0.0,
        "rejected": 0,
        "idle": [],
        "exact": [],
        "problems": [],
        "samples": [],
    }


def unfinished(options: argparse.Namespace) -> dict | None:
    """The results of an interrupted run of the same commit."""
    if not options.peers or options.rows or options.brief or not UNFINISHED.exists():
        return None
    found = json.loads(UNFINISHED.read_text())
    return found if found["machine"]["commit"] == machine.commit() else None


def measure(options: argparse.Namespace) -> dict:
    results = unfinished(options) or new_results(options)
    found = [step for name in options.chosen for step in steps(name, options.brief)]
    left = [step for step in found if step.name not in results["done"]]
    if len(left) < len(found):
        print(f"goes on after {len(found) - len(left)} of {len(found)} steps", file=sys.stderr)
    certificate.issue()
    records = rounds.Records(results["samples"], results["problems"], results["rejected"])
    progress = rounds.Progress(sum(step.seconds for step in left))
    with calibration.running() as floor:
        for step in left:
            start = time.monotonic()
            measured = step.measure(rounds.Run(floor, records, progress))
            if measured is not None:
                results[step.name] = measured
            results["minutes"] = round(results["minutes"] + (time.monotonic() - start) / 60, 1)
            results["rejected"] = records.rejected
            results["done"].append(step.name)
            if options.peers:
                write(results, UNFINISHED)
    return results


def write(results: dict, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    samples = ",\n".join(json.dumps(sample) for sample in results["samples"])
    others = {name: value for name, value in results.items() if name != "samples"}
    head = figures.written(others).rstrip("}\n ")
    path.write_text(f'{head},\n "samples": [\n{samples}\n]}}\n')


def path_of(results: dict, options: argparse.Namespace) -> Path:
    if options.rows or options.brief:
        return PART
    suffix = "-peers" if options.peers else ""
    # With the time, so that a second run of a day replaces no other.
    began = time.strftime("%H%M", time.gmtime(time.time() - results["minutes"] * 60))
    return ROOT / f"bench/results/{results['machine']['date']}-{began}{suffix}.json"


def run(options: argparse.Namespace) -> None:
    options.chosen = options.rows.split(",") if options.rows else []
    if unknown := set(options.chosen) - {*OURS, *PEERS}:
        sys.exit(f"{', '.join(unknown)}: not among {', '.join((*OURS, *PEERS))}")
    options.chosen = options.chosen or list(PEERS if options.peers else OURS)
    processes.pin_to(processes.cores()[1])
    results = measure(options)
    path = path_of(results, options)
    write(results, path)
    if options.peers:
        UNFINISHED.unlink(missing_ok=True)
    minutes, problems = results["minutes"], results["problems"]
    print(f"{minutes} minutes, {len(problems)} problems. Written to {path.relative_to(ROOT)}.")
    report.write(path)
