"""Types of params and results besides those of JSON. Internal: see docs/types.md."""
