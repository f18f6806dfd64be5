"""Writes a line for each change of a Python source below the paths given: ``--reload``.

A process of its own, so that the supervisor needs no thread.
"""

from __future__ import annotations

import sys

from watchfiles import PythonFilter, watch


def main() -> None:
    for changes in watch(*sys.argv[1:], watch_filter=PythonFilter(), raise_interrupt=False):
        print(*sorted(path for _, path in changes), flush=True)


if __name__ == "__main__":
    main()
