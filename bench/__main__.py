"""Runs a section of the benchmark: `python -m bench SECTION [options]`.

A section is a module of `bench.sections` with `run(options)`. It may have `ROUNDS` and `SECONDS`,
the defaults of `--rounds` and `--seconds`, `PARTS`, of which `--only` chooses some, and further
`OPTIONS`. If it has a `PAGE`, `run` returns results, which are written to `.bench`, or with
`--write` to bench/results and by `report(results)` to the page; `--report` writes the page again,
and measures nothing.
"""

import argparse
import ast
import importlib
import json
import resource
import signal
import sys
from pathlib import Path
from types import ModuleType

from bench import OUTPUT
from bench.harness import figures

FOLDER = Path(__file__).parent / "sections"
SECTIONS = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def about(name: str) -> str:
    """What a section does, without importing what it needs."""
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text()))
    return text.partition("\n\n")[0].replace("\n", " ")


def words(text: str) -> list[str]:
    return text.split(",")


def options_of(name: str, section: ModuleType, arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=section.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if hasattr(section, "ROUNDS"):
        parser.add_argument("--rounds", type=int, default=section.ROUNDS)
    if hasattr(section, "SECONDS"):
        parser.add_argument("--seconds", type=float, default=section.SECONDS, help="of each load")
    if getattr(section, "HAS_ENGINES", False):
        parser.add_argument("--engines", type=words, default=["posix", "uring"])
    if hasattr(section, "PARTS"):
        parser.add_argument("--only", type=words, default=list(section.PARTS))
    if hasattr(section, "PAGE"):
        parser.add_argument("--write", action="store_true", help=f"write {section.PAGE.name}")
        parser.add_argument("--report", action="store_true", help="write it again")
    for flag, how in getattr(section, "OPTIONS", {}).items():
        parser.add_argument(flag, **how)
    options = parser.parse_args(arguments)
    if hasattr(section, "PARTS") and (unknown := set(options.only) - set(section.PARTS)):
        parser.error(f"{', '.join(unknown)}: not among {', '.join(section.PARTS)}")
    return options


def run(name: str, section: ModuleType, options: argparse.Namespace) -> None:
    if not hasattr(section, "PAGE"):
        section.run(options)
        return
    stored = figures.latest(name)
    results = json.loads(stored.read_text()) if options.report else section.run(options)
    if not options.report:
        figures.write(stored if options.write else figures.part(name), results)
    if options.report or options.write:
        target = getattr(section, "TARGET", f"bench-{name}")
        figures.write_section(section.PAGE, target, section.report(results))


def main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name not in SECTIONS:
        listed = "\n".join(f"  {name:14}{about(name)}" for name in SECTIONS)
        print(f"python -m bench SECTION [options]; SECTION --help describes one.\n\n{listed}")
        sys.exit(name not in ("--help", "-h"))
    section = importlib.import_module(f"bench.sections.{name}")
    options = options_of(name, section, arguments)
    # An exception, so that servers and loads are ended before exit.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    # Servers and loads inherit it, for thousands of connections.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    OUTPUT.mkdir(exist_ok=True)
    run(name, section, options)


if __name__ == "__main__":
    main()
