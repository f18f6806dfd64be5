"""The examples of docs/c.md, the README and the header compile, and those with a `main` run."""

import re
import runpy
from pathlib import Path

import pytest

import harness
from harness import Client

GUIDES = [harness.ROOT / "docs/c.md", harness.ROOT / "README.md"]
FENCE = re.compile(r"^```(c|cpp)\n(.*?)^```$", re.M | re.S)
# Headers that a fragment may use without including them.
PREAMBLE = "#include <pthread.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
PREAMBLE += "#include <ucall/ucall.h>\n"


def examples() -> list[tuple[str, str]]:
    return [example for guide in GUIDES for example in FENCE.findall(guide.read_text())]


def header_example() -> str:
    text = (harness.INCLUDE / "ucall/ucall.h").read_text()
    body = text.split("on one port.\n *\n")[1].split("\n *\n * Every function")[0]
    return "\n".join(line.removeprefix(" *").removeprefix("     ") for line in body.split("\n"))


def compile_example(folder: Path, language: str, text: str) -> Path:
    source = folder / f"example.{language}"
    source.write_text(text if text.startswith("#include") else PREAMBLE + text)
    # A fragment does not call its functions.
    flags = ["-Wno-unused-function", "-Wno-unused-variable", "-I", harness.INCLUDE, "-c"]
    compiler = harness.compiler_for(source)
    harness.run([*compiler, *harness.STRICT, *flags, source, "-o", folder / "example.o"])
    return source


@pytest.mark.parametrize(
    "language, text", examples(), ids=[str(number) for number in range(len(examples()))]
)
@pytest.mark.usefixtures("library")
def test_an_example_of_the_guide(tmp_path, language, text):
    source = compile_example(tmp_path, language, text)
    if "int main" in text:
        harness.build(source, tmp_path / "example")


def test_the_guide_names_every_function():
    names = re.findall(r"\b(ucall_[a-z0-9_]+)\(", (harness.INCLUDE / "ucall/ucall.h").read_text())
    guide = GUIDES[0].read_text()
    missing = [name for name in set(names) if name not in guide]
    assert not missing


def test_the_reference_is_that_of_the_header():
    page = runpy.run_path(str(harness.ROOT / "tools/c-reference.py"))["page"]()
    titles = re.findall(r"^### (.*)$", page, re.M)
    listed = re.findall(r"`(\w+)`", " ".join(titles))
    header = (harness.INCLUDE / "ucall/ucall.h").read_text()
    functions = set(re.findall(r"^\w[\w *]*\b(ucall_[a-z0-9_]+)\(", header, re.M))
    assert len(listed) == len(set(listed)) and functions <= set(listed)


@pytest.mark.usefixtures("library")
def test_the_header_s_example_serves(tmp_path):
    source = compile_example(tmp_path, "c", header_example())
    # It listens on the default port, which another program of this machine may have.
    text = source.read_text().replace("= {0};", "= {0};\n    config.pick_port = true;")
    text = text.replace(
        "    ucall_take_calls",
        '    printf("listening on %d\\n", config.port);\n    fflush(stdout);\n    ucall_take_calls',
    )
    source.write_text(text)
    server = harness.Server([harness.build(source, tmp_path / "example")])
    with Client(server.port) as client:
        assert client.call("sum", {"a": 2, "b": 3}) == 5
    server.kill()


def test_the_guide_s_first_program_is_the_header_s():
    first = examples()[0][1]
    assert header_example().strip() in first
