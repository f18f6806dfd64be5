"""Functions that raise: the caller's error, and the log."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import ucall
from harness import Wire, request

ConnectTo = Callable[..., Wire]


def raised(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the log, without those who have called."""
    return [it.partition(" (")[0] for it in caplog.messages]


class Special(ucall.RPCError):
    def __init__(self) -> None:
        super().__init__(7, "special")


class SoldOut(ucall.RPCError):
    code = 4004


def sell() -> None:
    raise SoldOut("none left", [1])


async def sell_in_a_group(count: int) -> None:
    async def sell_at_once() -> None:
        sell()

    # All tasks run before the first error cancels the others.
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(sell_at_once())


def refuse(code: int = 1, message: str = "no", data: Any = None) -> None:
    raise ucall.RPCError(code, message, data)


def refuse_with_subclass() -> None:
    raise Special


def refuse_with_unwritable_data() -> None:
    raise ucall.RPCError(1, "no", {"a": object()})


def fail() -> None:
    raise ValueError("the secret")


def leave() -> None:
    raise SystemExit(3)


def recurse() -> None:
    recurse()


def divide(a: int, b: int) -> float:
    return a / b


def test_an_rpc_error_reaches_the_caller_unchanged(
    connect_to: ConnectTo, caplog: pytest.LogCaptureFixture
) -> None:
    wire = connect_to(refuse, refuse_with_subclass)
    assert wire.error("refuse") == {"code": 1, "message": "no"}
    error = wire.error("refuse", [-5, 'é"', {"a": [1, None]}])
    assert error == {"code": -5, "message": 'é"', "data": {"a": [1, None]}}
    assert wire.error("refuse_with_subclass") == {"code": 7, "message": "special"}
    assert not caplog.records


def test_unwritable_error_data_is_an_internal_error(
    connect_to: ConnectTo, caplog: pytest.LogCaptureFixture
) -> None:
    error = connect_to(refuse_with_unwritable_data).error("refuse_with_unwritable_data")
    assert error["code"] == -32603
    assert error["data"] == "data.a: object cannot be written as JSON"
    assert "refuse_with_unwritable_data" in caplog.text


def test_codes_out_of_range_are_an_internal_error(connect_to: ConnectTo) -> None:
    assert connect_to(refuse).error("refuse", [2**70])["code"] == -32603


@pytest.mark.parametrize("function", [fail, recurse, leave])
def test_other_exceptions_are_only_logged(
    connect_to: ConnectTo, caplog: pytest.LogCaptureFixture, function: Callable[[], None]
) -> None:
    wire = connect_to(function, divide)
    with caplog.at_level(logging.ERROR, "ucall"):
        error = wire.error(function.__name__)
    assert error == {"code": -32603, "message": "Internal error"}
    assert raised(caplog) == [f"{function.__name__} raised"]
    [record] = caplog.records
    assert record.name == "ucall" and record.exc_info and record.exc_info[2]
    assert wire.result("divide", [1, 2]) == 0.5


def test_debug_puts_the_traceback_into_data(connect_to: ConnectTo) -> None:
    data = connect_to(fail, debug=True).error("fail")["data"]
    assert data.startswith("Traceback (most recent call last):")
    assert data.endswith("ValueError: the secret\n") and __file__ in data


def test_a_notification_that_fails_is_logged_and_not_answered(
    connect_to: ConnectTo, caplog: pytest.LogCaptureFixture
) -> None:
    wire = connect_to(fail, divide)
    wire.send(request("fail", id=...) + request("divide", [1, 0], id=...))
    assert wire.result("divide", [4, 2]) == 2.0
    assert raised(caplog) == ["fail raised", "divide raised"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failing_log_handler_affects_no_call(connect_to: ConnectTo) -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError("the disk is full")

    wire, handler = connect_to(fail, divide), Broken()
    logging.getLogger("ucall").addHandler(handler)
    try:
        assert wire.error("fail")["code"] == -32603
    finally:
        logging.getLogger("ucall").removeHandler(handler)
    assert wire.result("divide", [1, 1]) == 1


def test_a_class_may_have_the_code(connect_to: ConnectTo) -> None:
    expected = {"code": 4004, "message": "none left", "data": [1]}
    assert connect_to(sell).error("sell") == expected
    error = SoldOut(message="none left")
    for given in (error, SoldOut(4004, "none left"), pickle.loads(pickle.dumps(error))):
        assert (given.code, given.message, given.data) == (4004, "none left", None)
    assert SoldOut(code=5, message="no").code == 5
    with pytest.raises(TypeError):
        ucall.RPCError("none left")


def test_an_rpc_error_alone_in_a_group_reaches_the_caller(
    connect_to: ConnectTo, caplog: pytest.LogCaptureFixture
) -> None:
    wire = connect_to(sell_in_a_group)
    assert wire.error("sell_in_a_group", [1])["code"] == 4004
    assert caplog.messages == []
    # Which of several would it be?
    assert wire.error("sell_in_a_group", [2])["code"] == -32603
    assert raised(caplog) == ["sell_in_a_group raised"]


def test_the_exception_class() -> None:
    error = ucall.RPCError(5, "no", [1])
    assert (error.code, error.message, error.data) == (5, "no", [1])
    assert str(error) == "no [5] ([1])" and str(ucall.RPCError(5, "no")) == "no [5]"
    several = ucall.RPCError(-32602, "Invalid params", "params.a: no\nparams.b: no")
    assert str(several) == "Invalid params [-32602]\n  params.a: no\n  params.b: no"
    for copied in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (copied.code, copied.message, copied.data) == (5, "no", [1])
    for code, message in [("5", "no"), (5, None), (True, "no"), (1.0, "no")]:
        with pytest.raises(TypeError):
            ucall.RPCError(code, message)  # type: ignore[arg-type]


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_derived_class_with_other_arguments_can_be_copied(
    copied: Callable[[Special], Special],
) -> None:
    error = Special()
    error.add_note("a note")
    found = copied(error)
    assert type(found) is Special and found.__notes__ == ["a note"]
    assert (found.code, found.message, found.data) == (7, "special", None)


def test_errors_of_the_protocol_come_from_the_protocol(connect_to: ConnectTo) -> None:
    wire = connect_to(divide)
    assert wire.error("nobody")["code"] == -32601
    wire.send(b'{"jsonrpc":"2.0","id":{},"method":"divide"}')
    assert json.loads(wire.line())["error"]["code"] == -32600
