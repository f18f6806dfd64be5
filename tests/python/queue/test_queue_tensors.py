"""PyTorch's tensors arrive as they were put, from data alone.

The tests of memory and of names need no PyTorch.
"""

from __future__ import annotations

import collections
import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pairs import Pairs
from pickled import both_ways, load, named, text, whole

from ucall import queue as nq
from ucall.queue.utils.arrays import Writable, optional, writable

np = pytest.importorskip("numpy", reason="numpy is not installed")

SERIALIZER = nq.PickleSerializer()
# Shared memory of more is viewed, which is read-only.
VIEWED_BYTES = (4 << 20) + 1


def test_a_tensor_that_nothing_allows_is_refused_by_the_function_to_call() -> None:
    with pytest.raises(nq.RefusedError, match=r"call nq\.allow_torch\(\) on both sides"):
        load(whole(named("torch._utils", "_rebuild_tensor_v2"), b")R"))


@pytest.mark.parametrize("pairs", ["shm"], indirect=True)
def test_memory_that_may_not_be_written_is_copied(pairs: Pairs) -> None:
    server = pairs.server()
    client = pairs.client(server)
    client.put("here")
    server.get(timeout=60)
    client.put([Writable(np.full(VIEWED_BYTES, 7, "u1")), np.zeros(VIEWED_BYTES, "u1")])
    given, plain = server.get(timeout=60).data
    assert given.flags.behaved and not plain.flags.writeable
    assert (given == 7).all()
    for some in (np.arange(3.0), np.zeros((2, 0)), np.ones((2, 3), order="F"), np.array(5)):
        for received in both_ways(Writable(some)):
            assert received.flags.behaved and received.dtype == some.dtype
            assert received.flags.c_contiguous == some.flags.c_contiguous
            assert np.array_equal(received, some)


def test_a_message_that_repeats_memory_gets_one_copy() -> None:
    rest = text("<i4") + b"K\x03\x85" + text("C") + b"tR"
    call = named(writable.__module__, writable.__name__) + b"("
    repeated = whole(b"]", call, b"\x97\x94", rest, b"a", call, b"h\x00", rest, b"a")
    aligned = memoryview(bytearray(64))
    start = -np.frombuffer(aligned, "u1").ctypes.data % 16
    for memory, is_copied in (
        (bytes(range(12)), True),
        (aligned[start + 4 : start + 16], True),
        (aligned[start : start + 12], False),
    ):
        first, second = SERIALIZER.load(nq.Stream([repeated], [memory]))
        assert first.flags.behaved and first.ctypes.data % 16 == 0
        assert np.shares_memory(first, second)
        assert np.shares_memory(first, np.frombuffer(memory, "u1")) is not is_copied
        assert first.tobytes() == bytes(memory)


@pytest.fixture
def torch() -> Iterator[Any]:
    found = pytest.importorskip("torch")
    nq.allow_torch()
    yield found


def sent(value: Any) -> Any:
    return SERIALIZER.load(SERIALIZER.dump(value))


def is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other) and one.dtype == other.dtype


@pytest.mark.filterwarnings("ignore:.*experimental")
def test_tensors_of_each_dtype_come_back(torch: Any) -> None:
    for dtype in {it for it in vars(torch).values() if isinstance(it, torch.dtype)}:
        if str(dtype).startswith("torch.q"):
            continue
        items = torch.arange(24 * dtype.itemsize).to(torch.uint8) % 2
        tensor = items.view(dtype).view(2, 3, 4)
        received, name = sent([tensor, dtype])
        assert name is dtype and received.dtype is dtype and received.shape == (2, 3, 4)
        assert received.view(-1).view(torch.uint8).equal(items)


def test_tensors_of_each_layout_come_back(torch: Any) -> None:
    whole = torch.arange(24.0).view(2, 3, 4)
    complex_ = torch.tensor([1 + 2j, 3 - 1j])
    tensors = [
        *(whole, whole.mT, whole.permute(2, 0, 1), whole[:, 1:, ::2], whole[0, 0, 0], whole[:0]),
        *(whole[0, 0, :1].expand(3, 5), whole[1], torch.tensor(True), torch.zeros(2, 0, 3)),
        *(complex_.conj(), complex_.conj().imag, whole.bfloat16()[1:, :, 1]),
        whole.view(2, 3, 2, 2).to(memory_format=torch.channels_last),
    ]
    assert all(map(is_same, tensors, sent(tensors)))


@dataclasses.dataclass
class Batch:
    images: Any
    labels: Any


