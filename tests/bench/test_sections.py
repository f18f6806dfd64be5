"""The table of sections: each can be started, has its line in bench/README.md, and a target."""

import importlib
import re

import pytest

import ucall
from bench import ROOT
from bench.__main__ import SECTIONS, options_of
from bench.harness.processes import LoadError
from bench.sections import sleepers, whole
from bench.serve import KINDS, made

README = (ROOT / "bench/README.md").read_text()


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_can_be_started(name, capsys):
    section = importlib.import_module(f"bench.sections.{name}")
    assert callable(section.run)
    with pytest.raises(SystemExit) as ended:
        options_of(name, section, ["--help"])
    assert ended.value.code == 0 and section.__doc__.splitlines()[0] in capsys.readouterr().out


def test_the_readme_lists_the_sections_and_targets_that_exist():
    rows = re.findall(r"^\| (`make [^|]*) \| `(\w+)` \|", README, re.MULTILINE)
    assert {section for _, section in rows} == set(SECTIONS)
    named = {name for targets, _ in rows for name in re.findall(r"make ([\w-]+)", targets)}
    rules = re.findall(r"^([\w-]+):", (ROOT / "bench/bench.mk").read_text(), re.MULTILINE)
    targets = {name for name in rules if name.startswith("bench") or name == "slow-peers"}
    assert named | {"bench-tools", "bench-embeddings"} == targets


def test_the_readme_lists_the_rows_of_a_whole_run():
    [listed] = re.findall(r"\| some of ([\w, -]+) \|", README)
    assert listed.split(", ") == [*whole.OURS, *whole.PEERS]


def test_an_unknown_part_is_an_error_that_lists_the_known_ones(capsys):
    section = importlib.import_module("bench.sections.asgi")
    assert options_of("asgi", section, ["--only", "stream"]).only == ["stream"]
    with pytest.raises(SystemExit):
        options_of("asgi", section, ["--only", "stream,news"])
    assert "news: not among get, post, body, stream" in capsys.readouterr().err


@pytest.fixture
def embedding(monkeypatch):
    """A server whose results differ in length, as embeddings do that batches have computed."""
    monkeypatch.setattr(sleepers, "CALL_SECONDS", 0.1)
    server = ucall.Server(port=0)

    @server
    def embed(text: str) -> list[float]:
        number = float(text.rpartition(" ")[2])
        return [number / 7]

    with server:
        yield server


def test_embeddings_are_counted_whatever_their_digits(embedding):
    assert sleepers._rate(embedding.port, "embed") > 0


def test_an_embedding_that_fails_is_not_counted(embedding):
    with pytest.raises(LoadError, match=r"unknown: .*-32601"):
        sleepers._rate(embedding.port, "unknown")


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_is_made_with_the_options_of_today(kind, tmp_path):
    words = ["--timeout-s", "5", "--to", "tcp://127.0.0.1:9", "--path", str(tmp_path / "kv")]
    assert isinstance(made([kind, "--engine", "posix", *words]), ucall.Server)
