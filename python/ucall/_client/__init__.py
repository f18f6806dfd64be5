"""The parts of both clients. Internal: use `ucall.client` or `ucall.aio`."""
