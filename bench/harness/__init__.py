"""The parts of `bench/quick.py`. Standard library only, Linux only."""
