"""The common part of the pairs: one side puts for a while, the other gets and counts.

    python PAIR.py {put|get} MODE PORT SIZE SECONDS

The side that gets announces that it listens. An empty message is the end. Then the side that gets
prints messages, seconds between the first and the last, its CPU seconds and its peak RSS in MB; the
side that puts prints its own CPU and RSS.
"""

import resource
import sys
import time
from collections import deque

# Limits on messages in flight: their bytes and their number.
WINDOW_BYTES = 64 << 20
WINDOW_MESSAGES_MAX = 10_000


def window(size: int) -> int:
    return max(2, min(WINDOW_MESSAGES_MAX, WINDOW_BYTES // max(size, 1)))


def listening() -> None:
    """Announces that the other side may start."""
    print("listening", flush=True)


def used() -> str:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return f"{usage.ru_utime + usage.ru_stime:.4f} {usage.ru_maxrss * 1024 / 1e6:.1f}"


def count(take) -> None:
    """Gets messages until the end."""
    take()
    begin, messages = time.perf_counter(), 0
    while len(take()):
        messages += 1
    print(messages, time.perf_counter() - begin, used(), flush=True)


async def count_async(take) -> None:
    await take()
    begin, messages = time.perf_counter(), 0
    while len(await take()):
        messages += 1
    print(messages, time.perf_counter() - begin, used(), flush=True)


def put_for(seconds: float, size: int, put, wait, data=None) -> None:
    """Puts messages, and waits for the acknowledgement of the message one window before."""
    data = b"x" * size if data is None else data
    in_flight, most = deque(), window(size)
    put(data)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(100 if size < 65536 else 1):
            in_flight.append(put(data))
        while len(in_flight) > most:
            wait(in_flight.popleft())
    while in_flight:
        wait(in_flight.popleft())
    wait(put(b""))
    print(used(), flush=True)


async def put_for_async(seconds: float, size: int, put) -> None:
    data, in_flight, most = b"x" * size, deque(), window(size)
    await put(data)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(100 if size < 65536 else 1):
            in_flight.append(put(data))
        while len(in_flight) > most:
            await in_flight.popleft()
    while in_flight:
        await in_flight.popleft()
    await put(b"")
    print(used(), flush=True)


def arguments() -> tuple[str, str, int, int, float]:
    role, mode, port, size, seconds = sys.argv[1:]
    return role, mode, int(port), int(size), float(seconds)
