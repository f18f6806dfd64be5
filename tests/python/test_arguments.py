"""Params of a function: by name, by position, defaults, and rejected ones."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from harness import Wire

ConnectTo = Callable[..., Wire]


def plain(a: int, b: int) -> int:
    return a - b


def with_defaults(a: int, b: str = "two", c: float = 0.5) -> list[Any]:
    return [a, b, c]


def positional_only(a: int, b: int = 2, /, c: int = 3) -> list[int]:
    return [a, b, c]


def keyword_only(a: int, *, b: int, c: int = 3) -> list[int]:
    return [a, b, c]


def gathering(a: int, *rest: int, b: str = "b", **extra: float) -> list[Any]:
    return [a, list(rest), b, extra]


def shadowing(a: int, /, **extra: int) -> list[Any]:
    return [a, extra]


def nothing() -> str:
    return "nothing"


def bare(a, b=None):  # type: ignore[no-untyped-def]
    return [a, b]


def many(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int, j: int) -> int:
    return a - b + c - d + e - f + g - h + i - j


RESULTS: list[tuple[Callable[..., Any], Any, Any]] = [
    (plain, {"a": 5, "b": 3}, 2),
    (plain, {"b": 3, "a": 5}, 2),
    (plain, [5, 3], 2),
    (with_defaults, {"a": 1}, [1, "two", 0.5]),
    (with_defaults, {"c": 2, "a": 1}, [1, "two", 2.0]),
    (with_defaults, [1, "x"], [1, "x", 0.5]),
    (positional_only, [1], [1, 2, 3]),
    (positional_only, [7, 8, 9], [7, 8, 9]),
    (keyword_only, {"a": 1, "b": 2}, [1, 2, 3]),
    (keyword_only, {"c": 9, "b": 2, "a": 1}, [1, 2, 9]),
    (gathering, [1], [1, [], "b", {}]),
    (gathering, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, [2, 3, 4, 5, 6, 7, 8, 9, 10], "b", {}]),
    (gathering, {"a": 1}, [1, [], "b", {}]),
    (gathering, {"x": 1, "a": 1, "y": 2, "b": "c"}, [1, [], "c", {"x": 1.0, "y": 2.0}]),
    (shadowing, [1], [1, {}]),
    (nothing, None, "nothing"),
    (nothing, [], "nothing"),
    (nothing, {}, "nothing"),
    (bare, {"a": [None, True], "b": {"c": 1.5}}, [[None, True], {"c": 1.5}]),
    (many, list(range(10)), -5),
    (many, dict(zip("abcdefghij", range(10), strict=True)), -5),
]


@pytest.mark.parametrize(("function", "params", "result"), RESULTS)
def test_params_reach_the_function(
    connect_to: ConnectTo, function: Callable[..., Any], params: Any, result: Any
) -> None:
    assert connect_to(function).result(function.__name__, params) == result


A, S = "missing, expected int", "expected int, got str"
PAST = "params[{}]: unexpected, expected at most {}"

MISMATCHES: list[tuple[Callable[..., Any], Any, str]] = [
    (plain, {"a": 1}, "params.b: missing, expected int"),
    (plain, {"b": 1}, "params.a: missing, expected int"),
    (plain, [1], "params.b: missing, expected int"),
    (plain, None, f"params.a: {A}\nparams.b: {A}"),
    (plain, {"a": 1, "b": 2, "c": 3}, "params.c: unexpected, expected a, b"),
    (plain, {"a": 1, "b": 2, "a b": 3}, 'params["a b"]: unexpected, expected a, b'),
    (plain, {"": 1, "a": 2, "b": 3}, 'params[""]: unexpected, expected a, b'),
    (plain, {"x" * 1000: 1, "a": 2, "b": 3}, f"params.{'x' * 64}…: unexpected, expected a, b"),
    (plain, [1, 2, 3], "params[2]: unexpected, expected at most 2 params"),
    (nothing, [1], "params[0]: unexpected, expected no params"),
    (nothing, {"a": 1}, "params.a: unexpected, expected no params"),
    (plain, {"a": "1", "b": 2}, "params.a: expected int, got str"),
    (plain, ["1", 2], "params.a: expected int, got str"),
    (
        plain,
        {"b": "1", "c": 2},
        f"params.b: {S}\nparams.c: unexpected, expected a, b\nparams.a: {A}",
    ),
    (
        plain,
        ["1", None, 3],
        f"params.a: {S}\nparams.b: expected int, got None\n{PAST.format(2, '2 params')}",
    ),
    (
        positional_only,
        {"a": 1},
        "params.a: unexpected, expected by position only, in an array of params\n"
        "params.a: missing, expected int",
    ),
    (shadowing, {"a": 1}, "params.a: missing, expected int"),
    (keyword_only, {"a": 1}, "params.b: missing, expected int"),
    (keyword_only, [1, 2], f"{PAST.format(1, '1 param')}\nparams.b: {A}"),
    (keyword_only, [1], "params.b: missing, expected int"),
    (gathering, [1, "2"], "params[1]: expected int, got str"),
    (gathering, {"a": 1, "x": "1"}, "params.x: expected float, got str"),
    (bare, [], "params.a: missing, expected any value"),
]


@pytest.mark.parametrize(("function", "params", "problem"), MISMATCHES)
def test_mismatches_are_named(
    connect_to: ConnectTo, function: Callable[..., Any], params: Any, problem: str
) -> None:
    error = connect_to(function).error(function.__name__, params)
    assert error == {"code": -32602, "message": "Invalid params", "data": problem}


def test_the_last_of_duplicate_keys_counts(connect_to: ConnectTo) -> None:
    wire = connect_to(plain, gathering)
    wire.send(b'{"jsonrpc":"2.0","id":1,"method":"plain","params":{"a":1,"b":2,"a":9}}')
    assert wire.line() == b'{"jsonrpc":"2.0","id":1,"result":7}'
    wire.send(b'{"jsonrpc":"2.0","id":1,"method":"gathering","params":{"a":1,"x":2,"x":3}}')
    assert wire.line() == b'{"jsonrpc":"2.0","id":1,"result":[1,[],"b",{"x":3.0}]}'


def test_names_may_be_escaped_and_in_any_script(connect_to: ConnectTo) -> None:
    def größe(länge: int, ж: int) -> int:
        return länge - ж

    wire = connect_to(größe)
    assert wire.result("größe", {"länge": 3, "ж": 1}) == 2
    wire.send('{"jsonrpc":"2.0","id":1,"method":"größe","params":{"länge":3,"ж":1}}'.encode())
    assert wire.line() == b'{"jsonrpc":"2.0","id":1,"result":2}'


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, by: int = 1) -> int:
        self.count += by
        return self.count

    def __call__(self, to: int) -> int:
        self.count = to
        return to

    @classmethod
    def of_class(cls, a: int) -> str:
        return f"{cls.__name__} {a}"

    @staticmethod
    def of_nothing(a: int) -> int:
        return a


def test_methods_objects_and_partials_are_served(serve_once: Any) -> None:
    counter = Counter()
    server = serve_once(counter.add, counter.of_class, Counter.of_nothing)
    server.add(counter, name="counter.set")
    server.add(functools.partial(plain, b=1), name="less")
    server.add(functools.partial(plain, 10), name="from_ten")
    server.add(lambda a: a, name="lambda")
    with Wire(server.port) as wire:
        assert [wire.result("add"), wire.result("add", {"by": 5})] == [1, 6]
        assert wire.result("counter.set", [3]) == 3 and counter.count == 3
        assert wire.result("of_class", [1]) == "Counter 1"
        assert wire.result("of_nothing", {"a": 2}) == 2
        assert wire.result("less", {"a": 3}) == 2
        assert wire.result("less", {"a": 3, "b": 3}) == 0
        assert wire.result("from_ten", [4]) == 6
        assert wire.result("lambda", [[1]]) == [1]
        assert wire.error("counter.set", ["x"])["data"] == "params.to: expected int, got str"


def test_wrapped_functions_are_called_through_their_wrapper(serve_once: Any) -> None:
    def doubled(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> int:
            return 2 * function(*args, **kwargs)

        return wrapper

    with Wire(serve_once(doubled(plain)).port) as wire:
        assert wire.result("plain", {"a": 5, "b": 3}) == 4
        assert wire.error("plain", {"a": "5", "b": 3})["code"] == -32602


class Marked:
    """Async, around a plain function: as asgiref's ``sync_to_async``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def test_wrappers_may_be_of_another_kind_than_what_they_wrap(serve_once: Any) -> None:
    async def asynchronous(n: int) -> int:
        return n

    def counting(n: int) -> Iterator[int]:
        yield from range(n)

    async def counting_async(n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    def decorated(function: Any, make: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return make(function(*args))

        return wrapper

    @functools.wraps(counting_async)
    async def collected(*args: Any) -> Any:
        return [item async for item in counting_async(*args)]

    server = serve_once()
    unchanged: Any = lambda made: made  # noqa: E731
    for name, function, make in (
        ("passed", asynchronous, unchanged),
        ("listed", counting, list),
        ("streamed", counting, unchanged),
        ("streamed_async", counting_async, unchanged),
        ("pair", counting_async, lambda _: (0, 1)),
    ):
        server.add(decorated(function, make), name=name)
    server.add(decorated(asynchronous, asyncio.run), name="in_thread", threads=True)
    server.add(collected)
    server.add(Marked(positional_only), name="marked")
    with Wire(server.port) as wire:
        for name in ("passed", "in_thread"):
            assert wire.result(name, [2]) == 2
        assert wire.result("marked", [2]) == [2, 2, 3]
        for name in ("listed", "streamed", "streamed_async", "pair", "counting_async"):
            assert wire.result(name, [2]) == [0, 1]
        assert wire.error("passed", ["2"])["code"] == -32602


def test_a_given_signature_has_names_and_types(serve_once: Any) -> None:
    def wrapper(**given: Any) -> Any:
        return given

    functools.update_wrapper(wrapper, plain)
    number = inspect.Parameter("n", inspect.Parameter.KEYWORD_ONLY, annotation="int")
    anything = inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY)
    wrapper.__signature__ = inspect.Signature([number, anything])  # type: ignore[attr-defined]
    with Wire(serve_once(wrapper).port) as wire:
        assert wire.result("plain", {"n": 1, "a": "x"}) == {"n": 1, "a": "x"}
        assert wire.error("plain", {"n": "x", "a": 1})["data"] == "params.n: expected int, got str"


def test_builtins_without_a_signature_take_any_params(serve_once: Any) -> None:
    server = serve_once(max, pow)
    server.add(dict.fromkeys, name="fromkeys")
    server.add("{x}-{y}".format, name="format")
    with Wire(server.port) as wire:
        assert wire.result("max", [3, 7, 5]) == 7
        assert wire.result("pow", [2, 10, 1000]) == 24
        assert wire.result("format", {"x": 1, "y": "z"}) == "1-z"


def test_defaults_are_the_functions_own_objects(connect_to: ConnectTo) -> None:
    def growing(item: int, into: list[int] = []) -> list[int]:  # noqa: B006
        into.append(item)
        return into

    wire = connect_to(growing)
    wire.result("growing", [1])
    assert wire.result("growing", [2]) == [1, 2]
