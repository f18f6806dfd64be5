"""The example, word for word, in two processes."""

from __future__ import annotations

import subprocess
import sys

from pairs import free_location

SERVER = """
from ucall import queue as nq
with nq.new(purpose=nq.Purpose.SERVER) as queue:      # server.py
    message = queue.get()
    queue.put("Hello, Client!")
print(message.data)
"""
CLIENT = """
from ucall import queue as nq
with nq.new(purpose=nq.Purpose.CLIENT) as queue:      # client.py
    queue.put("Hello, Server!")
    message = queue.get()
print(message.data)
"""
# Others may use the usual port at the same time.
ELSEWHERE = """
from ucall.queue.core import CommunicatorOptions, NetworkLocation
defaults = CommunicatorOptions.__init__.__defaults__
CommunicatorOptions.__init__.__defaults__ = tuple(
    NetworkLocation({!r}, {!r}) if isinstance(it, NetworkLocation) else it for it in defaults
)
"""


def test_example() -> None:
    elsewhere = ELSEWHERE.format(*free_location())
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", elsewhere + source], stdout=subprocess.PIPE, text=True
        )
        for source in (CLIENT, SERVER)
    ]
    try:
        said = [program.communicate(timeout=20)[0] for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert said == ["Hello, Client!\n", "Hello, Server!\n"]
