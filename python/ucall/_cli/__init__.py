"""The parts of the command line. Internal: use `ucall.cli`."""
