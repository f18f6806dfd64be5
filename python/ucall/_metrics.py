"""The metrics of a server, as Prometheus and OpenMetrics text: `GET /metrics`.

All names of metrics and labels are in this file. Those of calls are the names of OpenTelemetry's
semantic conventions for RPC (1.45), in the form that Prometheus gives them: dots are underscores,
and the unit is the end of the name.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ucall._response import HttpResponse, parts

if TYPE_CHECKING:
    from ucall._core import HttpRequest
    from ucall.server import Server

__all__ = ["PATH", "add_route"]

PATH = "/metrics"

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

METHOD = "rpc_method"
SYSTEM = ("rpc_system_name", "jsonrpc")
#: Labels of failed calls: the conventions have both, and JSON-RPC's code is both.
ERROR_LABELS = ("error_type", "rpc_response_status_code")

Labels = tuple[tuple[str, str], ...]


@dataclass
class Metric:
    """A metric with its samples: the end of a name, labels and a value each."""

    name: str
    kind: str
    unit: str
    help: str
    samples: list[tuple[str, Labels, float]] = field(default_factory=list)

    def add(self, value: float, labels: Labels = ()) -> None:
        """Adds the sample of a counter or a gauge."""
        self.samples.append(("_total" if self.kind == "counter" else "", labels, value))

    def add_histogram(
        self, labels: Labels, bounds: list[float], counts: list[int], sum_: float
    ) -> None:
        """Adds the samples of a histogram; the last count is that of values above all bounds."""
        total = 0
        for bound, count in zip([*map(_number, bounds), "+Inf"], counts, strict=True):
            total += count
            self.samples.append(("_bucket", (*labels, ("le", bound)), total))
        self.samples += [("_sum", labels, sum_), ("_count", labels, total)]


def metrics_of(values: dict[str, Any], scheme: str) -> list[Metric]:
    """The metrics of what the core counts."""
    counter, gauge, histogram = "counter", "gauge", "histogram"
    duration = Metric(
        "rpc_server_call_duration_seconds",
        histogram,
        "seconds",
        "Time from the begin of a call, or the receipt of a deferred one, to its reply.",
    )
    batch = Metric(
        "ucall_batch_calls", histogram, "", "Calls that ran together in one batch of server.batch."
    )
    running = Metric(
        "ucall_running_calls", gauge, "", "Calls in tasks, threads, processes, batches and streams."
    )
    waiting = Metric("ucall_waiting_calls", gauge, "", "Running calls that have to wait.")
    connections = Metric("ucall_connections", gauge, "", "Open connections.")
    _add_series(values, duration, batch)
    _add_connections(values, scheme, connections)
    running.add(values["running"])
    waiting.add(values["waiting_for_thread"], (("queue", "thread"),))
    waiting.add(values["waiting_for_batch"], (("queue", "batch"),))
    found = [duration, batch, running, waiting, connections]
    for name, kind, unit, text, value in (
        ("ucall_accepted_connections", counter, "", "Connections accepted.", values["accepted"]),
        ("ucall_received_bytes", counter, "bytes", "Bytes received.", values["bytes_received"]),
        ("ucall_sent_bytes", counter, "bytes", "Bytes sent.", values["bytes_sent"]),
        (
            "ucall_turns",
            counter,
            "",
            "Turns of workers: waits for events, and the work after each.",
            values["turns"],
        ),
        (
            "ucall_system_calls",
            counter,
            "",
            "System calls of workers for their sockets.",
            values["system_calls"],
        ),
        (
            "ucall_subscriptions",
            gauge,
            "",
            "Subscriptions of connections to topics.",
            values["subscriptions"],
        ),
        (
            "ucall_dropped_messages",
            counter,
            "",
            "Messages of the server that were dropped for slow clients or busy workers.",
            values["dropped_messages"],
        ),
        (
            "ucall_dropped_log_lines",
            counter,
            "",
            "Lines of the access log that were dropped.",
            values["dropped_log_lines"],
        ),
        *_datagram_metrics(values["datagrams"]),
        (
            "ucall_gil_wait_seconds",
            counter,
            "seconds",
            "Time that workers with events have waited for the interpreter's lock.",
            values["lock_wait_ns"] / 1e9,
        ),
        (
            "ucall_worker_starts",
            counter,
            "",
            "Workers that have started.",
            values["worker_starts"],
        ),
        (
            "process_start_time_seconds",
            gauge,
            "seconds",
            "Start of the server, or of its supervisor, in Unix time.",
            values["started_ms"] / 1e3,
        ),
    ):
        found.append(Metric(name, kind, unit, text))
        found[-1].add(value)
    return found + _upstream_metrics(values["upstreams"])


def _datagram_metrics(counts: dict[str, int]) -> list[tuple[str, str, str, str, int]]:
    """The metrics of UDP, if the server has received any datagram."""
    texts = {
        "received": "Datagrams received.",
        "sent": "Replies in datagrams.",
        "invalid": "Datagrams without a valid request, which are not answered.",
        "repeated": "Datagrams that were sent again.",
        "refused": "Datagrams past a limit, or whose reply needs a cookie.",
        "dropped": "Datagrams that the kernel has dropped.",
    }
    if not any(counts.values()):
        return []
    return [
        (f"ucall_{name}_datagrams", "counter", "", text, counts[name])
        for name, text in texts.items()
    ]


def _upstream_metrics(
    upstreams: list[tuple[str, int, int, list[int], list[int]]],
) -> list[Metric]:
    """The metrics of relays, if the server has any."""
    calls = Metric("ucall_upstream_calls", "gauge", "", "Relayed calls that wait for an upstream.")
    failures = Metric("ucall_upstream_failures", "counter", "", "Failures of an upstream.")
    circuits = Metric(
        "ucall_upstream_circuits",
        "gauge",
        "",
        "Circuit breakers by state: each worker has one for each relay and upstream.",
    )
    health = Metric(
        "ucall_upstream_health",
        "gauge",
        "",
        "Health checks by their verdict: each worker has one for each relay and upstream.",
    )
    is_checked = False
    for name, outstanding, failed, states, verdicts in upstreams:
        label = ("upstream", name)
        calls.add(outstanding, (label,))
        failures.add(failed, (label,))
        for state, count in zip(("closed", "open", "probing"), states, strict=True):
            circuits.add(count, (label, ("state", state)))
        if any(verdicts):
            is_checked = True
            for state, count in zip(("healthy", "unhealthy"), verdicts, strict=True):
                health.add(count, (label, ("state", state)))
    found = [calls, failures, circuits] if upstreams else []
    return [*found, health] if is_checked else found


def _add_series(values: dict[str, Any], duration: Metric, batch: Metric) -> None:
    durations = [bound / 1e9 for bound in values["duration_bounds_ns"]]
    for kind, method, code, total, counts in values["series"]:
        if method == "_OTHER" and not any(counts):
            continue
        if kind == "batch":
            batch.add_histogram(((METHOD, method),), values["size_bounds"], counts, total)
        else:
            errors = () if code is None else tuple((name, code) for name in ERROR_LABELS)
            labels = (SYSTEM, (METHOD, method), *errors)
            duration.add_histogram(labels, durations, counts, total / 1e9)


def _add_connections(values: dict[str, Any], scheme: str, metric: Metric) -> None:
    tls = "true" if scheme == "https" else "false"
    counts = {name: values[f"{name}_connections"] for name in ("http", "websocket", "raw")}
    # Counted at another time than all connections, so there may be more of them.
    counts["unknown"] = max(values["connections"] - sum(counts.values()), 0)
    for protocol, count in counts.items():
        metric.add(count, (("protocol", protocol), ("tls", tls)))


def text_of(metrics: list[Metric], *, open_metrics: bool) -> str:
    """Prometheus text, or OpenMetrics text."""
    lines = []
    for metric in metrics:
        suffix = "_total" if metric.kind == "counter" and not open_metrics else ""
        lines.append(f"# HELP {metric.name}{suffix} {metric.help}")
        lines.append(f"# TYPE {metric.name}{suffix} {metric.kind}")
        if metric.unit and open_metrics:
            lines.append(f"# UNIT {metric.name} {metric.unit}")
        for end, labels, value in metric.samples:
            lines.append(f"{metric.name}{end}{_label_set(labels)} {_number(value)}")
    if open_metrics:
        lines.append("# EOF")
    return "\n".join(lines) + "\n"


def _label_set(labels: Labels) -> str:
    listed = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
    return f"{{{listed}}}" if listed else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def wants_open_metrics(accept: str) -> bool:
    """Whether an ``Accept`` header prefers OpenMetrics to Prometheus text."""
    weights: dict[str, float] = {}
    for media_range in accept.split(","):
        media_type, *parameters = (part.strip() for part in media_range.split(";"))
        weight = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        weights[media_type.lower()] = max(weight, weights.get(media_type.lower(), 0.0))
    others = [weights.get(name, 0.0) for name in ("text/plain", "text/*", "*/*")]
    return weights.get("application/openmetrics-text", 0.0) > max(others)


def add_route(server: Server) -> None:
    """Has a server answer requests for its metrics."""
    # The core refers to `respond`, so this may not refer to the core: the collector would not see
    # the cycle. The server exists while its thread runs `respond`.
    counted = weakref.proxy(server)

    def respond(request: HttpRequest) -> Iterator[bytes]:
        open_metrics = wants_open_metrics(request.headers.get("accept", ""))
        metrics = metrics_of(counted._core.metrics(), counted._core.scheme)
        text = text_of(metrics, open_metrics=open_metrics)
        content_type = OPEN_METRICS if open_metrics else TEXT
        headers = {"Cache-Control": "no-store", "Vary": "Accept"}
        return parts(HttpResponse(text, 200, content_type, headers), request)

    server._core.insert_route(
        PATH,
        ["GET"],
        respond,
        str,
        mode="generator",
        is_public=False,
        wants_peer=False,
        is_builtin=True,
    )
