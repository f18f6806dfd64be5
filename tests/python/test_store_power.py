"""What a store keeps when the power fails, and the disk loses what was not synced.

`disk_journal.c` records the writes and syncs of a server. From its records, the tests make files
that a disk may have after a power failure: all that was synced, and any sectors of the rest.
"""

from __future__ import annotations

import itertools
import random
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_store_kills import number_of, whole

import ucall
from harness import Wire, program

WRITE, WRITE_AND_SYNC, SYNC = range(3)
HEAD = struct.Struct("=QQQ")
SECTOR = 512
CLIENTS = 6

SERVES = """
import sys, ucall
server = ucall.Server(port=0)
server.store("kv", ucall.store.open(sys.argv[1], durability=sys.argv[2]))
server.start()
print(server.port)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    library = tmp_path_factory.mktemp("shim") / "disk_journal.so"
    source = Path(__file__).with_name("disk_journal.c")
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(source), "-ldl", "-lpthread"], check=True)
    return library


@pytest.fixture
def journaled(shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The journal of the servers that a test starts."""
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("DISK_JOURNAL", str(tmp_path / "journal"))
    return tmp_path / "journal"


class Answers:
    """What clients put, one rising number after another, until the server is killed."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.semaphore = threading.Semaphore(0)
        #: The size of the journal when a client had the answer for its number.
        self.answered: list[tuple[int, int, int]] = []

    def put(self, wire: Wire, client: int) -> None:
        with wire:
            try:
                for number in itertools.count(1):
                    wire.result("kv.put", [f"text:{client}", whole(number)])
                    self.answered.append((self.journal.stat().st_size, client, number))
                    wire.result("kv.increment", [f"count:{client}"])
                    self.semaphore.release()
            except (OSError, ValueError):
                return

    def until(self, size: int) -> list[int]:
        """The last number of each client whose answer came when the journal had this size."""
        last = [0] * CLIENTS
        for at, client, number in self.answered:
            last[client] = max(last[client], number if at <= size else 0)
        return last


def killed_under_load(path: Path, journal: Path, durability: str, clients: int) -> Answers:
    answers = Answers(journal)
    with ThreadPoolExecutor(CLIENTS) as threads, program(SERVES, str(path), durability) as server:
        port = int(server.stdout.readline())
        running = [threads.submit(answers.put, Wire(port), client) for client in range(clients)]
        for _ in range(random.randrange(30, 200)):
            assert answers.semaphore.acquire(timeout=60)
        server.kill()
        server.wait()
    for one in running:
        one.result()
    return answers


def records(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The kind, the offset and the bytes of each record; the last one may be cut off."""
    at = 0
    while at + HEAD.size <= len(content):
        kind, offset, length = HEAD.unpack_from(content, at)
        at += HEAD.size + length
        if at <= len(content):
            yield kind, offset, content[at - length : at]


def write(image: bytearray, offset: int, data: bytes) -> None:
    image.extend(bytes(max(0, offset + len(data) - len(image))))
    image[offset : offset + len(data)] = data


def image_after_power_loss(journal: bytes, keep: Callable[[], bool]) -> bytes:
    """What was synced, and of the rest the sectors for which `keep` returns true."""
    image, found = bytearray(), list(records(journal))
    synced = max((at for at, (kind, _, _) in enumerate(found) if kind == SYNC), default=0)
    for number, (kind, offset, data) in enumerate(found):
        for at in range(0, len(data), SECTOR):
            if number < synced or kind == WRITE_AND_SYNC or keep():
                write(image, offset + at, data[at : at + SECTOR])
    return bytes(image)


def numbers_in(image: bytes, folder: Path) -> list[int]:
    """The numbers of all clients that a store with this file has; fails if one is torn."""
    folder.mkdir()
    (folder / "data.mdb").write_bytes(image)
    store = ucall.store.open(folder)
    numbers = []
    for client in range(CLIENTS):
        entry = store.get(f"text:{client}")
        number = number_of(f"text:{client}", entry.value) if entry else 0
        count = store.get(f"count:{client}")
        # The increment behind a put was not answered, or the next put was not.
        assert (count.value if count else 0) in (number - 1, number)
        numbers.append(number)
    assert store.put("text:0", whole(1)) > 0
    store.close()
    return numbers


def test_the_journal_has_all_writes(journaled: Path, tmp_path: Path) -> None:
    killed_under_load(tmp_path / "kv", journaled, "commit", CLIENTS)
    file = (tmp_path / "kv/data.mdb").read_bytes()
    found = list(records(journaled.read_bytes()))
    image = bytearray()
    for _, offset, data in found[:-1]:
        write(image, offset, data)
    # The last write was recorded before it happened, or did not.
    if file != image:
        write(image, *found[-1][1:])
    assert file == image


@pytest.mark.parametrize("clients", [1, CLIENTS])
def test_a_power_loss_keeps_all_answered_writes(
    journaled: Path, tmp_path: Path, clients: int
) -> None:
    answers = killed_under_load(tmp_path / "kv", journaled, "commit", clients)
    journal = journaled.read_bytes()
    # At the end, and when a client has just got an answer.
    sizes = [len(journal), *(size for size, _, _ in random.sample(answers.answered, 8))]
    keeps: list[Callable[[], bool]] = [lambda: False, lambda: random.random() < 0.5]
    for number, (size, keep) in enumerate(itertools.product(sizes, keeps)):
        image = image_after_power_loss(journal[:size], keep)
        kept = numbers_in(image, tmp_path / f"after {number}")
        answered = answers.until(size)
        assert all(now >= last for now, last in zip(kept, answered, strict=True)), (kept, answered)


def test_without_durability_a_power_loss_may_lose_answered_writes(
    journaled: Path, tmp_path: Path
) -> None:
    answers = killed_under_load(tmp_path / "kv", journaled, "none", CLIENTS)
    journal = journaled.read_bytes()
    assert image_after_power_loss(journal, lambda: False) == b""
    kept = numbers_in(image_after_power_loss(journal, lambda: True), tmp_path / "all")
    answered = answers.until(len(journal))
    assert any(answered)
    assert all(now >= last for now, last in zip(kept, answered, strict=True))
