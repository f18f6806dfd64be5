"""What a store keeps when the power fails, and the disk loses what was not synced.

`disk_journal.c` records the writes and syncs of a server. From its records, the tests make files
that a disk may have after a power failure: all that was synced, and any sectors of the rest. The
library also fails syncs, after which the disk may never get what was to be synced.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import applications
import pytest
from test_store_kills import number_of, whole

import ucall
from harness import Wire, eventually, new_interpreter, send_line, waits_for_a_lock

WRITE, WRITE_AND_SYNC, SYNC, FAILED_SYNC, RENAME = range(5)
STORE, COPY, DIRECTORY = range(1, 4)
HEAD = struct.Struct("=QQQQ")
SECTOR = 512
CLIENTS = 6


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
    with (
        ThreadPoolExecutor(CLIENTS) as threads,
        new_interpreter(applications.STORE, str(path), durability) as server,
    ):
        port = int(server.stdout.readline())
        running = [threads.submit(answers.put, Wire(port), client) for client in range(clients)]
        for _ in range(random.randrange(30, 200)):
            assert answers.semaphore.acquire(timeout=60)
        server.kill()
        server.wait()
    for one in running:
        one.result()
    return answers


def records(content: bytes, of_file: int = STORE) -> Iterator[tuple[int, int, bytes]]:
    """The kind, the offset and the bytes of each record of a file; the last may be cut off."""
    at = 0
    while at + HEAD.size <= len(content):
        kind, file, offset, length = HEAD.unpack_from(content, at)
        at += HEAD.size + length
        if at <= len(content) and file == of_file:
            yield kind, offset, content[at - length : at]


def ends(content: bytes) -> Iterator[int]:
    """Where each record ends, and 0."""
    at = 0
    while at <= len(content):
        yield at
        at += HEAD.size + (HEAD.unpack_from(content, at)[3] if at < len(content) else 0)


def write(image: bytearray, offset: int, data: bytes) -> None:
    image.extend(bytes(max(0, offset + len(data) - len(image))))
    image[offset : offset + len(data)] = data


def image_after_power_loss(
    journal: bytes, keep: Callable[[], bool], file: int = STORE, before: bytes = b""
) -> bytes:
    """What was synced, and of the rest the sectors for which `keep` returns true."""
    image, found = bytearray(before), list(records(journal, file))
    # Whether the first sync after each record has succeeded.
    synced, is_synced = [], False
    for kind, _, _ in reversed(found):
        is_synced = {SYNC: True, FAILED_SYNC: False}.get(kind, is_synced)
        synced.append(is_synced)
    for (kind, offset, data), is_synced in zip(found, reversed(synced), strict=True):
        for at in range(0, len(data), SECTOR):
            if is_synced or kind == WRITE_AND_SYNC or keep():
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


def stored(image: bytes, folder: Path) -> list[tuple[str | bytes, Any]]:
    """All keys and values of a store with this file, to which it then writes."""
    folder.mkdir()
    (folder / "data.mdb").write_bytes(image)
    with closing(ucall.store.open(folder)) as store:
        found = [(key, entry.value) for key, entry in store.scan()]
        assert store.put("after", 1) > 0
    return found


@pytest.fixture
def failing(journaled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that names what fails."""
    (tmp_path / "fails").mkdir()
    monkeypatch.setenv("DISK_FAILS", str(tmp_path / "fails"))
    return tmp_path / "fails"


KEEPS: list[Callable[[], bool]] = [
    lambda: False,
    lambda: random.random() < 0.5,
    lambda: True,
]


@contextmanager
def served(path: Path) -> Iterator[Wire]:
    """A connection to a server of a store."""
    with (
        new_interpreter(applications.STORE, str(path), "commit") as server,
        Wire(int(server.stdout.readline())) as wire,
    ):
        yield wire


def test_a_failed_sync_writes_nothing(journaled: Path, failing: Path, tmp_path: Path) -> None:
    with served(tmp_path / "kv") as wire:
        assert wire.result("kv.put", ["a", whole(1)]) == 1
        (failing / "sync").touch()
        for method, params in [("put", ["a", whole(2)]), ("delete", ["a"]), ("put", ["b", 1])]:
            error = wire.error(f"kv.{method}", params)
            assert (error["code"], error["message"]) == (-32603, "The store failed")
            assert error["data"].startswith("the disk is full or fails: Input/output error")
        assert wire.result("kv.get", ["a"])["version"] == 1
        failed = journaled.read_bytes()
        (failing / "sync").unlink()
        assert wire.result("kv.put", ["c", whole(3)]) == 2
        assert [entry["key"] for entry in wire.result("kv.scan")["entries"]] == ["a", "c"]
        journal = journaled.read_bytes()
    for number, keep in enumerate(KEEPS):
        before = stored(image_after_power_loss(failed, keep), tmp_path / f"failed {number}")
        assert before == [("a", whole(1))]
        after = stored(image_after_power_loss(journal, keep), tmp_path / f"after {number}")
        assert after == [("a", whole(1)), ("c", whole(3))]


