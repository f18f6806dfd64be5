"""The samples of a run, by server, load and pair, and comparisons between them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness.report import Spread, spread

Sample = dict
Compare = Callable[[float, float], float]


def ratio(own: float, other: float) -> float:
    return own / other


def difference(own: float, other: float) -> float:
    return own - other


@dataclass
class Results:
    """A run's results. `pairs` maps section, load and pair to the samples of each server."""

    raw: dict
    pairs: dict[tuple[str, str, str], dict[str, Sample]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for sample in self.raw["samples"]:
            key = (sample["section"], sample["load"], sample["pair"])
            self.pairs.setdefault(key, {})[sample["server"]] = sample

    def rounds(self, section: str, load: str, *servers: str) -> list[dict[str, Sample]]:
        """The pairs in which all these servers were measured."""
        return [
            found
            for (in_section, under, _), found in self.pairs.items()
            if (in_section, under) == (section, load) and all(name in found for name in servers)
        ]

    def sections_of(self, load: str) -> list[str]:
        return list(dict.fromkeys(section for section, under, _ in self.pairs if under == load))

    def section_for(self, server: str, load: str) -> str:
        """The section with most samples of the server under this load."""
        sections = self.sections_of(load)
        return max(sections, key=lambda name: len(self.rounds(name, load, server)), default="")

    def values(self, server: str, load: str, metric: str) -> Spread | None:
        section = self.section_for(server, load)
        found = [pair[server][metric] for pair in self.rounds(section, load, server)]
        return spread([value for value in found if value is not None])

    def compared(
        self, server: str, other: str, load: str, metric: str, compare: Compare = ratio
    ) -> Spread | None:
        """Compares two servers within pairs, so drift of the machine affects both."""
        sections = self.sections_of(load)
        rounds = {name: self.rounds(name, load, server, other) for name in sections}
        most = max(rounds.values(), key=len, default=[])
        both = [(pair[server][metric], pair[other][metric]) for pair in most]
        return spread([compare(a, b) for a, b in both if a is not None and b])

    def to_floor(
        self, server: str, load: str, metric: str, compare: Compare = ratio
    ) -> Spread | None:
        """Compares a server with the floor on the same engine, other projects' with epoll's."""
        for floor in floors_of(server):
            found = self.compared(server, floor, load, metric, compare)
            if found and floor != server:
                return found
        return None

    def errors(self, server: str, load: str) -> int:
        section = self.section_for(server, load)
        return sum(pair[server]["errors"] for pair in self.rounds(section, load, server))

    def has(self, server: str, load: str) -> bool:
        return any(server in pair for key, pair in self.pairs.items() if key[1] == load)


def floors_of(server: str) -> tuple[str, ...]:
    suffix = "-raw" if server.endswith("-raw") else ""
    if server.startswith("payload"):
        return ("floor-echo",)
    if server.startswith("ours-") and "uring" in server:
        return (f"floor-uring{suffix}", f"floor-epoll{suffix}")
    return (f"floor-epoll{suffix}",)


def load_results(path: Path) -> Results:
    return Results(json.loads(path.read_text()))


def nearest(results: Results, own: str, names: Iterable[str], load: str) -> str | None:
    """The server among `names` with the rate nearest to that of `own`, within pairs."""
    found = {name: results.compared(own, name, load, "calls_per_second") for name in names}
    medians = {name: each.median for name, each in found.items() if each}
    return min(medians, key=medians.__getitem__, default=None)
