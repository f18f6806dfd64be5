"""What the clients of both kinds are made of. Not for direct use: `ucall.client`, `ucall.aio`."""
