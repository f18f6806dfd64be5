"""Queues in the children of `multiprocessing`, by each of its start methods."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from ucall import queue as nq

WAIT_S = 60
#: Each child is passed the same options, puts objects of a class of the main module, and returns.
PROGRAM = """
import multiprocessing, sys
from dataclasses import dataclass
from ucall import queue as nq

@nq.allow
@dataclass
class Job:
    number: int
    data: bytes = b""

def work(options, has_returned):
    queue = nq.new(options=options)
    queue.put(Job(-1)).result(20)
    job = queue.get(timeout=20).data
    assert isinstance(job, Job), job
    for number in range(job.number):
        # Most of it has to wait until the server has taken the messages before.
        queue.put(Job(number, bytes(200_000)))
    has_returned.set()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    narrow = nq.ConnectionOptions(transport_size=1 << 16)
    here = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0), connection=narrow)
    with nq.new(purpose=nq.Purpose.SERVER, options=here) as server:
        there = nq.CommunicatorOptions(netloc=nq.NetworkLocation(*server.address))
        events = [context.Event() for _ in range(2)]
        children = [context.Process(target=work, args=(there, event)) for event in events]
        for child in children:
            child.start()
        peers = {server.get(timeout=20).peer for _ in children}
        server.put(Job(100)).result(20)
        assert all(event.wait(20) for event in events)
        found = [server.get(timeout=20) for _ in range(200)]
        for child in children:
            child.join(20)
        print(len(peers), [child.exitcode for child in children])
        for peer in peers:
            numbers = [it.data.number for it in found if it.peer == peer]
            print(numbers == list(range(100)))
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_of_multiprocessing_deliver_what_they_put(tmp_path: Path, method: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    # From 3.12 on Python warns of a fork beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(path), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * WAIT_S, check=False)
    assert (done.stderr, done.stdout) == ("", "2 [0, 0]\nTrue\nTrue\n")


def test_only_ids_that_no_program_has_chosen_differ_by_process() -> None:
    drawn = nq.CommunicatorOptions(workers=1)
    chosen = nq.CommunicatorOptions(id=drawn.id)
    for options in (drawn, chosen):
        assert pickle.loads(pickle.dumps(options)).of_this_process().id == drawn.id
    # In another process.
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).of_this_process().id)"
    seen = [
        subprocess.run([sys.executable, "-c", code], input=pickle.dumps(it), capture_output=True)
        for it in (drawn, chosen)
    ]
    ids = [it.stdout.decode().strip() for it in seen]
    assert ids[0] != str(drawn.id) and ids[1] == str(drawn.id), seen
