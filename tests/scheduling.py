"""Which tests run in one process: the variants of a function, besides the groups that tests name.

To hand out each variant alone costs the process that does so a look at all of them, and each module
with expensive fixtures would make them in every process.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByFunction(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("[")[0]

    return ByFunction(config, log)
