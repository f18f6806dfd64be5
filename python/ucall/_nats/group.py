"""The servers of a group, as a client finds and calls them through NATS.

It runs on the thread of the brokers, for synchronous clients and those of asyncio alike.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ucall import _core
from ucall._client.balancer import MEMBERS_MAX
from ucall._client.options import RESERVED, TIMEOUT_MS
from ucall._client.sockets import not_sent, timeout_error
from ucall._nats.connection import BrokerOptions, cancel, connect, header_bytes, start
from ucall._nats.subjects import CALL_ID, ERROR, ERROR_CODE, cancel_subject, subject_of
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ucall._client.address import Address, Addresses
    from ucall._client.hedge import Wait

__all__ = ["BrokerPool", "Group"]

#: Seconds in which a broker has to accept the connection.
_CONNECT_S = 5.0
#: Seconds in which the first server has to answer a discovery, and each further one after another.
_FIRST_ANSWER_S = 1.0
_NEXT_ANSWER_S = 0.1
#: Seconds of a discovery in all.
_ANSWERS_S = 2.0
#: Seconds without a reply after which idempotent calls are sent again, as NATS does not report that
#: the server has ended which has a call, or the node with its reply. Twice as many each time, up to
#: the last.
_FIRST_SILENCE_S = 1.0
_LAST_SILENCE_S = 4.0
#: Characters of the address in an answer.
_ADDRESS_MAX = 320
#: Headers that are not those of a call.
_OWN_HEADERS = {*RESERVED, "user-agent", TIMEOUT_MS.lower()}
_NOT_FOUND = b'{"code":-32601,"message":"Method not found"}'
_call_ids = itertools.count(1)
_process = secrets.token_hex(8)


class Group:
    """A group of servers.

    Args:
        addresses: The brokers, the group, and how its servers are called directly.
        options: Options of nats-py.
        reply_bytes_max: The longest reply, of a batch as a whole.
        servers_max: How many servers a discovery may find.
    """

    def __init__(
        self,
        addresses: Addresses,
        options: BrokerOptions,
        reply_bytes_max: int,
        servers_max: int = MEMBERS_MAX,
    ) -> None:
        self._addresses = addresses
        self._name = addresses.group
        self._options = options
        self._reply_bytes_max = reply_bytes_max
        self._servers_max = servers_max
        self._pid = os.getpid()
        self._connection: Any = None
        self._connecting: asyncio.Lock | None = None
        #: Is done when the connection has ended.
        self._lost: asyncio.Future[None] | None = None

    async def discover(self, timeout: float | None = None) -> list[Address]:
        """The direct addresses of the servers, by ``$SRV.PING``.

        Raises:
            ucall.ConnectionError: No broker accepts the connection.
            TimeoutError: There was no answer within ``timeout`` seconds.
        """
        async with asyncio.timeout(timeout):
            connection = await self._connected()
            try:
                return await self._discover(connection)
            except Exception as error:
                self._fail(error)

    async def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Makes the calls of a request through NATS, and returns their reply.

        Raises:
            ucall.ConnectionError: No server has the function, a call is too long, the connection
                has ended, or a reply is not JSON.
            ucall.TimeoutError: There was no reply within ``timeout`` seconds.
        """
        document = json.loads(request.document)
        headers = _headers_of(request)
        calls = document if isinstance(document, list) else [document]
        taken: set[str] = set()
        work = [
            asyncio.ensure_future(self._call(call, dict(headers), timeout, taken)) for call in calls
        ]
        try:
            async with asyncio.timeout(timeout):
                texts = [text for text in await asyncio.gather(*work) if text is not None]
        except TimeoutError as error:
            if hasattr(error, "may_have_run"):
                raise
            late = timeout_error(timeout)
            raise (late if taken else not_sent(late)) from None
        except ConnectionError as error:
            if taken:
                # Others of the batch than the one that has failed.
                error.may_have_run = True
            raise
        finally:
            # If one fails, the caller gets no reply of the others.
            await cancel(*work)
        if not ids:
            return _core.Reply.nothing()
        text = b"[%s]" % b",".join(texts) if isinstance(document, list) else texts[0]
        reader = _core.ReplyReader(http=False, reply_bytes_max=self._reply_bytes_max)
        [reply] = reader.feed(text + b"\n")
        assert isinstance(reply, _core.Reply)
        reply.check_answers(request)
        return reply

    def close(self) -> None:
        """Closes the connection. The next call opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None and self._pid == os.getpid():
            start(connection.close())

    async def _connected(self) -> Any:
        if self._pid != os.getpid():
            # The connection belongs to the parent of this process.
            self._pid, self._connection, self._connecting = os.getpid(), None, None
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._connection is None or self._connection.is_closed:
                self._lost = asyncio.get_running_loop().create_future()
                self._connection = await connect(
                    self._addresses.brokers,
                    self._options,
                    f"ucall client of {self._name}",
                    reports=False,
                    timeout_s=_CONNECT_S,
                    on_lost=self._handle_lost,
                )
            return self._connection

    def _handle_lost(self) -> None:
        """The calls in flight get no reply: fails them, so that their callers may repeat them."""
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        self._lost = asyncio.get_running_loop().create_future()

    async def _discover(self, connection: Any) -> list[Address]:
        found: dict[str, Address] = {}
        ends_at = time.monotonic() + _ANSWERS_S
        subscription = await connection.subscribe(inbox := connection.new_inbox())
        try:
            await connection.publish(f"$SRV.PING.{self._name}", reply=inbox)
            wait_s = _FIRST_ANSWER_S
            while len(found) < self._servers_max and (left := ends_at - time.monotonic()) > 0:
                message = await subscription.next_msg(timeout=min(wait_s, left))
                if "Status" in (message.headers or {}):  # There is none.
                    break
                wait_s = _NEXT_ANSWER_S
                if (address := self._address_in(message.data)) is not None:
                    found[str(address)] = address
        except TimeoutError:
            pass
        finally:
            await subscription.unsubscribe()
        return list(found.values())

    def _address_in(self, answer: bytes) -> Address | None:
        """The address in an answer, which any user of the broker may have sent."""
        try:
            metadata = json.loads(answer)["metadata"]
            address, transports = metadata["address"], metadata["transports"].split(",")
            return self._addresses.found(address[:_ADDRESS_MAX], transports)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    async def _call(
        self,
        call: dict[str, Any],
        headers: dict[str, str],
        timeout: float | None,
        taken: set[str],
    ) -> bytes | None:
        """Makes one call; returns the text of its reply object. ``taken`` gets its id while a
        server may have it."""
        connection = await self._connected()
        if timeout is not None:
            headers[TIMEOUT_MS] = str(math.ceil(timeout * 1000))
        for name in ("traceparent", "tracestate"):
            if name in call.get("_meta", {}):
                headers[name] = call["_meta"][name]
        headers[CALL_ID] = id = f"{_process}-{next(_call_ids)}"
        subject = subject_of(self._name, call["method"])
        params = _compact(call["params"]) if "params" in call else b""
        if len(params) + header_bytes(headers) > connection.max_payload:
            text = (
                "no server can be reached directly, and the request is longer than the "
                f"broker's max_payload of {connection.max_payload} bytes"
            )
            raise not_sent(ConnectionError(text))
        taken.add(id)
        try:
            if "id" not in call:
                await connection.publish(subject, params, headers=headers)
                return None
            message = await self._request(connection, subject, params, headers)
            if message is None:
                taken.discard(id)
                subjects = await self._subjects(connection)
                # The server may have come in between, and has all of its functions now.
                taken.add(id)
                message = await self._request(connection, subject, params, headers)
                if message is None:
                    taken.discard(id)
                    if subject in subjects:
                        # Its connection for calls has ended, and comes back.
                        raise not_sent(ConnectionError(f"no server of {self._name} takes calls"))
        except asyncio.CancelledError:
            await connection.publish(cancel_subject(self._name), id.encode())
            raise
        except Exception as error:
            if not isinstance(error, ConnectionError):
                taken.discard(id)
            self._fail(error)
        return _reply_object(call["id"], message)

    async def _subjects(self, connection: Any) -> set[str]:
        """The subjects of a server's functions. Raises ``ucall.ConnectionError`` if there is no
        server."""
        message = await self._request(connection, f"$SRV.INFO.{self._name}", b"", {})
        if message is None:
            raise not_sent(ConnectionError(f"no server of the group {self._name} answers"))
        try:
            return {endpoint["subject"] for endpoint in json.loads(message.data)["endpoints"]}
        except (ValueError, TypeError, KeyError, RecursionError):  # Of any user of the broker.
            return set()

    async def _request(
        self, connection: Any, subject: str, params: bytes, headers: dict[str, str]
    ) -> Any:
        """The reply to a request; ``None`` if its subject has no subscriber. Unlike that of
        nats-py, it ends with the connection."""
        assert self._lost is not None
        request = asyncio.ensure_future(
            connection.request(subject, params, timeout=None, headers=headers)
        )
        try:
            await asyncio.wait({request, self._lost}, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise ConnectionError("the connection to NATS has ended; the call may have run")
            return request.result()
        except Exception as error:
            if type(error).__name__ == "NoRespondersError":
                return None
            raise
        finally:
            request.cancel()

    def _fail(self, error: Exception) -> NoReturn:
        """Raises the client's own error for one of nats-py."""
        if isinstance(error, ConnectionError):
            raise error
        raise not_sent(ConnectionError(f"NATS: {str(error) or type(error).__name__}"))


