"""The fuzz target of `.npy` files, over its corpus and mutations of it."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"
CORPUS = sorted((FUZZ / "corpus/npy").iterdir())
MUTATIONS = 5_000
#: Parts of headers.
TOKENS = [b"'descr'", b"'fortran_order'", b"'shape'", b"True", b"False", b"None", b"(", b")", b","]
TOKENS += [b"'<f8'", b"'|b1'", b"'<i8'", b"'|O'", b"'>c16'", b"-1", b"0", b"9" * 20, b"L", b"\n"]
TOKENS += [b"{", b"}", b"[", b"]", b"'", b'"', b"\\x", b"#", b" ", b"\0", b"\x93NUMPY\1\0"]

specification = importlib.util.spec_from_file_location("fuzz_npy", FUZZ / "npy.py")
assert specification and specification.loader
target = importlib.util.module_from_spec(specification)
specification.loader.exec_module(target)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_corpus_inputs(path: Path) -> None:
    target.run(path.read_bytes())


def test_mutations() -> None:
    chance = random.Random(1)
    inputs = [path.read_bytes() for path in CORPUS]
    for _ in range(MUTATIONS):
        data = bytearray(chance.choice(inputs))
        for _ in range(chance.randrange(1, 4)):
            start = chance.randrange(len(data) + 1)
            end = min(len(data), start + chance.choice([0, 0, 1, 1, 2, 8, 30]))
            data[start:end] = chance.choice([chance.choice(TOKENS), chance.randbytes(1), b""])
        if chance.random() < 0.8:
            target.with_its_length(data)
        try:
            target.run(bytes(data))
        except BaseException:
            print(f"the input was {bytes(data)!r}")
            raise
