"""Forked children leave alone what tests of their process have left.

A child that collects the garbage of its parent ends gRPC's objects in it, which then wait for a
thread that the child lacks, for ever.
"""

from __future__ import annotations

import gc
import os

os.register_at_fork(after_in_child=gc.freeze)
