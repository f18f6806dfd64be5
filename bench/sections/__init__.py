"""The sections of the benchmark, one a module: see `bench/__main__.py`."""
