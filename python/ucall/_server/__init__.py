"""The life of a server: its options, hooks, event loop and threads."""
