"""The samples of a run, by server, load and pair, and comparisons between them."""

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness.figures import Spread, interval
from bench.suite import calibration
from bench.suite.servers import floors_of

Sample = dict
#: The metric of costs.
COST = "cpu_us_per_call"
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

    def sections_of(self, load: str, *servers: str) -> list[str]:
        """The sections that measured all these servers under this load; the headline alone, if it
        did: a run of the peers measures ucall and the floor again, and does not change it."""
        found = list(dict.fromkeys(section for section, under, _ in self.pairs if under == load))
        found = [section for section in found if self.rounds(section, load, *servers)]
        return ["headline"] if "headline" in found else found

    def section_for(self, server: str, load: str) -> str:
        """The section with most samples of the server under this load."""
        sections = self.sections_of(load, server)
        return max(sections, key=lambda name: len(self.rounds(name, load, server)), default="")

    def values(self, server: str, load: str, metric: str) -> Spread | None:
        """Of the samples in the machine's usual mode, if there are any."""
        section = self.section_for(server, load)
        found = [pair[server] for pair in self.rounds(section, load, server)]
        usual = [sample for sample in found if self.is_in_usual_mode(sample)]
        return known([sample.get(metric) for sample in usual or found])

    @functools.cached_property
    def calibrations(self) -> list[float]:
        """What a call of the floor cost around each sample, the cheapest first."""
        return sorted(cost for sample in self.raw["samples"] for cost in calibrations_of(sample))

    @functools.cached_property
    def usual_mode(self) -> tuple[float, float]:
        """The cheapest and the dearest calibration of the mode in which most samples were taken."""
        costs = self.calibrations or [1.0]
        modes = [[costs[0]]]
        for cost in costs[1:]:
            if calibration.is_one_mode([modes[-1][0], cost]):
                modes[-1].append(cost)
            else:
                modes.append([cost])
        usual = max(modes, key=len)
        return usual[0], usual[-1]

    def is_in_usual_mode(self, sample: Sample) -> bool:
        low, high = self.usual_mode
        return all(low <= cost <= high for cost in calibrations_of(sample))

    def compared(
        self, server: str, other: str, load: str, metric: str, compare: Compare = ratio
    ) -> Spread | None:
        """Compares two servers within the pairs that were taken in one mode of the machine."""
        both = [
            (pair[server].get(metric), pair[other].get(metric))
            for pair in self.accepted(server, other, load)
        ]
        return interval([compare(a, b) for a, b in both if a is not None and b])

    def accepted(self, server: str, other: str, load: str) -> list[dict[str, Sample]]:
        """The pairs of both in one mode, of the section that has most of them."""
        found = [
            [
                pair
                for pair in self.rounds(section, load, server, other)
                if in_one_mode(pair[server], pair[other])
            ]
            for section in self.sections_of(load, server, other)
        ]
        return max(found, key=len, default=[])

    def to_floor(
        self, server: str, load: str, metric: str, compare: Compare = ratio
    ) -> Spread | None:
        """Compares a server with the floor on the same engine, other projects' with epoll's."""
        floor = self.nearest_floor(server, load)
        return self.compared(server, floor, load, metric, compare) if floor != server else None

    def nearest_floor(self, server: str, load: str) -> str:
        """The floor to compare with: the first of which there are pairs."""
        names = floors_of(server)
        return next((name for name in names if self.accepted(server, name, load)), names[-1])

    def beside_floor(
        self, server: str, load: str, metric: str
    ) -> tuple[Spread | None, Spread | None]:
        """The server's own figure and its floor's, in their pairs."""
        floor = self.nearest_floor(server, load)
        pairs = self.accepted(server, floor, load)
        own, other = ([pair[name].get(metric) for pair in pairs] for name in (server, floor))
        return known(own), known(other)

    def errors(self, server: str, load: str) -> int:
        section = self.section_for(server, load)
        return sum(pair[server]["errors"] for pair in self.rounds(section, load, server))

    def is_broken(self, server: str, load: str) -> bool:
        """Whether there is an error for every hundred calls, so that its rate says nothing. All
        such loads take a second."""
        pairs = self.rounds(self.section_for(server, load), load, server)
        return 100 * self.errors(server, load) > sum(it[server]["calls_per_second"] for it in pairs)

    def has(self, server: str, load: str) -> bool:
        return any(server in pair for key, pair in self.pairs.items() if key[1] == load)


def known(values: Iterable[float | None]) -> Spread | None:
    return interval([value for value in values if value is not None])


def calibrations_of(sample: Sample) -> list[float]:
    """Before and after it."""
    return sample.get("calibration_us", [])


def in_one_mode(sample: Sample, other: Sample) -> bool:
    return calibration.is_one_mode([*calibrations_of(sample), *calibrations_of(other)])


def load_results(path: Path, peers: Path | None = None) -> Results:
    """A run's results, with those of a run of the other peers."""
    found = json.loads(path.read_text()) | {"file": path.stem}
    if peers:
        others = json.loads(peers.read_text())
        for name in ("samples", "problems", "idle", "exact"):
            found[name] = found[name] + others[name]
    return Results(found)


def nearest(results: Results, own: str, names: Iterable[str], load: str) -> str | None:
    """The server among `names` with the rate nearest to that of `own`, within pairs."""
    found = {name: results.compared(own, name, load, "calls_per_second") for name in names}
    medians = {name: each.median for name, each in found.items() if each}
    return min(medians, key=medians.__getitem__, default=None)
