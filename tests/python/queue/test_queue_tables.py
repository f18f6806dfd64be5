"""Values of optional libraries: they arrive as they were put, from data alone."""

from __future__ import annotations

import datetime
import pickle
import zoneinfo
from collections.abc import Iterator
from typing import Any

import pytest
from pickled import load, named, text, whole

from harness import program
from ucall import queue as nq
from ucall.queue.utils.arrays import optional

np = pytest.importorskip("numpy", reason="numpy is not installed")

SERIALIZER = nq.PickleSerializer()


@pytest.fixture
def pa() -> Iterator[Any]:
    pyarrow = pytest.importorskip("pyarrow")
    nq.allow_arrow()
    yield pyarrow


def test_arrow_tables_come_back(pa: Any) -> None:
    kinds = pa.array(["p", None, "p"]).dictionary_encode()
    table = pa.table({"a": [1, 2, None], "s": ["x", None, "é"], "d": kinds, "l": [[1], [], None]})
    chunked = pa.table({"a": pa.chunked_array([[1], [2, 3]])}, metadata={"k": "v"})
    batches = [table.to_batches()[0], table.slice(1, 1).to_batches()[0]]
    values = [table, chunked, table.slice(0, 0), table.slice(2), pa.table({}), *batches]
    long = pa.table({"a": range(100_000)})
    values += [table.slice(0, 0).combine_chunks(), pa.record_batch({"a": pa.array([], "i8")}), long]
    for value, received in zip(values, SERIALIZER.load(SERIALIZER.dump(values)), strict=True):
        assert type(received) is type(value)
        assert received.equals(value, check_metadata=True)


def test_arrow_streams_are_checked(pa: Any) -> None:
    table = pa.table({"a": [1, 2], "d": pa.array(["some text", "q"]).dictionary_encode()})
    make, (stream,) = optional[pa.Table](table)
    good = bytes(stream)
    assert SERIALIZER.load(SERIALIZER.dump(Call(make, (good,)))).equals(table)
    for codec in ("lz4", "zstd"):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write(table)
        plain, compressed = messages_of(pa, good), messages_of(pa, sink.getvalue())
        # A dictionary, and a batch.
        for place in (1, 2):
            data = b"".join([*plain[:place], compressed[place], *plain[place + 1 :]])
            with pytest.raises(pickle.UnpicklingError, match="is compressed"):
                SERIALIZER.load(SERIALIZER.dump(Call(make, (data,))))
    assert good.count(b"some text") == 1
    for data in (good[:40], b"", 5, good.replace(b"some text", b"not UTF-\xff")):
        with pytest.raises(pickle.UnpicklingError):
            SERIALIZER.load(SERIALIZER.dump(Call(make, (data,))))


def messages_of(pa: Any, stream: Any) -> list[bytes]:
    return [bytes(message.serialize()) for message in pa.ipc.MessageReader.open_stream(stream)]


@pytest.fixture
def pd() -> Iterator[Any]:
    pandas = pytest.importorskip("pandas")
    nq.allow_pandas()
    yield pandas


def test_frames_and_series_come_back(pd: Any) -> None:
    zone = zoneinfo.ZoneInfo("Europe/Paris")
    times = pd.date_range("2024-03-30", periods=3, tz=zone, unit="us")
    frame = pd.DataFrame(
        {
            "number": [1, 2, 3],
            "float": [1.5, float("nan"), -0.0],
            "flag": [True, False, True],
            "text": ["a", None, "é"],
            "object": pd.Series([{"a": 1}, [2, 3], None], dtype=object),
            "nullable": pd.array([1, None, 3], dtype="Int8"),
            "maybe": pd.array([True, None, False], dtype="boolean"),
            "string": pd.array(["x", None, "z"], dtype="string"),
            "kind": pd.Categorical(["b", "a", None], categories=["b", "a"], ordered=True),
            "time": times,
            "fixed": times.tz_convert(datetime.timezone(datetime.timedelta(hours=2))),
            "naive": times.tz_localize(None),
            ("a", 1): pd.to_timedelta([1, 2, None], unit="s"),
        }
    )
    multi = pd.MultiIndex.from_product([["x", "y"], [1, 2]], names=["a", None])
    values = [
        frame,
        frame.set_index("time"),
        frame[frame.number > 1],
        frame.iloc[:0],
        pd.DataFrame(),
        pd.DataFrame(index=range(2, 9, 3), columns=["a", "a"]),
        pd.DataFrame([[1, 2], [3, 4]], columns=pd.Index([7, 7], name="twice")),
        pd.DataFrame({"v": range(4)}, index=multi).T,
        pd.Series([1.5, 2.5], index=["a", "b"], name=("n", 1)),
        pd.Series(range(100_000)),
        pd.Series(["a", "b"], index=pd.CategoricalIndex(["x", "y"])),
    ]
    for value, received in zip(values, SERIALIZER.load(SERIALIZER.dump(values)), strict=True):
        same = pd.testing.assert_frame_equal if value.ndim == 2 else pd.testing.assert_series_equal
        same(received, value, check_freq=False)


