"""What a store keeps when its disk is full or read-only, or its file is damaged."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import forking
import programs
import pytest
from applications import STORE
from hypothesis import given, settings
from hypothesis import strategies as st

import ucall
from harness import Wire, eventually, free_port, program, send_line, waits_for_a_lock
from ucall import cli


@contextmanager
def serving(path: Path, count: int) -> Iterator[list[tuple[Any, int]]]:
    """Processes that serve one store, and their ports."""
    with ExitStack() as stack:
        processes = [stack.enter_context(program(STORE, str(path))) for _ in range(count)]
        yield [(process, int(process.stdout.readline())) for process in processes]


def test_a_full_disk_refuses_writes_and_keeps_what_it_has(small_disk: Path) -> None:
    with serving(small_disk / "kv", 1) as [(_, port)], Wire(port) as wire:
        written = 0
        while "result" in (reply := wire.call("kv.put", [f"{written:04}", "x" * 50_000])):
            written += 1
        error = reply["error"]
        assert (error["code"], error["message"]) == (-32603, "The store failed")
        assert error["data"].startswith("the disk is full or fails: ")
        assert written > 10
        for number in range(written):
            assert wire.result("kv.get", [f"{number:04}"])["value"] == "x" * 50_000
        assert wire.result("kv.get", [f"{written:04}"]) is None
    kept = [key for key, _ in ucall.store.open(small_disk / "kv").scan()]
    assert kept == [f"{number:04}" for number in range(written)]


def test_a_file_at_its_size_limit_refuses_writes_and_keeps_what_it_has(tmp_path: Path) -> None:
    """Without root, the system's limit of file sizes is a full disk."""
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
    with ExitStack() as stack:
        process = stack.enter_context(program(limited + STORE, str(tmp_path / "kv")))
        wire = stack.enter_context(Wire(int(process.stdout.readline())))
        versions = {}
        while "result" in (reply := wire.call("kv.put", [f"{len(versions):04}", "x" * 5_000])):
            versions[f"{len(versions):04}"] = reply["result"]
        assert reply["error"]["code"] == -32603
        assert reply["error"]["data"].startswith("File too large")
        assert len(versions) > 50
        batch = [{"method": "put", "params": [key, "y" * 5_000]} for key in versions]
        assert wire.error("kv.batch", [batch])["code"] == -32603
        # Deleted entries make room.
        for key in [*versions][:20]:
            assert wire.result("kv.delete", [key]) is True
            del versions[key]
        versions["new"] = wire.result("kv.put", ["new", "x" * 5_000])
    kept = dict(ucall.store.open(tmp_path / "kv").scan())
    assert kept == {key: ("x" * 5_000, version) for key, version in versions.items()}


def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    ucall.store.open(tmp_path / "kv").put("a", 1)
    (tmp_path / "kv/data.mdb").chmod(0o400)
    (tmp_path / "kv").chmod(0o500)
    opens = "import sys, ucall\nucall.store.open(sys.argv[1])"
    refused = as_user([sys.executable, "-c", opens, str(tmp_path / "kv")])
    assert "cannot open the store" in refused.stderr and "Permission denied" in refused.stderr
    (tmp_path / "kv").chmod(0o700)
    (tmp_path / "kv/data.mdb").chmod(0o600)
    assert ucall.store.open(tmp_path / "kv").get("a") == (1, 1)


def as_user(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a program without root's right to write everywhere."""
    drop: list[str] = []
    if os.geteuid() == 0:
        drop = [programs.require("setpriv"), "--bounding-set=-all", "--inh-caps=-all"]
    return subprocess.run([*drop, *command], capture_output=True, text=True)


def test_a_disk_that_is_read_only_is_refused(small_disk: Path) -> None:
    ucall.store.open(small_disk / "kv").put("a", 1)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match=r"cannot open the store .*: Read-only file system"):
        ucall.store.open(small_disk / "kv", max_value_bytes=1)


WRITER = """
import sys, ucall
store = ucall.store.open(sys.argv[1])
store.get("a")
print("open", flush=True)
sys.stdin.readline()
print(store.put(sys.argv[2], 1), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/locks")
def test_a_killed_waiting_writer_holds_up_no_other(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    store = ucall.store.open(path)
    store.put("a", 1)
    store.close()
    with (
        (path / "write.lock").open("r+b") as lock,
        program(WRITER, str(path), "first") as first,
        program(WRITER, str(path), "second") as second,
    ):
        for process in (first, second):
            assert process.stdout.readline() == "open\n"
        fcntl.lockf(lock, fcntl.LOCK_EX)
        for process in (first, second):
            send_line(process)
            assert eventually(partial(waits_for_a_lock, process.pid))
        # The first is the next to get the lock.
        first.kill()
        first.wait()
        # The kernel wakes the second, which waits again.
        assert eventually(partial(waits_for_a_lock, second.pid))
        fcntl.lockf(lock, fcntl.LOCK_UN)
        assert second.stdout.readline() == "2\n"
        assert second.wait(60) == 0
    assert [key for key, _ in store.scan()] == ["a", "second"]


SMALL = """
import sys, ucall.store
store = ucall.store.open(sys.argv[1], max_bytes=1 << 20)
print(store.put("small", 1), flush=True)
sys.stdin.readline()
try:
    store.get("small")
