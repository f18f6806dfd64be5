"""What the command line is made of. Not for direct use: `ucall.cli`."""
