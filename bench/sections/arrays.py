"""Compares calls with arrays and bytes with `sum`, with C programs and with other servers.

Every form of a call goes to one server of ucall, whose functions return what they get; all servers
run at once, and are called in turns. Parts:

- `small`: 64 floats at 32 connections: CPU time of a call, of `sum`'s
- `medium`: 150 kB at 32 connections: CPU time, of that of a C program that receives and sends as
  many bytes
- `large`: 1 and 16 MiB on one connection: CPU time and duration, of the same C program's
- `shared`: 16 MiB by ucall's client over a Unix socket, with and without shared memory: duration,
  of the C program's over TCP
- `models`: ucall's client with images, rows of a table and pictures of 4K: duration and CPU time

With `--before PYTHON` an earlier build of ucall, whose interpreter that is, takes part where it
can.
The other servers are those of bench/peers/python/array_servers.py.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench import OUTPUT, ROOT
from bench.harness import arrays, figures, processes
from bench.harness.figures import Column
from bench.suite import machine
from bench.suite.array_contenders import (
    ALL,
    ENGINES,
    FLOOR,
    LABELS,
    LIGHT,
    SUM,
    Contender,
    Field,
    Load,
    field_of,
    sums,
)
from bench.suite.servers import served

PAGE = ROOT / "docs/benchmarks-arrays.md"
PARTS = ("small", "medium", "large", "shared", "models")
ROUNDS = 9
OPTIONS = {
    "--seconds": {"type": float, "default": 1.0, "help": "of each load; a fifth on one connection"},
    "--before": {"type": Path, "help": "a Python with an earlier build of ucall"},
    "--without-peers": {"action": "store_true"},
}
CONNECTIONS = 32
MEDIUM_BYTES, LARGE_BYTES = 150_000, (1 << 20, 16 << 20)
#: On one connection there are more rounds of shorter turns: the kernel's time for the same bytes
#: varies by a factor of 3, for seconds at a time.
SHORTER = 5
MODELS = ("images", "lookup", "resize")
#: Programs of ucall's client.
CLIENT = ROOT / "bench/pairs/arrays.py"

#: What the rows must reach: the part, the row, the field, the base, and the most.
GOALS = [
    ("small", "array, base64", "cpu_us", SUM, 1.6),
    ("small", "array, parts", "cpu_us", SUM, 1.4),
    ("small", "list[float]", "cpu_us", SUM, 1.6),
    ("medium", "posix, bytes, parts", "cpu_us", FLOOR, 1.3),
    ("medium", "posix, array, parts", "cpu_us", FLOOR, 1.3),
    *(
        (f"large {size >> 20} MiB", f"{engine}, array, parts", "time_us", FLOOR, 1.15)
        for size in LARGE_BYTES
        for engine in ENGINES
    ),
    ("shared", "shared memory", "time_us", FLOOR, 0.3),
    ("shared", "shared memory, trusted", "time_us", FLOOR, 0.3),
]


def small(field: Field, options: argparse.Namespace) -> dict[str, Contender]:
    values = arrays.floats(64)
    content = arrays.npy(values)
    messages = {
        SUM: sums(),
        "array, base64": arrays.in_base64("echo", content),
        "array, parts": arrays.in_parts("echo", content),
        "list[float]": arrays.in_list("floats", values),
        "array, Open Inference, binary": arrays.in_inference(values),
    }
    found = ours(field, messages, "posix", CONNECTIONS)
    found |= before(field, "array, base64", messages["array, base64"], CONNECTIONS)
    return found | peers(field, options, values, CONNECTIONS)


def medium(field: Field, options: argparse.Namespace) -> dict[str, Contender]:
    return sized(field, options, MEDIUM_BYTES, CONNECTIONS)


def large(size: int, field: Field, options: argparse.Namespace) -> dict[str, Contender]:
    return sized(field, options, size, 1)


def sized(
    field: Field, options: argparse.Namespace, size: int, connections: int
) -> dict[str, Contender]:
    """Bytes and arrays, and the floor with the same array."""
    values = arrays.floats(size // 4)
    content = arrays.npy(values)
    in_base64, in_parts = (it("echo", content) for it in (arrays.in_base64, arrays.in_parts))
    messages = {
        "posix, array, base64": in_base64,
        "posix, bytes, parts": arrays.in_parts("bytes", values.tobytes()),
        "posix, array, parts": in_parts,
        "posix, array, Open Inference, binary": arrays.in_inference(values),
    }
    found = {FLOOR: field.called(field.floor(), in_parts, connections)}
    found |= ours(field, messages, "posix", connections)
    found |= ours(field, {"uring, array, parts": in_parts}, "uring", connections)
    found |= before(field, "posix, array, base64", in_base64, connections)
    return found | peers(field, options, values, connections)


def before(
    field: Field, name: str, message: arrays.Message, connections: int
) -> dict[str, Contender]:
    """The same call of an earlier build, if there is one."""
    if not field.before:
        return {}
    return ours(field, {f"before: {name}": message}, "posix", connections, is_before=True)


def ours(
    field: Field,
    messages: dict[str, arrays.Message],
    engine: str,
    connections: int,
    is_before: bool = False,
) -> dict[str, Contender]:
    """Calls of ucall's server. A form that it does not take is named and left out."""
    found = {}
    for name, message in messages.items():
        try:
            server = field.ours(engine, is_before)
            found[name] = field.called(server, message, connections)
        except (AssertionError, OSError) as error:
            figures.log(f"without {name}: {error}")
    return found


