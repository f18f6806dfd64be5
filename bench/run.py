"""Measures ucall, the floor and other projects' servers: `make bench`.

    python bench/run.py [--rows headline,peers,idle,…] [--brief]

Writes `bench/results/DATE.json`, from which `bench/report.py` writes docs/benchmarks.md, its charts
and the README's section. With `--rows` or `--brief` it writes `.bench/part.json` instead, so a
partial run never replaces the results of a whole one.
"""

import argparse
import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness import processes
from harness.rows import OUTPUT, ROOT
from suite import documents, exact, idle, machine, plan, rounds

SPECIAL = {
    "idle": idle.estimate,
    "json": lambda: documents.ESTIMATE_SECONDS,
    "exact": exact.estimate,
}
ROWS = (*plan.SECTIONS, *SPECIAL)
PART = OUTPUT / "part.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures ucall, the floor and other servers.")
    parser.add_argument("--rows", default="", help=f"some of {','.join(ROWS)} (all)")
    parser.add_argument(
        "--brief", action="store_true", help="each once, to check that all servers run"
    )
    options = parser.parse_args()
    options.chosen = options.rows.split(",") if options.rows else list(ROWS)
    if unknown := set(options.chosen) - set(ROWS):
        parser.error(f"{', '.join(unknown)}: not among {', '.join(ROWS)}")
    return options


def raise_descriptor_limit() -> None:
    """Raises the descriptor limit, which servers and loads inherit, for 10,000 connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def measure(options: argparse.Namespace) -> dict:
    chosen = options.chosen
    groups = plan.groups_of(chosen, options.brief)
    total = sum(group.estimate for group in groups)
    total += sum(estimate() for name, estimate in SPECIAL.items() if name in chosen)
    progress, records = rounds.Progress(total), rounds.Records()
    results = {"machine": machine.describe(), "is_brief": options.brief, "rows": chosen}
    start = time.monotonic()
    for number, group in enumerate(groups):
        rounds.run_group(group, number, records, progress)
    results["idle"] = idle.measure_all(records, progress) if "idle" in chosen else []
    results["json"] = documents.measure_all(records, progress) if "json" in chosen else []
    results["exact"] = exact.measure_all(progress) if "exact" in chosen else []
    results["minutes"] = round((time.monotonic() - start) / 60, 1)
    return {**results, "samples": records.samples, "problems": records.problems}


def written(results: dict, options: argparse.Namespace) -> Path:
    is_whole = not options.rows and not options.brief
    path = ROOT / f"bench/results/{results['machine']['date']}.json" if is_whole else PART
    path.parent.mkdir(exist_ok=True)
    samples = ",\n".join(json.dumps(sample) for sample in results.pop("samples"))
    head = json.dumps(results, indent=1).rstrip("}\n ")
    path.write_text(f'{head},\n "samples": [\n{samples}\n]}}\n')
    return path


def end_on_sigterm(*_) -> None:
    """Raises an exception, so that servers and loads are ended before exit."""
    sys.exit("stopped by SIGTERM")


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, end_on_sigterm)
    raise_descriptor_limit()
    OUTPUT.mkdir(exist_ok=True)
    processes.pin_to(processes.cores()[1])
    results = measure(options)
    minutes, problems = results["minutes"], results["problems"]
    path = written(results, options)
    print(f"{minutes} minutes, {len(problems)} problems. Written to {path.relative_to(ROOT)}.")
    subprocess.run([sys.executable, str(ROOT / "bench/report.py"), str(path)], check=True)


main()