def test_after_a_commit_that_failed_at_its_end_the_process_is_to_start_again(
    failing: Path, tmp_path: Path
) -> None:
    with served(tmp_path / "kv") as wire:
        assert wire.result("kv.put", ["a", 1]) == 1
        (failing / "commit").touch()
        data = wire.error("kv.put", ["a", 2])["data"]
        assert data == "the disk has failed within a commit: start this process again"
        (failing / "commit").unlink()
        assert wire.error("kv.put", ["a", 3])["data"] == data
        assert wire.error("kv.get", ["a"])["data"] == data
        # Another process goes on.
        with closing(ucall.store.open(tmp_path / "kv")) as store:
            assert store.get("a") == (1, 1) and store.put("b", 1) == 2
    with closing(ucall.store.open(tmp_path / "kv")) as store:
        assert store.get("a") == (1, 1) and store.put("a", 4) == 3


def test_the_names_of_a_new_store_are_on_the_disk(journaled: Path, tmp_path: Path) -> None:
    path = tmp_path / "new/app/kv"
    with new_interpreter(applications.STORE, str(path), "commit") as server:
        server.stdout.readline()
        found = list(records(journaled.read_bytes(), DIRECTORY))
    synced = [name.decode() for kind, _, name in found if kind == SYNC]
    assert synced[:4] == [str(one) for one in (path.parent, path.parent.parent, tmp_path, path)]


COMPACTS = [sys.executable, "-m", "ucall.store", "compact"]


def store_with_free_pages(path: Path) -> list[tuple[str | bytes, Any]]:
    """Makes a store; returns its entries."""
    with closing(ucall.store.open(path)) as store:
        numbers = range(40)
        store.batch([("put", f"{number:02}", whole(number)) for number in numbers])
        store.batch([("delete", f"{number:02}") for number in numbers[1::2]])
        return [(key, entry.value) for key, entry in store.scan()]


def test_a_power_loss_while_a_store_is_compacted_keeps_all(journaled: Path, tmp_path: Path) -> None:
    path = tmp_path / "kv"
    entries = store_with_free_pages(path)
    before = (path / "data.mdb").read_bytes()
    subprocess.run([*COMPACTS, str(path)], check=True)
    journal = journaled.read_bytes()
    assert (path / "data.mdb").stat().st_size < len(before)
    number = itertools.count()
    for end, keep in itertools.product(ends(journal), KEEPS[:2]):
        cut = journal[:end]
        images = [image_after_power_loss(cut, keep, before=before)]
        of_directory = [kind for kind, _, _ in records(cut, DIRECTORY)]
        if RENAME in of_directory:
            copy = image_after_power_loss(cut, keep, COPY)
            is_synced = of_directory[-1] == SYNC
            images = [copy] if is_synced else [*images, copy]
        for image in images:
            assert stored(image, tmp_path / f"after {next(number)}") == entries
    assert next(number) > 10


OPENS = """
import sys, ucall.store
store = ucall.store.open(sys.argv[1])
print(store.put("late", 1), flush=True)
sys.stdin.readline()
print(sorted(key for key, _ in store.scan()), flush=True)
"""


def test_a_process_that_opens_a_store_waits_until_it_is_compacted(
    journaled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, held = tmp_path / "kv", tmp_path / "held"
    entries = store_with_free_pages(path)
    os.mkfifo(held)
    with monkeypatch.context() as patch:
        patch.setenv("DISK_HOLDS", str(held))
        compacts = subprocess.Popen([*COMPACTS, str(path)])
    monkeypatch.delenv("LD_PRELOAD")
    # Until then, the copy is whole, and not yet in the place of the file.
    holding = held.open("w")
    with new_interpreter(OPENS, str(path)) as late:
        with holding:
            assert (path / "data.mdb.compact").exists()
            assert eventually(lambda: waits_for_a_lock(late.pid))
        assert compacts.wait(60) == 0
        version = int(late.stdout.readline())
        with closing(ucall.store.open(path)) as store:
            assert store.get("late") == (1, version) and store.put("later", 1) == version + 1
        send_line(late)
        keys = [*(key for key, _ in entries), "late", "later"]
        assert late.stdout.readline() == f"{keys}\n"
