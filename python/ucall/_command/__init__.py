"""The command ``python -m ucall``: its settings, a gateway, and the served application."""
