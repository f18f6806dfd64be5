"""What a store does when its disk is full, and its file is cut, removed, replaced or read-only.

A read of the map past the end of the file ends its process, so such stores are opened in another.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import forking
import programs
import pytest

import ucall
from harness import program
from ucall.store import __main__ as command

PAGE_BYTES = 4096

OPENS = """
import sys, ucall
try:
    store = ucall.store.open(sys.argv[1])
    print(len(list(store.scan())))
except OSError as error:
    print(error)
"""


def fill(disk: Path) -> None:
    try:
        with (disk / "others").open("ab", 0) as file:
            while True:
                file.write(b"x" * 512)
    except OSError as full:
        assert "No space left" in str(full)


def ran(code: str, *arguments: object) -> str:
    process = forking.run([sys.executable, "-c", code, *map(str, arguments)], text=True)
    assert process.returncode == 0, process.stderr
    return str(process.stdout)


def test_a_full_disk_refuses_a_store_whose_locks_have_no_space(small_disk: Path) -> None:
    ucall.store.open(small_disk / "old").put("a", 1)
    fill(small_disk)
    refused = f"{small_disk}/{{}}/lock.mdb: the disk is full or fails: No space left"
    assert refused.format("new") in ran(OPENS, small_disk / "new")
    assert ran(OPENS, small_disk / "old") == "1\n"
    # As in a copy of the file alone.
    (small_disk / "old/lock.mdb").unlink()
    fill(small_disk)
    assert refused.format("old") in ran(OPENS, small_disk / "old")


def test_the_space_of_all_snapshots_is_reserved(tmp_path: Path) -> None:
    ucall.store.open(tmp_path / "kv").put("a", 1)
    locks = (tmp_path / "kv/lock.mdb").stat()
    assert locks.st_blocks * 512 >= locks.st_size > 1000 * 64


CUT = """
import os, shutil, sys, ucall
from ucall.store import __main__ as command
path, copy = sys.argv[1:]
with open(path + "/data.mdb", "rb") as file:
    whole = file.read()
