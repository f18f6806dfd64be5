"""Servers, loads, and the rounds in which they run."""
