"""The example, word for word, in two processes."""

from __future__ import annotations

import subprocess
import sys

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


def test_example() -> None:
    programs = [
        subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
        for source in (CLIENT, SERVER)
    ]
    try:
        said = [program.communicate(timeout=20)[0] for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert said == ["Hello, Client!\n", "Hello, Server!\n"]