for pages in range(len(whole) // 4096, 2, -1):
    with open(copy + "/data.mdb", "wb") as file:
        file.write(whole[: pages * 4096 - 1])
    ended = command.main(["check", copy]), command.main(["dump", copy])
    assert set(ended) <= {0, 1} and len(set(ended)) == 1, ended
    try:
        # Both values of the batch are there, whatever the rest of the file had.
        store = ucall.store.open(copy)
        assert ended == (0, 0) and len(list(store.scan())) == 301
        store.close()
    except OSError as error:
        assert ended == (1, 1) and "data.mdb is damaged: it has" in str(error), error
    print(*ended, file=sys.__stderr__)
"""


def test_a_file_that_was_cut_anywhere_is_read_whole_or_refused(tmp_path: Path) -> None:
    store = ucall.store.open(tmp_path / "kv")
    store.batch([("put", f"{number:03}", "v" * 200) for number in range(300)])
    store.put("long", b"v" * 20_000)
    # The trees move to pages that are free, so that the long value has the last ones in use.
    for number in range(2):
        store.put("000", number)
    (tmp_path / "cut").mkdir()
    run = [sys.executable, "-c", CUT, str(tmp_path / "kv"), str(tmp_path / "cut")]
    process = forking.run(run, stdout=subprocess.DEVNULL, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stderr.count("\n1 1\n") > 10


def test_a_file_without_the_last_pages_that_are_free_is_opened(tmp_path: Path) -> None:
    """LMDB counts pages that it has freed before they were written."""
    store = ucall.store.open(tmp_path / "kv")
    store.put("a", b"v" * 20_000)
    store.close()
    file = tmp_path / "kv/data.mdb"
    content = bytearray(file.read_bytes())
    for meta in (16, PAGE_BYTES + 16):
        (last,) = struct.unpack_from("<Q", content, meta + 120)
        struct.pack_into("<Q", content, meta + 120, last + 100)
    file.write_bytes(content)
    assert ran(OPENS, tmp_path / "kv") == "1\n"


FEW_ADDRESSES = """
import resource, sys, ucall.store
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    ucall.store.open(sys.argv[1])
except OSError as error:
    print(error)
ucall.store.open(sys.argv[1], max_bytes=1 << 30)
"""


def test_a_store_without_enough_addresses_names_its_option(tmp_path: Path) -> None:
    run = [sys.executable, "-c", FEW_ADDRESSES, str(tmp_path / "kv")]
    done = forking.run(run, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "set a smaller max_bytes" in done.stdout


def test_writes_fail_once_the_directory_is_removed(tmp_path: Path) -> None:
    store = ucall.store.open(tmp_path / "kv")
    store.put("a", 1)
    shutil.rmtree(tmp_path / "kv")
    removed = f"{tmp_path}/kv/data.mdb was removed while this process had it open"
    for write in (lambda: store.put("a", 2), lambda: store.increment("b"), store.sync):
        with pytest.raises(OSError, match=removed):
            write()
    # From then on reads fail, too, and the path is not made again.
    with pytest.raises(OSError, match=removed):
        store.get("a")
    with pytest.raises(OSError, match=removed):
        ucall.store.open(tmp_path / "kv")
    assert not (tmp_path / "kv").exists()
    assert ran(OPENS, tmp_path / "kv") == "0\n"
    with pytest.raises(OSError, match=removed.replace("removed", "replaced")):
        store.put("a", 3)
    store.close()
    store.put("a", 4)
    assert ran(OPENS, tmp_path / "kv") == "1\n"


def test_a_directory_that_was_moved_is_not_opened_twice(tmp_path: Path) -> None:
    store = ucall.store.open(tmp_path / "kv")
    store.put("a", 1)
    (tmp_path / "kv").rename(tmp_path / "moved")
    with pytest.raises(OSError, match=f"this process has it open as {tmp_path}/kv$"):
        ucall.store.open(tmp_path / "moved")
    with pytest.raises(OSError, match="was removed"):
        ucall.store.open(tmp_path / "kv")
    (tmp_path / "moved").rename(tmp_path / "kv")
    assert store.put("a", 2) == 2


def test_a_file_that_was_cut_while_it_is_open_takes_no_writes(tmp_path: Path) -> None:
    store = ucall.store.open(tmp_path / "kv")
    store.put("a", 1)
    os.truncate(tmp_path / "kv/data.mdb", 2 * PAGE_BYTES)
    with pytest.raises(OSError, match=r"data\.mdb was truncated while"):
        store.put("a", 2)


def test_keys_of_bytes_that_are_utf8_by_chance(tmp_path: Path) -> None:
    store = ucall.store.open(tmp_path / "kv")
    keys = [struct.pack(">I", number) for number in (1, 200, 65)]
    store.batch([("put", key, 1) for key in keys])
    assert {type(key) for key, _ in store.scan()} == {str, bytes}
    assert [key for key, _ in store.scan(keys="bytes")] == sorted(keys)
    named: Any = "text"
    with pytest.raises(ValueError, match="keys: expected 'str' or 'bytes', got 'text'"):
        store.scan(keys=named)


def test_a_store_that_is_open_for_reading_only(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    for missing in ("none", "other"):
        with pytest.raises(OSError, match="No such file"):
            ucall.store.open(tmp_path / missing, readonly=True)
    assert not [*(tmp_path / "none").iterdir()] and not (tmp_path / "other").exists()
    ucall.store.open(tmp_path / "kv").put("a", 1)
    store = ucall.store.open(tmp_path / "kv2", readonly=False)
    store.put("a", 1)
    store.close()
    store = ucall.store.open(tmp_path / "kv2", readonly=True)
    for write in (lambda: store.put("a", 2), lambda: store.batch([("delete", "a")])):
        with pytest.raises(OSError, match="it is open for reading only"):
            write()
    ran(OPENS + "store.put('b', 2)", tmp_path / "kv2")
    assert dict(store.scan()) == {"a": (1, 1), "b": (2, 2)}


def test_a_store_on_a_read_only_volume_is_read(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ucall.store.open(small_disk / "kv")
    store.put("a", 1)
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    read = ucall.store.open(small_disk / "kv", readonly=True)
    assert read.get("a") == (1, 1)
    read.close()
    assert command.main(["check", str(small_disk / "kv")]) == 0
    assert capsys.readouterr().out == "1 entries\n"


HOLDS = "import sys, ucall\nstore = ucall.store.open(sys.argv[1])\nstore.put('a', 1)\nprint(1)\n"


def test_a_process_of_another_pid_namespace_is_told(tmp_path: Path) -> None:
    apart = [programs.require("unshare"), "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not make a PID namespace")
    opens = [*apart, sys.executable, "-c", OPENS, str(tmp_path / "kv")]
    with program(HOLDS + "sys.stdin.readline()", str(tmp_path / "kv")) as process:
        assert process.stdout.readline() == "1\n"
        assert ran(OPENS, tmp_path / "kv") == "1\n"
        told = subprocess.run(opens, capture_output=True, text=True)
        assert "a process of another PID namespace has it open" in told.stdout
    # One namespace after another may use it.
    assert subprocess.run(opens, capture_output=True, text=True).stdout == "1\n"
