"""Serves functions as models of the Open Inference Protocol, which the core speaks at ``/v2``.

The core reads the tensors of a request, calls the function, and writes its outputs. This package
says which functions can be models, and describes them: it is imported by `ucall.Server.inference`
alone.
"""

from __future__ import annotations

from ucall._inference.models import Models

__all__ = ["Models"]
