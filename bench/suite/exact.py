"""User instructions and system calls of a call, for the floors and ucall."""

from collections.abc import Sequence
from dataclasses import asdict

from harness import deterministic
from harness.rows import ROWS, Contender, contenders, sum_server
from suite import servers
from suite.rounds import Progress

ESTIMATE_SECONDS = 8.0


def chosen() -> list[Contender]:
    """The servers by the names that other sections use."""
    found = {}
    for language, command in commands().items():
        for contender in contenders(tuple(servers.ENGINES), command):
            name = contender.name.replace("ours-", f"ours-{language}-")
            found[name] = Contender(name, contender.label, contender.baselines, contender.command)
    return list(found.values())


def commands() -> dict[str, Sequence[str]]:
    return {"python": sum_server(), "c": [str(servers.OUTPUT / "c-sum")]}


def estimate() -> float:
    return ESTIMATE_SECONDS * len(chosen())


def measure_all(progress: Progress) -> list[dict]:
    found = []
    for contender in chosen():
        progress.print_line(f"instructions and system calls: {contender.name}")
        figures = deterministic.figures(contender, ROWS["single"])
        found.append({"server": contender.name, **asdict(figures)})
        progress.advance(ESTIMATE_SECONDS)
    return found
