"""The benchmarks: `python -m bench SECTION`. bench/README.md lists the sections."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Programs, logs, samples, and the results of partial runs.
OUTPUT = ROOT / ".bench"
