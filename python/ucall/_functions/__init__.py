"""Served functions: their signatures, batches and pools of processes."""
