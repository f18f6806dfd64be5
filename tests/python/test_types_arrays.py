"""NumPy arrays and scalars as parameters and results."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ucall
from harness import Wire
from ucall.types.arrays import ArrayType, encode_array

ConnectTo = Callable[..., Wire]

DTYPES = [
    *("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G"),
    *(">i2", ">i8", ">u4", ">f4", ">f8", ">c16"),
]


def npy(array: NDArray[Any]) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def loaded(result: str) -> NDArray[Any]:
    file = io.BytesIO(base64.b64decode(result, validate=True))
    array: NDArray[Any] = np.load(file, allow_pickle=False)
    assert not file.read()
    return array


def echo(a: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    assert a.flags.writeable
    a.reshape(-1)[:0] = 0
    return a


def sample(dtype: str) -> NDArray[Any]:
    return (np.arange(24) % 5).reshape(2, 3, 4).astype(dtype)


LAYOUTS: list[Callable[[NDArray[Any]], NDArray[Any]]] = [
    lambda a: a,
    np.asfortranarray,
    lambda a: a[:, ::2, ::-1],
    lambda a: a.transpose(1, 2, 0),
    lambda a: a[0, 0, :1],
    lambda a: a[0, 0, :1].reshape(()),
    lambda a: a[:0],
    lambda a: a[:, :0].copy("F"),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_layout_round_trips(connect_to: ConnectTo, dtype: str) -> None:
    made: list[NDArray[Any]] = []

    def give() -> NDArray[Any]:
        return made[0]

    wire = connect_to(echo, give)
    for layout in LAYOUTS:
        array = layout(sample(dtype))
        for result in (wire.result("echo", [npy(array)]), _given(wire, made, array)):
            back = loaded(result)
            assert (back.dtype, back.shape) == (array.dtype, array.shape)
            assert back.tobytes() == array.tobytes()
            assert back.flags.f_contiguous == array.flags.f_contiguous or not array.flags.forc


def _given(wire: Wire, made: list[NDArray[Any]], array: NDArray[Any]) -> Any:
    made[:] = [array]
    return wire.result("give")


def test_lists_are_accepted_as_arrays(connect_to: ConnectTo) -> None:
    def kind(a: np.ndarray) -> list[object]:  # type: ignore[type-arg]
        return [str(a.dtype), list(a.shape)]

    wire = connect_to(kind)
    assert wire.result("kind", [[1, 2]]) == ["int64", [2]]
    assert wire.result("kind", [[[1, 2.5], [3, 4]]]) == ["float64", [2, 2]]
    assert wire.result("kind", [[2**64, 1.5]]) == ["float64", [2]]
    assert wire.result("kind", [[True]]) == ["bool", [1]]
    assert wire.result("kind", [[2**63]]) == ["uint64", [1]]
    assert wire.result("kind", [[]]) == ["float64", [0]]
    assert wire.result("kind", [[[], []]]) == ["float64", [2, 0]]


def of_float32(a: NDArray[np.float32]) -> str:
    return str(a.dtype)


def of_uint8(a: NDArray[np.uint8]) -> list[object]:
    return [str(a.dtype), a]


def of_uint64(a: NDArray[np.uint64]) -> list[int]:
    result: list[int] = a.tolist()
    return result


def of_integers(a: NDArray[np.integer[Any]]) -> str:
    return str(a.dtype)


def of_floats(a: NDArray[np.floating[Any]]) -> str:
    return str(a.dtype)


def of_either(a: NDArray[np.int16 | np.bool_]) -> str:
    return str(a.dtype)


def of_any(a: NDArray[Any]) -> str:
    return str(a.dtype)


def of_matrix(a: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[int]:
    return list(a.shape)


def of_complex(a: NDArray[np.complex128]) -> str:
    return str(a.dtype)


VALID: list[tuple[Callable[..., object], Any, Any]] = [
    (of_float32, np.zeros(2, "f4"), "float32"),
    (of_float32, np.zeros(2, ">f4"), "float32"),
    (of_float32, np.zeros(2, "i2"), "float32"),
    (of_float32, [1, 2.5], "float32"),
    (of_float32, [], "float32"),
    (of_floats, np.zeros(2, "f2"), "float16"),
    (of_floats, [1.5], "float64"),
    (of_floats, [], "float64"),
    (of_uint64, [2**64 - 1, 0], [2**64 - 1, 0]),
    (of_uint64, [[2**63], [2**63 - 1]], [[2**63], [2**63 - 1]]),
    (of_integers, [2**63, 1], "uint64"),
    (of_integers, [], "int64"),
    (of_integers, [[], []], "int64"),
    (of_either, np.zeros(2, "?"), "bool"),
    (of_either, np.zeros(2, "i1"), "int16"),
    (of_either, [True], "bool"),
    (of_either, [-3], "int16"),
    (of_any, np.zeros(2, ">i4"), ">i4"),
    (of_complex, [1, 2.5], "complex128"),
    (of_complex, np.zeros(1, "c8"), "complex128"),
    (of_matrix, [[1], [2]], [2, 1]),
    (of_matrix, np.zeros((3, 0)), [3, 0]),
]


@pytest.mark.parametrize(("function", "given", "result"), VALID)
def test_dtypes_are_converted_safely(
    connect_to: ConnectTo, function: Callable[..., object], given: Any, result: Any
) -> None:
    param = npy(given) if isinstance(given, np.ndarray) else given
    assert connect_to(function).result(function.__name__, [param]) == result


BEYOND_64_BITS = "array of uint64 {how}: a number is out of the range of 64-bit integers"

ANY = " annotate the parameter as numpy.ndarray, which takes any dtype"

MISMATCHES: list[tuple[Callable[..., object], Any, str]] = [
    (
        of_float32,
        np.zeros(2),
        "array of float32 {how}, got one of float64; send it after .astype('float32'), or" + ANY,
    ),
    (
        of_float32,
        np.zeros(2, "i4"),
        "array of float32 {how}, got one of int32; send it after .astype('float32'), or" + ANY,
    ),
    (of_float32, [1e300], "array of float32 {how}: a number is out of the range of float32"),
    (of_float32, [True], "array of float32 {how}, got a list of bool"),
    (of_float32, [1, "2"], "array of float32 {how}, got a list with str in it"),
    (of_float32, [1, None], "array of float32 {how}, got a list with None in it"),
    (of_float32, 1.5, "array of float32 {how}, got float"),
    (of_float32, None, "array of float32 {how}, got None"),
    (of_float32, "AAA", "array of float32 {how}, got a str that is no base64"),
    (of_uint8, [-1], "array of uint8 {how}: a number is out of the range of uint8"),
    (of_uint8, [256], "array of uint8 {how}: a number is out of the range of uint8"),
    (of_uint8, [2**63, 1], "array of uint8 {how}: a number is out of the range of uint8"),
    (of_uint64, [2**64, 1], BEYOND_64_BITS),
    (of_uint64, [2**63, -1], BEYOND_64_BITS),
    (of_uint8, [1.0], "array of uint8 {how}, got a list of float"),
    (of_uint8, [2**70], "array of uint8 {how}: a number is out of the range of 64-bit integers"),
    (of_floats, np.zeros(1, "i4"), "array of floating {how}, got one of int32;" + ANY),
    (
        of_either,
        np.zeros(1, "i4"),
        "array of int16 or bool {how}, got one of int32; send it after .astype('int16'), or" + ANY,
    ),
    (of_either, [True, 1], "array of int16 or bool {how}, got a list of bool and int"),
    (of_matrix, [1], "2-d array of float64 {how}, got one of 1 dimensions"),
    (of_any, [2**63, -1], "array {how}: a number is out of the range of 64-bit integers"),
    (of_any, [10**400, 1.5], "array {how}: int too large to convert to float"),
]


@pytest.mark.parametrize(("function", "given", "problem"), MISMATCHES)
def test_unsafe_conversions_are_refused(
    connect_to: ConnectTo, function: Callable[..., object], given: Any, problem: str
) -> None:
    param = npy(given) if isinstance(given, np.ndarray) else given
    error = connect_to(function).error(function.__name__, [param])
    assert error["code"] == -32602
    expected = problem.format(how="(.npy in base64, or nested lists)")
    assert error["data"] == f"params.a: expected {expected}"


def test_ragged_lists_are_refused(connect_to: ConnectTo) -> None:
    wire = connect_to(echo)
    for ragged in ([[1], [1, 2]], [[1], 2], [[[1]], [2]]):
        error = wire.error("echo", [ragged])
        assert error["code"] == -32602 and "inhomogeneous" in error["data"]


UNSUPPORTED: list[NDArray[Any]] = [
    np.zeros(2, [("a", "i4"), ("b", "f8")]),
    np.array(["text"]),
    np.array([b"bytes"]),
    np.array(["2020-01-01"], "M8[D]"),
    np.zeros(1, "m8[s]"),
    np.zeros(1, "V8"),
]


@pytest.mark.parametrize("array", UNSUPPORTED, ids=lambda array: str(array.dtype))
def test_other_dtypes_are_refused_both_ways(connect_to: ConnectTo, array: NDArray[Any]) -> None:
    def give() -> NDArray[Any]:
        return array

    wire = connect_to(echo, give)
    error = wire.error("echo", [npy(array)])
    assert error["code"] == -32602 and "only bool and numbers" in error["data"]
    error = wire.error("give")
    assert error["code"] == -32603
    assert error["data"].startswith("result: an array of dtype") and "only bool" in error["data"]


@pytest.mark.parametrize("scalar", [np.object_, np.str_, np.datetime64, np.void])
def test_other_dtypes_are_refused_at_registration(scalar: type) -> None:
    def function(a):  # type: ignore[no-untyped-def]
        return a

    function.__annotations__["a"] = np.ndarray[Any, np.dtype[scalar]]  # type: ignore[valid-type]
    with pytest.raises(TypeError, match=r"function: parameter 'a': .* only bool and numbers can"):
        ucall.Server(port=0).add(function)


def test_object_arrays_are_never_written(connect_to: ConnectTo) -> None:
    def objects() -> object:
        return np.array([object()])

    def masked() -> object:
        return np.ma.masked_array([1, 2], [True, False])

    wire = connect_to(objects, masked)
    assert "dtype object cannot be sent" in wire.error("objects")["data"]
    assert "masked array" in wire.error("masked")["data"]


SCALARS: list[tuple[Any, Any]] = [
    (np.True_, True),
    (np.int8(-3), -3),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.float16(0.5), 0.5),
    (np.float32(0.5), 0.5),
    (np.float64(0.1), 0.1),
    (np.longdouble(0.25), 0.25),
    (np.str_("x"), "x"),
    (np.datetime64("2020-01-02T03:04:05"), "2020-01-02T03:04:05"),
]


@pytest.mark.parametrize(("scalar", "result"), SCALARS)
def test_scalars_are_written_as_numbers(connect_to: ConnectTo, scalar: Any, result: Any) -> None:
    def give() -> object:
        return {"one": scalar, "many": [scalar]}

    assert connect_to(give).result("give") == {"one": result, "many": [result]}


def test_scalars_of_functions_of_arrays_are_arrays(serve: Callable[..., ucall.Server]) -> None:
    def total(a: NDArray[Any]) -> NDArray[Any]:
        return a.sum()  # type: ignore[no-any-return]

    def halves(a: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return a.sum(dtype="f2")  # type: ignore[no-any-return]

    async def any_true(a: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return a.any()  # type: ignore[return-value]

    def total_of_object(a: np.ndarray) -> object:  # type: ignore[type-arg]
        return a.sum()

    server = serve(total, halves, any_true, total_of_object)
    server.add(total, name="in_thread", threads=True)
    with Wire(server.port) as wire:
        for name, expected in [
            ("total", np.array(3.0)),
            ("in_thread", np.array(3.0)),
            ("halves", np.array(3.0, "f2")),
            ("any_true", np.array(True)),
        ]:
            found = loaded(wire.result(name, [[1.0, 2.0]]))
            assert (found.shape, found.dtype) == ((), expected.dtype) and found == expected
        assert wire.result("total_of_object", [[1.0, 2.0]]) == 3.0


def test_scalars_are_arrays_for_functions_of_every_kind(serve: Callable[..., ucall.Server]) -> None:
    def sums(a: NDArray[Any]) -> NDArray[Any]:
        return a.sum(axis=1)  # type: ignore[no-any-return]

    def listed(a: NDArray[Any]) -> list[NDArray[Any]]:
        return list(a.sum(axis=1))

    async def later(a: NDArray[Any]) -> np.ndarray:  # type: ignore[type-arg]
        return a.sum(axis=1)  # type: ignore[no-any-return]

    def yielded(a: list[NDArray[Any]]) -> Iterator[list[NDArray[Any]]]:
        yield [it.sum() for it in a]

    def numbers(a: NDArray[Any]) -> list[float]:
        return list(a.sum(axis=1))

    def items(a: NDArray[Any]) -> Iterator[NDArray[Any]]:
        yield from a

    async def items_later(a: NDArray[Any]) -> AsyncIterator[NDArray[Any]]:
        for item in a:
            yield item

    def number_items(a: NDArray[Any]) -> Iterator[float]:
        yield from a

    server = serve(items, items_later, number_items)
    server.add(items, name="items_of_thread", threads=True)
    server.add(_total_of_process, processes=1)
    for function in (sums, listed, later, numbers, yielded):
        server.batch(max_size=4)(function)
    server.batch(max_size=4, threads=True, name="sums_of_thread")(sums)
    with Wire(server.port) as wire:
        for name in ("sums", "listed", "later", "sums_of_thread", "_total_of_process"):
            _check_scalar(name, wire.result(name, [npy(np.array([1, 2], "f4"))]))
        for name in ("items", "items_later", "items_of_thread", "yielded"):
            found = wire.result(name, [npy(np.array([3], "f4"))])
            _check_scalar(name, found[0])
        assert wire.result("numbers", [[1, 2]]) == 3
        assert wire.result("number_items", [[1.0, 2.0]]) == [1.0, 2.0]


def _total_of_process(a: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return a.sum()  # type: ignore[no-any-return]


def _check_scalar(name: str, result: Any) -> None:
    """Checks that it is an array of float32 without dimensions, whose item is 3."""
    assert isinstance(result, str), name
    found = loaded(result)
    assert (found.shape, found.dtype) == ((), np.dtype("f4")) and found == 3, name


def test_bfloat16_needs_its_package(connect_to: ConnectTo) -> None:
    wire = connect_to(echo)
    header = _header("{'descr': 'bfloat16', 'fortran_order': False, 'shape': (8,)}")
    if importlib.util.find_spec("ml_dtypes"):
        assert "'bfloat16'" in base64.b64decode(wire.result("echo", [header])).decode("latin1")
        return
    problem = "bfloat16 needs ml_dtypes, which the server lacks: pip install ml-dtypes"
    assert wire.error("echo", [header])["data"].endswith(problem)


def test_registered_arrays_are_encoded_as_registered(
    serve_once: Callable[..., ucall.Server],
) -> None:
    class Special(np.ndarray):  # type: ignore[type-arg]
        pass

    def give() -> list[object]:
        return [np.ones(1).view(Special), np.ones(1)]

    server = serve_once(give)
    server.register_type(Special, lambda value: "special", lambda value: value)
    with Wire(server.port) as wire:
        special, plain = wire.result("give")
        assert special == "special" and loaded(plain).tolist() == [1]


@pytest.mark.parametrize("scalar", [np.float32("nan"), np.complex64(1j), np.timedelta64(1, "s")])
def test_other_scalars_are_refused(connect_to: ConnectTo, scalar: Any) -> None:
    def give() -> object:
        return [scalar]

    error = connect_to(give).error("give")
    assert error["code"] == -32603 and error["data"].startswith("result[0]: ")


def test_scalars_may_be_keys(connect_to: ConnectTo) -> None:
    def count() -> dict[Any, int]:
        return {np.int64(3): 1, np.str_("a"): 2}

    assert connect_to(count).result("count") == {"3": 1, "a": 2}


@dataclass
class Reading:
    name: str
    values: NDArray[np.float32]
    mask: NDArray[np.bool_] | None = None


def double(reading: Reading, more: dict[str, NDArray[np.int32]]) -> list[object]:
    assert reading.values.dtype == np.float32
    doubled = Reading(reading.name, reading.values * 2, reading.mask)
    return [doubled, {key: value + 1 for key, value in more.items()}]


def test_arrays_nest_in_other_types(connect_to: ConnectTo) -> None:
    wire = connect_to(double)
    reading = {"name": "a", "values": [1, 2], "mask": npy(np.array([True]))}
    doubled, more = wire.result("double", [reading, {"k": [1]}])
    assert doubled["name"] == "a" and loaded(doubled["values"]).tolist() == [2, 4]
    assert loaded(doubled["mask"]).tolist() == [True]
    assert loaded(more["k"]).tolist() == [2]

    for values, problem in [
        (npy(np.zeros(1)), "got one of float64"),
        ("?", "got a str that is no base64"),
        (None, "got None"),
    ]:
        error = wire.error("double", [{"name": "a", "values": values}, {}])
        assert error["code"] == -32602
        assert error["data"].startswith("params.reading.values: expected array of float32 (")
        assert problem in error["data"]
    assert wire.error("double", [reading, {"k": 1}])["data"].startswith("params.more.k: expected a")


@dataclass
class Strange:
    values: NDArray[np.object_]


def test_a_class_with_other_dtypes_is_refused_at_registration() -> None:
    def function(a: list[Strange]) -> None: ...

    with pytest.raises(TypeError, match=r"function: parameter 'a': Strange\.values: .* only bool"):
        ucall.Server(port=0).add(function)


def _header(text: str, version: bytes = b"\1\0") -> str:
    header = text.encode() + b" " * (-len(text) % 64) + b"\n"
    length = len(header).to_bytes(2 if version == b"\1\0" else 4, "little")
    return base64.b64encode(b"\x93NUMPY" + version + length + header + bytes(16)).decode()


HOSTILE = [
    _header("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,)}"),
    _header("{'descr': '<f8', 'fortran_order': False, 'shape': (-2,)}"),
    _header("{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}"),
    _header("{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}"),
    _header("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 99999999999999999999)}"),
    _header("{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807, 4)}"),
    _header("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}"),
    _header("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (2,)}"),
    _header("{'descr': '|V0', 'fortran_order': False, 'shape': (2,)}"),
    _header("{'descr': '<f8', 'fortran_order': False, 'shape': " + "(" * 500 + ")" * 500 + "}"),
    _header("{'descr': '<f8', 'fortran_order': False, 'shape': " + "1+" * 4000 + "1}"),
    _header("__import__('os').abort()"),
    _header("{}", b"\2\0"),
    _header("{}", b"\3\0"),
    _header("{}", b"\7\0"),
    base64.b64encode(b"\x93NUMPY\1\0\xff\xff").decode(),
    base64.b64encode(b"\x93NUMPY").decode(),
    base64.b64encode(b"cos\nsystem\n(S'true'\ntR.").decode(),
    "",
]


@pytest.mark.parametrize("file", HOSTILE)
def test_hostile_files_are_refused(connect_to: ConnectTo, file: str) -> None:
    wire = connect_to(echo)
    error = wire.error("echo", [file])
    assert error["code"] == -32602 and error["data"].startswith("params.a: expected array")
    assert loaded(wire.result("echo", [[1]])).tolist() == [1]


def test_hostile_base64_is_refused(connect_to: ConnectTo) -> None:
    wire = connect_to(echo)
    file = npy(np.arange(99, dtype="u1"))
    assert file[255] != "=" and len(file) > 260
    # The first 256 characters are decoded before the others.
    for wrong in (file[:255] + "=" + file[256:], file[:-1], file[:290] + " " + file[291:]):
        assert "no base64" in wire.error("echo", [wrong])["data"]
    assert loaded(wire.result("echo", [file])).tolist() == list(range(99))


def test_casts_are_those_of_numpy() -> None:
    dtypes = [np.dtype(name) for name in DTYPES[:16]]
    for wanted in dtypes:
        taken = ArrayType(None, [wanted])
        for given in dtypes:
            array = np.zeros(1, given)
            is_safe = np.can_cast(given, wanted, "safe")
            try:
                made = taken.decode(bytearray(encode_array(array)))
            except ValueError:
                assert not is_safe, (given, wanted)
            else:
                assert is_safe and made.dtype == wanted, (given, wanted)


def test_a_pickle_is_refused_without_loading(connect_to: ConnectTo) -> None:
    file = io.BytesIO()
    np.save(file, np.array([print], object), allow_pickle=True)
    error = connect_to(echo).error("echo", [base64.b64encode(file.getvalue()).decode()])
    assert error["code"] == -32602 and "dtype object" in error["data"]
