"""The parts of `bench/run.py`: servers, loads, and the results."""