def test_tensors_come_back_within_other_objects(torch: Any) -> None:
    nq.allow(Batch)
    tensor = torch.ones(3, dtype=torch.bfloat16)
    value = {"a": [Batch(tensor, torch.tensor([1, 2]))], "size": tensor.shape, "b": tensor}
    places = torch.device("cuda:1"), torch.device("cpu")
    received, found = sent([value, places])
    batch = received["a"][0]
    assert batch.images is received["b"] and is_same(batch.images, tensor)
    assert batch.labels.tolist() == [1, 2]
    assert received["size"] == (3,) and type(received["size"]) is torch.Size
    assert found == places


def test_the_state_of_a_module_comes_back(torch: Any) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    state, plain = module.state_dict(), collections.OrderedDict(a=1)
    received, same = sent([state, plain])
    assert same == plain and type(same) is type(plain)
    assert received._metadata == state._metadata
    other = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    other.load_state_dict(received)
    assert all(map(is_same, other.state_dict().values(), state.values()))


@pytest.mark.parametrize("pairs", ["shm"], indirect=True)
def test_a_tensor_is_independent_of_its_sender(torch: Any, pairs: Pairs) -> None:
    server = pairs.server()
    client = pairs.client(server)
    for size in (VIEWED_BYTES, 8):
        put = torch.ones(size, dtype=torch.uint8)
        client.put([put, put[:4]]).result(60)
        received, part = server.get(timeout=60).data
        put += 1
        received[:] = 5
        assert part.tolist() == [1] * 4 and received[:4].tolist() == [5] * 4


@pytest.mark.filterwarnings("ignore:")
def test_put_refuses_what_is_no_data_and_names_what_to_call(torch: Any) -> None:
    ones, parameter = torch.ones(3, requires_grad=True), torch.nn.Parameter(torch.ones(2))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    refused = [
        (ones, r"requires_grad: put tensor\.detach\(\)$"),
        (ones * 2, r"requires_grad: put tensor\.detach\(\)$"),
        (parameter, r"requires_grad: put tensor\.detach\(\), or module\.state_dict\(\)$"),
        (frozen, r"put tensor\.detach\(\)"),
        (torch.nn.Linear(2, 2), r"or module\.state_dict\(\)"),
        (ones.to_sparse(), r"layout torch.sparse_coo: put tensor\.detach\(\)\.to_dense\(\)"),
        (torch.eye(2).to_sparse_csr(), r"sparse_csr: put tensor\.to_dense\(\)"),
        (torch.nested.nested_tensor([torch.ones(2)]), r"put tensor\.unbind\(\)"),
        (torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.qint8), r"tensor\.dequantize\(\)"),
        (torch.ones(2, device="meta"), "device meta has no data"),
        (
            torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {})),
            r"Own: put a plain torch\.Tensor",
        ),
    ]
    for value, reason in refused:
        with pytest.raises(pickle.PicklingError, match=reason):
            SERIALIZER.dump([value])


def test_a_tensor_on_another_device_is_refused(torch: Any) -> None:
    class Elsewhere:
        """What a tensor of another device says of itself: none need be here."""

        def __getattr__(self, name: str) -> Any:
            own = {"is_cpu": False, "device": "cuda:0"}
            return own[name] if name in own else getattr(torch.ones(1), name)

    with pytest.raises(pickle.PicklingError, match=r"device cuda:0: put tensor\.\S*cpu\(\)"):
        optional[torch.Tensor](Elsewhere())


def test_the_parts_of_a_tensor_are_checked(torch: Any) -> None:
    dumped = bytes(SERIALIZER.dump([torch.ones(2), torch.Size([1]), torch.int8]).toview())
    assert b"torch._" not in dumped and b"_rebuild" not in dumped
    make, _ = optional[torch.Tensor](torch.ones(1))
    items = np.ones(2, "i4")
    assert is_same(make(items, "torch.int32"), torch.ones(2, dtype=torch.int32))
    size, _ = optional[torch.Size](torch.Size([1]))
    device, _ = optional[torch.device](torch.device("cpu"))
    read_only = np.ones(2, "i4")
    read_only.flags.writeable = False
    shifted = np.frombuffer(bytearray(9), "u1")[1:].view("i4")
    state = optional[collections.OrderedDict](torch.nn.Linear(1, 1).state_dict())[0]
    for call in (
        (make, items, "torch.int16"),
        (make, items, "torch.Tensor"),
        (make, items, "int32"),
        (make, items, ["torch.int32"]),
        (make, read_only, "torch.int32"),
        (make, shifted, "torch.int32"),
        (make, [1, 2], "torch.int32"),
        (make, items, "torch.qint32"),
        (make, np.full(2, 2, "u1"), "torch.bool"),
        (size, range(3)),
        (size, ("a",)),
        (device, 5),
        (device, "nowhere"),
        (state, {}, {}),
    ):
        with pytest.raises(nq.RefusedError):
            SERIALIZER.load(SERIALIZER.dump(Call(*call)))


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced
