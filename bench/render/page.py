"""docs/benchmarks.md, its charts, and the table between the markers of README.md."""

from collections.abc import Sequence
from pathlib import Path

from render import charts, tables
from render.data import Results
from render.verdicts import all_verdicts
from suite.servers import Server

BEGIN = "<!-- benchmark: written by make bench-report -->"
END = "<!-- end of benchmark -->"
ORIGINAL = (
    "The first table of the idea had FastAPI over REST at 3,184 calls a second, FastAPI over "
    "WebSocket at 11,356, gRPC at 9,849 and UCall in C at 231,000, on a machine of 64 cores. "
    "Machine, clients and versions are others here, and what FastAPI was asked was no JSON-RPC, so "
    "its rates cannot be set beside these. What can be compared is how many times faster than "
    "FastAPI and gRPC ucall was there, and is here on one core."
)


def machine_line(results: Results) -> str:
    machine = results.raw["machine"]
    virtual = "virtual machine" if machine["is_virtual"] else "machine"
    versions = machine["versions"]
    return (
        f"{machine['date']}, commit {machine['commit']}: {machine['cpus']}-core {virtual} "
        f"({machine['cpu']}, {machine['memory_gb']} GB, Linux {machine['kernel']}, "
        f"{machine['architecture']}), CPython {versions['CPython']}, Rust {versions['Rust']}; "
        f"server on core {machine['server_core']}, load on core {machine['load_core']}"
    )


def readme_section(results: Results, servers: Sequence[Server]) -> str:
    return "\n".join(
        [
            BEGIN,
            tables.headline(results, servers),
            "",
            "`sum(55, 21)` as JSON-RPC over HTTP with keep-alive (gRPC and WebSocket as they are), "
            f"one process on one core. {machine_line(results)}. The floor is the cheapest C "
            "program that could answer; above some 150,000 calls a second the load generator's own "
            "core is full, so compare CPU there. All figures, charts and versions: "
            "[docs/benchmarks.md](docs/benchmarks.md); `make bench` measures them again.",
            "",
            ORIGINAL,
            END,
        ]
    )


def with_section(readme: str, section: str) -> str:
    """The README with what is between its markers replaced."""
    before, found, rest = readme.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"README.md lacks the markers {BEGIN} and {END}")
    return before + section + after


def chart_files(results: Results, servers: Sequence[Server]) -> dict[str, str]:
    """By file name. Left out are charts without figures, and servers whose calls failed."""
    made = {
        "benchmarks-cpu.svg": chart(
            results,
            servers,
            ("c32", "cpu_us_per_call", "{:,.2f}", False),
            ("What a call costs the server", "CPU time a call, user and system, 32 clients"),
            "µs",
        ),
        "benchmarks-rate.svg": chart(
            results,
            servers,
            ("c32", "calls_per_second", "{:,.0f}", True),
            ("Calls a second, one core", "32 clients; the load's own core is full above 150,000"),
            "calls a second",
        ),
        "benchmarks-tail.svg": chart(
            results,
            servers,
            ("rate-20000", "p999_us", "{:,.0f}", False),
            ("Tail latency at 20,000 calls a second", "p99.9, from the time a call was due"),
            "µs",
        ),
    }
    return {name: text for name, text in made.items() if text}


Selection = tuple[str, str, str, bool]


def chart(
    results: Results,
    servers: Sequence[Server],
    selection: Selection,
    heading: tuple[str, str],
    unit: str,
) -> str:
    load, metric, form, more_is_better = selection
    found = []
    for server in tables.present(results, servers, load):
        spread = results.values(server.name, load, metric)
        is_sound = not results.errors(server.name, load)
        if spread and is_sound and server.protocol != "raw":
            text = form.format(spread.median)
            found.append(charts.Bar(server.label, server.family, spread.median, text))
    found.sort(key=lambda bar: bar.value, reverse=more_is_better)
    return charts.bars(*heading, unit, found) if found else ""


def benchmarks_page(results: Results, servers: Sequence[Server], charts_made: Sequence[str]) -> str:
    template = (Path(__file__).parent / "benchmarks.md").read_text()
    versions = results.raw["machine"]["versions"]
    problems = results.raw["problems"]
    parts = {
        "machine": machine_line(results),
        "minutes": f"{results.raw['minutes']:g}",
        "date": results.raw["machine"]["date"],
        "verdicts": tables.verdicts(all_verdicts(results, servers)),
        "to_the_floor": tables.to_the_floor(results, servers),
        "calls_1": tables.calls(results, servers, "c1"),
        "calls_32": tables.calls(results, servers, "c32"),
        "calls_256": tables.calls(results, servers, "c256"),
        "open_loop": tables.open_loop(results, servers),
        "pipelined": tables.rates(results, servers, {"depth-16": "16 deep"}),
        "batches": tables.batches(results, servers),
        "payloads": tables.payloads(results, servers),
        "reconnect": tables.calls(results, servers, "reconnect"),
        "idle": tables.idle(results, servers),
        "documents": tables.documents(results),
        "exact": tables.exact(results, servers),
        "tools": tables.tools(results, servers),
        "problems": "\n".join(f"- {text}" for text in problems) or "None.",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "charts": "\n\n".join(f"![]({name})" for name in charts_made),
        "original": ORIGINAL,
    }
    for name, text in parts.items():
        template = template.replace(f"{{{name}}}", text)
    return _without_empty_tables(template)


def _without_empty_tables(page: str) -> str:
    """Leaves out the sections of what was not measured, and names them at the end."""
    head, *sections = page.split("\n## ")
    empty = [section for section in sections if "|---" in section and not _has_figures(section)]
    kept = [section for section in sections if section not in empty]
    if empty:
        titles = ", ".join(section.partition("\n")[0] for section in empty)
        kept.append(f"Not measured in this run\n{titles}.\n")
    return "\n## ".join([head, *kept])


def _has_figures(section: str) -> bool:
    """Whether a row below a head of a table has a figure behind its name."""
    _, *rows = [line for line in section.splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")[1:]]
    return any(cell and cell != "-" and not set(cell) <= set("-:") for cell in cells)
