"""What `put` refuses because no receiver can read it, and what receivers read."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ucall import queue as nq

np = pytest.importorskip("numpy", reason="numpy is not installed")

SERIALIZER = nq.PickleSerializer()


class Own(np.ndarray):  # type: ignore[misc]
    pass


RECORDS = np.zeros(2, [("a", "i4")]).view(np.recarray)


@pytest.mark.parametrize(
    "dtype",
    [
        [("xyz", "f4", 3), ("rgb", "u1", (3, 2))],
        [("points", [("xyz", "f4", 3)], 2), ("times", "M8[s]", 2), ("names", "U3", 1)],
        {"names": ["a"], "formats": [("i2", (4,))], "offsets": [6], "itemsize": 20},
    ],
    ids=["points", "nested", "offsets"],
)
def test_fields_of_a_fixed_number_of_items_come_back(dtype: Any) -> None:
    array = np.frombuffer(bytes(range(256)) * 40, np.dtype(dtype), 5).copy()
    received = SERIALIZER.load(SERIALIZER.dump(array))
    assert received.dtype == array.dtype and received.tobytes() == array.tobytes()


def test_a_field_of_many_objects_is_refused() -> None:
    array = np.zeros(2, [("a", "O", 3)])
    with pytest.raises(pickle.UnpicklingError):
        SERIALIZER.load(nq.Stream([pickle.dumps(array, 5)]))
    for refused in (array, np.zeros(2, [("a", "O")])):
        with pytest.raises(pickle.PicklingError, match="no receiver makes an array of dtype"):
            SERIALIZER.dump([refused])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.array(["a", None], dtype=object), "array of dtype object: put a list, or an array of"),
        (RECORDS, r"numpy\.rec(\.|array).*: put numpy\.asarray\(array\)"),
        (RECORDS[0], r"record: put numpy\.asarray\(array\), or item\(\)"),
        (np.zeros(3).view(Own), "Own: put numpy"),
    ],
    ids=["objects", "recarray", "record", "own"],
)
def test_put_refuses_arrays_that_no_receiver_makes(value: Any, reason: str) -> None:
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation("127.0.0.1", 0))
    with nq.new(purpose="server", options=options) as server:
        for message in (value, [1, {"a": value}]):
            with pytest.raises(pickle.PicklingError, match=reason):
                server.put(message)
    # A receiver that trusts its peers reads it.
    trusting = nq.PickleSerializer(trust=True)
    assert type(trusting.load(trusting.dump(value))) is type(value)


def test_what_the_refusal_says_helps() -> None:
    received = SERIALIZER.load(SERIALIZER.dump([np.asarray(RECORDS), RECORDS[0].item()]))
    assert type(received[0]) is np.ndarray and received[0].dtype.fields.keys() == {"a"}
    assert received[1] == (0,)


@pytest.mark.parametrize("kind", [np.recarray, np.record, Own])
def test_allow_refuses_classes_that_it_cannot_help(kind: type) -> None:
    with pytest.raises(TypeError, match=r"put numpy\.asarray\(array\).*allow_by_name"):
        nq.allow(kind)