async def _never() -> bool:
    return False


class BrokerPool:
    """Calls the servers of a group through NATS, in place of the pool of one server. Streams and
    subscriptions need a direct connection.

    Args:
        wrap: Makes a future for the thread, or the event loop, of the client.
        wait: Waits for such futures.
    """

    def __init__(self, group: Group, wrap: Callable[[Future[Any]], Any], wait: Wait) -> None:
        self._group, self._wrap, self._wait = group, wrap, wait

    async def discover(self, timeout: float | None) -> list[Address]:
        """See `Group.discover`."""
        found: list[Address] = await self._run(lambda: self._group.discover(timeout))
        return found

    async def exchange(
        self,
        request: _core.Request,
        ids: Collection[object],
        timeout: float | None,
        may_repeat: Callable[[], Awaitable[bool]] = _never,
    ) -> _core.Reply:
        """See `Group.exchange`.

        Args:
            may_repeat: Returns whether the calls may be sent again, which is tried while there is
                no reply.
        """
        reply: _core.Reply = await self._run(
            lambda: self._group.exchange(request, ids, timeout), _silences(), may_repeat
        )
        return reply

    def close(self) -> None:
        """Closes the connection to the broker."""
        self._group.close()

    def close_idle(self) -> None:
        """Does nothing: all calls share one connection."""

    def use_running_loop(self) -> None:
        """Does nothing: the connection has a loop of its own."""

    def event_connection(self, *_: object) -> NoReturn:
        """Raises ``ucall.ConnectionError``."""
        text = "no server can be reached directly, as streams need"
        raise not_sent(ConnectionError(text))

    channel = connection = event_connection

    async def _run(
        self,
        work: Callable[[], Coroutine[Any, Any, Any]],
        delays_s: Iterable[float] = (),
        may_repeat: Callable[[], Awaitable[bool]] = _never,
    ) -> Any:
        """Runs it on the thread of the brokers."""
        from ucall._client.hedge import first_result

        return await first_result(
            lambda: self._wrap(start(work())), delays_s, may_repeat, self._wait
        )