except OSError as error:
    print(error)
"""


def test_a_process_with_a_smaller_limit_than_the_file_is_told(tmp_path: Path) -> None:
    with program(SMALL, str(tmp_path)) as small:
        assert small.stdout.readline() == "1\n"
        with closing(ucall.store.open(tmp_path, max_bytes=4 << 20)) as store:
            store.put("large", b"x" * (2 << 20))
        send_line(small)
        expected = "another process has a larger max_bytes: open the store with that\n"
        assert small.stdout.readline() == expected


def tool(command: str, path: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "ucall.store", command, str(path)]
    return forking.run(arguments, input=text, text=True)


def test_a_store_is_dumped_loaded_and_compacted(tmp_path: Path) -> None:
    store = ucall.store.open(tmp_path / "kv")
    store.batch([("put", f"k{number:03}", {"number": number}) for number in range(700)])
    store.put("bytes", b"\0\xff")
    store.put(b"\xff", 1)
    store.batch([("delete", f"k{number:03}") for number in range(100, 700)])
    store.close()
    before = (tmp_path / "kv/data.mdb").stat().st_size
    dumped = tool("dump", tmp_path / "kv")
    assert len(dumped.stdout.splitlines()) == 102
    assert json.loads(dumped.stdout.splitlines()[0]) == {"key": "bytes", "bytes": "AP8="}
    assert json.loads(dumped.stdout.splitlines()[-1]) == {"key": {"bytes": "/w=="}, "value": 1}
    loaded = tool("load", tmp_path / "copy", dumped.stdout)
    assert (loaded.returncode, loaded.stderr) == (0, "")
    assert tool("dump", tmp_path / "copy").stdout == dumped.stdout
    compacted = tool("compact", tmp_path / "kv")
    after = (tmp_path / "kv/data.mdb").stat().st_size
    assert compacted.stdout == f"{before} bytes before, {after} after\n", compacted.stderr
    assert after < before
    assert tool("dump", tmp_path / "kv").stdout == dumped.stdout
    assert tool("check", tmp_path / "kv").stdout == "102 entries\n"
    assert store.put("new", 1) == 703


TEXTS = st.one_of(
    st.sampled_from(
        ["1e2", "1.0", "-0.0", "1e999", "9" * 5000, '{"a":1,"a":2}', "[ 1, 2 ]", '"\\u00e9\\/"']
    ),
    st.just("[" * 500 + "]" * 500),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda values: st.lists(values, max_size=3),
        max_leaves=5,
    ).map(json.dumps),
).map(str.encode)
KEYS = st.text('aé\n"', min_size=1, max_size=3).map(str.encode) | st.binary(
    min_size=1, max_size=511
)
#: The bytes of a value, whether they are JSON text, and the time to live.
VALUES = st.tuples(TEXTS, st.just(True), st.none() | st.integers(10**6, 2**64 - 1)) | st.tuples(
    st.binary(max_size=50), st.just(False), st.none()
)


def test_a_loaded_dump_is_the_store(tmp_path: Path) -> None:
    store, copy = (
        ucall.store.open(tmp_path / name, durability="none")._core for name in ("kv", "copy")
    )

    @settings(max_examples=50, deadline=None)
    @given(st.dictionaries(KEYS, VALUES, max_size=12))
    def check(entries: dict[bytes, tuple[bytes, bool, int | None]]) -> None:
        for key, (value, is_json, ttl_ms) in entries.items():
            store.put(key, value, is_json, ttl_ms=ttl_ms, version=None)
        dumped = dump_of(store)
        copy.load(dumped, 1)
        # The dump has the times at which entries expire.
        assert dump_of(copy) == dumped
        expiring = [ttl_ms for _, _, ttl_ms in entries.values() if ttl_ms is not None]
        assert dumped.count(b'"expires_at_ms":') == len(expiring)
        for key, (value, is_json, _) in entries.items():
            found = copy.get(key)
            assert found is not None and found[1:] == (is_json, value)
        assert copy.check() == (len(entries), [])
        for one in (store, copy):
            one.batch([("delete", key) for key in entries])

    check()
    store.close()
    copy.close()


def dump_of(core: Any) -> bytes:
    pieces: list[bytes] = []
    core.dump(pieces.append)
    return b"".join(pieces)


def test_an_entry_expires_also_after_a_dump_is_loaded(tmp_path: Path) -> None:
    with closing(ucall.store.open(tmp_path / "kv")) as store:
        store._core.load(b'{"key":"a","value":1,"expires_at_ms":1}\n{"key":"b","value":1}\n', 1)
        assert store.get("a") is None and store.get("b") == (1, 2)
        store.put("short", 1, ttl_ms=1)
        store.put("long", 1, ttl_ms=3_600_000)
        assert eventually(lambda: store.get("short") is None)
        lines = [json.loads(line) for line in dump_of(store._core).splitlines()]
    assert [line["key"] for line in lines] == ["b", "long"]
    assert 0 < lines[1]["expires_at_ms"] / 1000 - time.time() <= 3600


def test_a_dump_with_a_value_past_the_default_limit_is_loaded(tmp_path: Path) -> None:
    value = "x" * ((16 << 20) + 1)
    store = ucall.store.open(tmp_path / "kv", max_value_bytes=len(value) + 2)
    store.put("large", value)
    store.close()
    loaded = tool("load", tmp_path / "copy", tool("dump", tmp_path / "kv").stdout)
    assert (loaded.returncode, loaded.stderr) == (0, "")
    copy = ucall.store.open(tmp_path / "copy").get("large")
    assert copy is not None and copy.value == value


def test_a_dump_that_cannot_be_written_fails(tmp_path: Path) -> None:
    with closing(ucall.store.open(tmp_path / "kv")) as store:
        store.put("a", 1)
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "ucall.store", "dump", str(tmp_path / "kv")]
        dumped = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert dumped.returncode == 1 and "No space left on device" in dumped.stderr


def test_the_tool_refuses_what_is_no_store(tmp_path: Path) -> None:
    for command in ["check", "dump", "compact"]:
        refused = tool(command, tmp_path / "none")
        assert (refused.returncode, refused.stderr.splitlines()[-1]) == (
            1,
            f"{tmp_path / 'none'}: there is no store",
        )
    for line, reason in [
        ('{"key":"a"}', "value: expected a value, or bytes in its place"),
        ('{"key":"a","value":Infinity}', "it is not JSON"),
        ("[1]", "it is no object"),
        ('{"key":"","value":1}', "key: expected 1 to 511 bytes, got 0"),
    ]:
        refused = tool("load", tmp_path / "kv", f'{{"key":"a","value":1}}\n\n{line}\n')
        expected = f"line 3: expected an entry of a dump: {reason}"
        assert refused.returncode == 1 and expected in refused.stderr
    assert tool("check", tmp_path / "kv").stdout == "0 entries\n"


def test_the_tool_is_a_command_beside_methods_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(ucall.store.open(tmp_path)) as store:
        store.put("a", 1)
    assert cli.main(["store", "dump", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["key"] == "a"
    # A call of a method store: nothing listens there.
    assert cli.main(["store", "check=1", "-p", str(free_port())]) == 3


def test_a_store_in_use_is_not_compacted(tmp_path: Path) -> None:
    with serving(tmp_path / "kv", 1) as [(_, port)], Wire(port) as wire:
        wire.result("kv.put", ["a", 1])
        refused = tool("compact", tmp_path / "kv")
        assert refused.returncode == 1 and "another process has it open" in refused.stderr
        assert wire.result("kv.put", ["a", 2]) == 2
    assert tool("compact", tmp_path / "kv").returncode == 0


def test_damage_is_reported(tmp_path: Path) -> None:
    store = ucall.store.open(tmp_path / "kv")
    store.put("a", {"a": "x" * 100})
    store.close()
    file = tmp_path / "kv/data.mdb"
    whole = file.read_bytes()
    assert whole.count(b"xxxx") == 25
    file.write_bytes(whole.replace(b'{"a":"xxxx', b'?"a":"xxxx'))
    damaged = tool("check", tmp_path / "kv")
    assert (damaged.returncode, damaged.stderr) == (1, "'a': its value is not JSON\n")
    shutil.rmtree(tmp_path / "kv")
    (tmp_path / "kv").mkdir()
    file.write_bytes(bytes(100_000))
    refused = tool("check", tmp_path / "kv")
    assert refused.returncode == 1 and "cannot open the store" in refused.stderr
