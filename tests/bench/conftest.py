"""Makes the modules of `bench` importable, and reads the recorded sample."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture
def results():
    from bench.render.data import load_results

    return load_results(Path(__file__).parent / "sample.json")
