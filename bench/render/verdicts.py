"""The targets of ucall's performance, and whether a run meets them.

A target is met, or missed, if the whole confidence interval is on that side of it; else undecided.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.harness.figures import Spread, outcome
from bench.render.data import COST, Results, difference, nearest
from bench.suite.servers import ENGINES, Server

IDLE_KIB_MAX = 4.0
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Verdict:
    """A target, the figure measured, and the outcome in words."""

    claim: str
    asked: str
    found: str
    outcome: str


def evaluated(claim: str, found: Spread | None, form: str, *, most: float = 0, least: float = 0):
    """The verdict on a figure: `most` is the target of a cost, `least` that of a rate."""
    asked = f"at most {form.format(most)}" if most else f"at least {form.format(least)}"
    if not found:
        return Verdict(claim, asked, "-", NOT_MEASURED)
    return Verdict(claim, asked, found.text(form), outcome(found, most=most, least=least))


def all_verdicts(results: Results, servers: Sequence[Server]) -> list[Verdict]:
    return [
        *same_verdicts(results),
        *python_verdicts(results, servers),
        *c_verdicts(results, servers),
        *idle_verdicts(results),
        *websocket_verdicts(results, servers),
    ]


def same_verdicts(results: Results) -> Iterator[Verdict]:
    """Whether equal servers come out as equal."""
    found = results.to_floor("twin-ours-c-posix", "c32", COST)
    claim = "The same program on both sides: cost a call, ratio"
    asked = "0.97 to 1.03"
    if not found:
        yield Verdict(claim, asked, "-", NOT_MEASURED)
        return
    sides = {outcome(found, most=1.03), outcome(found, least=0.97)}
    worst = next(it for it in ("**missed**", "undecided", "met") if it in sides)
    yield Verdict(claim, asked, found.text("{:.3f}"), worst)


def python_verdicts(results: Results, servers: Sequence[Server]) -> Iterator[Verdict]:
    peers = [s.name for s in servers if s.family == "python"]
    labels = {server.name: server.label for server in servers}
    for engine, label in ENGINES.items():
        name = f"ours-python-{engine}"
        cpu = results.to_floor(name, "c32", COST)
        claim = f"Python, {label}, 32 clients: CPU a call, of the floor's"
        yield evaluated(claim, cpu, "{:.2f}", most=1.2)
        p50 = results.to_floor(name, "c1", "p50_us", difference)
        claim = f"Python, {label}, 1 client: p50 above the floor's, µs"
        yield evaluated(claim, p50, "{:+.1f}", most=4.0)
        best_peer = nearest(results, name, peers, "c32")
        for peer, times in ((best_peer, 2.5), ("fastapi-def", 25.0)):
            # The nearest server of a run without the fast ones says nothing.
            if peer and (peer, times) != ("fastapi-def", 2.5):
                found = results.compared(name, peer, "c32", "calls_per_second")
                claim = f"Python, {label}, 32 clients: calls a second, times {labels[peer]}'s"
                yield evaluated(claim, found, "{:.1f}", least=times)
        yield tail_verdict(results, name, f"Python, {label}")
        yield tail_verdict(results, f"{name}-tls", f"Python, {label}, TLS")
        batch = results.values(name, "batch-100", "calls_per_second")
        claim = f"Python, {label}: batches of 100, calls a second"
        yield evaluated(claim, batch, "{:,.0f}", least=3e6)
        deep = results.values(f"{name}-raw", "depth-16", "calls_per_second")
        claim = f"Python, {label}: raw TCP, 16 deep, calls a second"
        yield evaluated(claim, deep, "{:,.0f}", least=1.5e6)


def c_verdicts(results: Results, servers: Sequence[Server]) -> Iterator[Verdict]:
    natives = [server for server in servers if server.family == "native"]
    for engine, label in ENGINES.items():
        name = f"ours-c-{engine}"
        cpu = results.to_floor(name, "c32", COST)
        yield evaluated(
            f"C, {label}, 32 clients: CPU a call, of the floor's", cpu, "{:.2f}", most=1.1
        )
        yield tail_verdict(results, name, f"C, {label}")
        yield tail_verdict(results, f"{name}-tls", f"C, {label}, TLS")
        for native in natives:
            found = results.compared(name, native.name, "c32", COST)
            claim = f"C, {label}, 32 clients: CPU a call, of {native.label}'s"
            yield evaluated(claim, found, "{:.2f}", most=1.0)


def tail_verdict(results: Results, name: str, label: str) -> Verdict:
    found = results.to_floor(name, "share-50", "p999_windows_us")
    return evaluated(
        f"{label}, half of its capacity: p99.9 of 50 ms, of the floor's", found, "{:.2f}", most=1.2
    )


def idle_verdicts(results: Results) -> Iterator[Verdict]:
    for row in results.raw["idle"]:
        _, language, engine = row["server"].split("-")
        claim = (
            f"{language.title()}, {ENGINES[engine]}: RSS of each of 10,000 idle connections, KiB"
        )
        each = row["kib_each"]
        yield evaluated(claim, Spread(each, each, each), "{:.2f}", most=IDLE_KIB_MAX)


def websocket_verdicts(results: Results, servers: Sequence[Server]) -> Iterator[Verdict]:
    peers = [server for server in servers if server.name.endswith("-echo")]
    for engine, engine_label in ENGINES.items():
        for language, family in (("c", "native"), ("python", "python")):
            label = f"{language.title()}, {engine_label}, WebSocket, 32 clients"
            name = f"ours-{language}-{engine}"
            found = _websocket_cpu(results, f"{name}-websocket", name, "sum")
            yield evaluated(f"{label}: CPU a call, of HTTP's", found, "{:.2f}", most=1.0)
            for peer in (peer for peer in peers if peer.family == family):
                most = 1.05 if peer.name.startswith("uwebsockets") else 1.0
                found = _websocket_cpu(results, f"echo-{language}-{engine}", peer.name, "echo")
                claim = f"{label}: CPU an echo, of {peer.label.removesuffix(', echo')}'s"
                yield evaluated(claim, found, "{:.2f}", most=most)


def _websocket_cpu(results: Results, own: str, other: str, task: str) -> Spread | None:
    return results.compared(own, other, f"websocket-{task}-32", COST)