def _silences() -> Iterator[float]:
    seconds = _FIRST_SILENCE_S
    while True:
        yield seconds
        seconds = min(seconds * 2, _LAST_SILENCE_S)


def _headers_of(request: _core.Request) -> dict[str, str]:
    """The headers that the caller has set, out of the head of a request over HTTP."""
    data, document = bytes(request.data), request.document
    head = data[: data.rfind(document)].decode("latin-1")
    lines = (line.partition(": ") for line in head.split("\r\n")[1:])
    return {name: value for name, _, value in lines if value and name.lower() not in _OWN_HEADERS}


def _compact(value: object) -> bytes:
    """JSON without the escapes and spaces that would count towards ``max_payload``."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _reply_object(id: object, message: Any) -> bytes:
    """The JSON-RPC reply in a message, with the id of the call.

    Raises:
        ucall.ConnectionError: The payload is not JSON.
    """
    ending = b',"id":%s}' % json.dumps(id).encode()
    if message is None:
        return b'{"jsonrpc":"2.0","error":' + _NOT_FOUND + ending
    headers = message.headers or {}
    if ERROR_CODE in headers:
        return b'{"jsonrpc":"2.0","error":' + _error_of(message.data, headers) + ending
    try:
        # Any service may have answered: the payload has to be one value, and no part of a reply.
        json.loads(message.data or b"null")
    except (ValueError, RecursionError):
        text = "the reply through NATS is not JSON; the call may have run"
        raise ConnectionError(text) from None
    return b'{"jsonrpc":"2.0","result":' + (message.data or b"null") + ending


def _error_of(payload: bytes, headers: dict[str, str]) -> bytes:
    """The JSON-RPC error of a reply; of its headers, if the service is none of ours."""
    try:
        error = json.loads(payload)
        if type(error["code"]) is int and isinstance(error["message"], str):
            return payload
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    try:
        code = int(headers[ERROR_CODE])
    except ValueError:
        code = -32603
    return json.dumps({"code": code, "message": headers.get(ERROR, "")}).encode()