def peers(
    field: Field, options: argparse.Namespace, values: Any, connections: int
) -> dict[str, Contender]:
    if options.without_peers:
        return {}
    # With long arrays those of the Open Inference Protocol take seconds for a call.
    return field.peers(values, connections, LIGHT if connections == 1 else ALL)


def by_client(python: str | Path, uri: str, task: str, more: list[str], seconds: float) -> Load:
    """By ucall's client in a process of its own."""
    command = [python, CLIENT, uri, task, seconds, *more]
    output = processes.run_load(command, seconds + 30)
    return Load(*json.loads(output.splitlines()[-1]))


def shared(field: Field, options: argparse.Namespace) -> dict[str, Contender]:
    """Through a Unix socket, and through shared memory with and without copies."""
    values = arrays.floats(LARGE_BYTES[-1] // 4)
    message = arrays.in_parts("echo", arrays.npy(values))
    found = {FLOOR: field.called(field.floor(), message, 1)}
    by_memory, trusting = ["shared_memory"], ["shared_memory", "trusted"]
    for name, task, flags, more in (
        ("a Unix socket", "echo", [], []),
        ("shared memory", "echo", [], by_memory),
        ("shared memory, client.empty", "filled", [], by_memory),
        ("shared memory, trusted", "echo", ["--trusted"], trusting),
        ("shared memory, trusted, client.empty", "filled", ["--trusted"], trusting),
    ):
        path = OUTPUT / f"arrays{'-trusted' if flags else ''}.socket"
        command = served("arrays", "--engine", "posix", "--uds", str(path), *flags)
        start = partial(processes.serving, command, path.stem)
        server = field.started(path.stem, start)
        load = partial(by_client, sys.executable, f"unix://{path}", task, more)
        found[name] = Contender(server, load)
    return found


def models(field: Field, options: argparse.Namespace) -> dict[str, Contender]:
    builds = {"now": (sys.executable, field.ours("posix"))}
    if field.before:
        builds = {"before": (field.before, field.ours("posix", True)), **builds}
    return {
        f"{task}, {name}": Contender(
            server, partial(by_client, python, f"http://127.0.0.1:{server.port}", task, [])
        )
        for task in MODELS
        for name, (python, server) in builds.items()
    }


def measured(options: argparse.Namespace) -> Iterator[tuple[str, Any, float, int]]:
    """Each table: its name, its contenders, the seconds of a turn, and the rounds."""
    short, many = options.seconds / SHORTER, options.rounds * SHORTER
    tables = {
        "small": [("small", small, options.seconds, options.rounds)],
        "medium": [("medium", medium, options.seconds, options.rounds)],
        "large": [(f"large {it >> 20} MiB", partial(large, it), short, many) for it in LARGE_BYTES],
        "shared": [("shared", shared, options.seconds, options.rounds)],
        "models": [("models", models, options.seconds, options.rounds)],
    }
    for part in options.only:
        yield from tables[part]


def run(options: argparse.Namespace) -> dict[str, Any]:
    processes.pin_to(processes.cores()[1])
    found: dict[str, figures.Runs] = {}
    for name, contenders, seconds, rounds in measured(options):
        # The servers of one table end before those of the next begin.
        with field_of(options.before) as field:
            these = warmed(contenders(field, options), min(seconds, 0.2))
            turns = {label: partial(sample, label, it, seconds) for label, it in these.items()}
            found[name] = figures.in_turns(turns, rounds, name)
            print(table(name, found[name]), flush=True)
    how = {"rounds": options.rounds, "seconds": options.seconds}
    results = {"machine": machine.describe(), "options": how, "samples": found}
    print(verdicts(found))
    return results


def sample(label: str, contender: Contender, seconds: float) -> figures.Sample | None:
    """A sample, or none if the load failed, so that a run of many minutes goes on."""
    try:
        return contender.sample(seconds)
    except processes.LoadError as error:
        figures.log(f"a round without {label}: {error}")
        return None


def warmed(contenders: dict[str, Contender], seconds: float) -> dict[str, Contender]:
    """Those that could be called. The others are named."""
    found = {}
    for label, each in contenders.items():
        try:
            each.load(seconds)
            found[label] = each
        except processes.LoadError as error:
            figures.log(f"without {label}: {error}")
    return found


def base_of(name: str) -> str:
    return SUM if name == "small" else FLOOR


def table(name: str, runs: figures.Runs) -> str:
    """The table of a part."""
    columns = [Column("CPU µs/call", "cpu_us", "{:,.1f}")]
    if name == "models":
        columns.append(Column("ms/call", "time_ms", "{:,.1f}"))
        runs = {label: [in_ms(it) for it in samples] for label, samples in runs.items()}
        return figures.table_of(runs, columns, "models")
    columns.append(Column(f"of {base_of(name).partition(':')[0]}'s", "cpu_us", base=base_of(name)))
    if name != "small" and name != "medium":
        columns.append(Column("µs/call", "time_us", "{:,.0f}"))
        columns.append(Column("of the floor's", "time_us", base=FLOOR))
    return figures.table_of(runs, columns, name)


def in_ms(sample: figures.Sample | None) -> figures.Sample | None:
    return sample and {**sample, "time_ms": sample["time_us"] / 1e3}


def verdicts(found: dict[str, figures.Runs]) -> str:
    """Each goal, and whether the run met it."""
    rows = []
    for part, label, field, base, most in GOALS:
        ratio = figures.interval(figures.ratios(found.get(part, {}), label, base, field))
        if ratio:
            what = "CPU" if field == "cpu_us" else "time"
            goal = f"at most {most:.2f} of {base.partition(':')[0]}'s {what}"
            cells = [f"{part}: {label}", ratio.text("{:.2f}"), goal]
            rows.append([*cells, figures.outcome(ratio, most=most)])
    return figures.table(["goal", "median (95% interval)", "", ""], rows)


#: The rows of the page: what they are called in the tables of `sum` and of a size.
ROWS = {
    SUM: (SUM, ""),
    "array, parts": ("array, parts", "posix, array, parts"),
    "array, base64": ("array, base64", "posix, array, base64"),
    "before: array, base64": ("before: array, base64", "before: posix, array, base64"),
    "bytes, parts": ("", "posix, bytes, parts"),
    "array, Open Inference": (
        "array, Open Inference, binary",
        "posix, array, Open Inference, binary",
    ),
    "`list[float]`": ("list[float]", ""),
    FLOOR: ("", FLOOR),
    **{label: (label, label) for label in LABELS.values()},
}


def by_size(found: dict[str, figures.Runs]) -> str:
    """CPU time of a call by the size of its array."""
    sizes = {"64 floats": "small", "150 kB": "medium"}
    sizes |= {f"{it >> 20} MiB": f"large {it >> 20} MiB" for it in LARGE_BYTES}
    rows = []
    for row, labels in ROWS.items():
        column = Column("", "cpu_us", "{:,.0f}")
        names = [labels[part != "small"] for part in sizes.values()]
        cells = [
            column.cell(found.get(part, {}), name)
            for part, name in zip(sizes.values(), names, strict=True)
        ]
        if any(cells):
            rows.append([row, *cells])
    return figures.table(["CPU time of the server, µs a call", *sizes], rows)


def report(results: dict[str, Any]) -> str:
    found, how = results["samples"], results["options"]
    text = (
        "64 floats and 150 kB at 32 connections, more at one, over HTTP on posix. `before` is an "
        "earlier build, without parts.\n"
        f"{machine.text(results['machine'])}, {how['rounds']} rounds."
    )
    others = [table(name, found[name]) for name in ("shared", "models") if name in found]
    return "\n\n".join([text, by_size(found), *others])
