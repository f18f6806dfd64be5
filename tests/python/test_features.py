"""Builds without products: what they lack raises an error that names the feature of cargo."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ucall import _core

#: Hides the names that belong to a feature, which a build without it lacks.
HIDE = """
import sys
import ucall
from ucall import _core

for name in dir(_core):
    try:
        _core.__getattr__(name)
    except ImportError as error:
        if f"`{sys.argv[1]}`" in str(error):
            delattr(_core, name)
    except AttributeError:
        pass
"""
USES = {
    "queue": ("queues", "import ucall.queue"),
    "relay": ("relay", "ucall.Server(port=0).relay('method', to='127.0.0.1:1')"),
    "store": ("store", "import ucall.store"),
}


@pytest.mark.parametrize("feature", USES)
def test_the_missing_feature_is_named(feature: str) -> None:
    what, use = USES[feature]
    command = [sys.executable, "-c", HIDE + use, feature]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    expected = f"this build of ucall has no {what}: it was built without the feature `{feature}`"
    assert done.stderr.splitlines()[-1] == f"ImportError: {expected}"


@pytest.mark.parametrize("feature", USES)
def test_calls_need_no_other_feature(feature: str) -> None:
    use = """
server = ucall.Server(port=0)

@server
def double(number: int) -> int:
    return 2 * number

server.start()
with ucall.client.Client(port=server.port) as client:
    print(client.double(2).json)
server.stop()
"""
    command = [sys.executable, "-c", HIDE + use, feature]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", "4\n")


def test_other_names_raise_attribute_errors() -> None:
    assert not hasattr(_core, "nothing")
    with pytest.raises(AttributeError, match=r"module 'ucall\._core' has no attribute 'nothing'"):
        _core.nothing  # type: ignore[attr-defined]  # noqa: B018