def test_a_column_without_plain_values_is_refused_by_its_dtype(pd: Any) -> None:
    periods = pd.period_range("2024-01", periods=3, freq="M")
    with pytest.raises(pickle.PicklingError, match=r"dtype period\[M\]: put it as"):
        SERIALIZER.dump(pd.DataFrame({"a": periods}))


def test_frames_are_sent_without_pickles_of_pandas(pd: Any) -> None:
    dumped = SERIALIZER.dump([pd.DataFrame({"a": [1]}), pd.Series(["a"])])
    assert b"pandas." not in bytes(dumped.toview())
    # No state is set on what was made, and the parts are checked.
    made = b"".join(SERIALIZER.dump(pd.Series([1])).chunks)[:-1]
    buffers = SERIALIZER.dump(pd.Series([1])).buffers
    with pytest.raises(pickle.UnpicklingError, match="may not change"):
        SERIALIZER.load(nq.Stream([made + b"}b."], buffers))
    times = pd.date_range("2024", periods=1).to_numpy()
    make, (name, index, good) = optional[pd.Series](pd.Series([1]))
    assert SERIALIZER.load(SERIALIZER.dump(Call(make, (name, index, good)))).tolist() == [1]
    far = ("range", (0, 10**12, 1), None)
    for rows, parts in (
        (far, good),
        (index, ("array", 5)),
        (far, ("array", np.array(5))),
        (index, ("list", [1, 2])),
        (index, ("masked", ([1], [True]))),
        (index, ("zone", (times, "Europe/Paris"))),
        (index, ("category", (np.array([2], "i1"), ("index", good, None), False))),
        (index, ("category", (np.array([0], "i8"), ("index", good, None), False))),
    ):
        with pytest.raises(pickle.UnpicklingError):
            SERIALIZER.load(SERIALIZER.dump(Call(make, (name, rows, parts))))


class Plain:
    pass


def complete() -> Plain:
    return Plain()


def test_no_state_is_set_on_what_a_function_has_completed() -> None:
    """By allow_by_name, so that it needs none of the libraries."""
    serializer = nq.PickleSerializer(nq.PickleSerializer.allow_by_name(f"{__name__}.complete"))
    call = named(__name__, "complete") + b")R"
    state = whole(call, b"}", text("a"), b"K\x01sb")
    assert load(state, serializer).a == 1
    complete.__ucall_complete__ = True  # type: ignore[attr-defined]
    assert type(load(whole(call), serializer)) is Plain
    with pytest.raises(pickle.UnpicklingError, match="may not change"):
        load(state, serializer)


class Call:
    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


NOT_ALLOWED = """
import sys
from ucall import queue as nq
options = nq.CommunicatorOptions(netloc=nq.NetworkLocation("127.0.0.1", 0))
assert "pandas" not in sys.modules
import pandas
def refused():
    try:
        client.put(pandas.Series([1]))
    except nq.RefusedError as error:
        print(error)
with nq.new(purpose="server", options=options) as server:
    at = nq.CommunicatorOptions(netloc=nq.NetworkLocation(*server.address))
    with nq.new(options=at) as client:
        client.put(1).result(60)
        refused()
        nq.allow_pandas()
        client.put(pandas.Series([1, 2])).result(60)
        server.get(timeout=60)
        print(server.get(timeout=60).data.tolist())
"""


def output_of(source: str) -> str:
    with program(source) as process:
        output, errors = process.communicate(timeout=60)
    assert errors == ""
    return str(output)


def test_a_receiver_that_has_not_allowed_them_refuses() -> None:
    pytest.importorskip("pandas")
    refused, received = output_of(NOT_ALLOWED).splitlines()
    assert "call nq.allow_pandas() on both sides" in refused
    assert received == "[1, 2]"


ABSENT = """
import sys
for name in ("pandas", "torch"):
    sys.modules[name] = None
from ucall import queue as nq
for allow in (nq.allow_pandas, nq.allow_torch):
    try:
        allow()
    except ImportError as error:
        print(error)
"""


def test_an_absent_library_is_named() -> None:
    named = [f"allow_{name} needs {name}: pip install {name}" for name in ("pandas", "torch")]
    assert output_of(ABSENT).splitlines() == named
