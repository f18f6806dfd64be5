"""Asks a server whether it takes frames: requests with binary parts beside their JSON.

The first call with binary params to an address sends a frame that runs nothing, on a connection of
its own: a server that does not know frames refuses it or closes the connection, and no call is
harmed or runs twice. What is known then is kept by `ucall._core.FrameSupport` of the address.
"""

from __future__ import annotations

import builtins
import itertools
from typing import TYPE_CHECKING, Any

from ucall._client.blocking import result_of
from ucall._client.sockets import Deadline, left_to_send
from ucall._core import FrameRefused, Reply, Undecided
from ucall.errors import HTTPError

if TYPE_CHECKING:
    from ucall._client.options import Options
    from ucall._core import RequestWriter

__all__ = ["PROBE", "decided_writer", "doubt_frames", "writer_after", "writer_after_doubt"]

#: A method that no server has: each answers that, and none of its functions sees the call.
PROBE = "$/probe"
#: Seconds in which a server has to answer, at most half of those that are left for the call. One
#: that waits for the end of a text never does.
_ANSWER_S = 2.0
_ids = itertools.count(1)

#: Statuses of a server, or of one before it, that has not read the body: it has to be asked again.
_UNREAD_STATUSES = frozenset([401, 407, 408, 429, 502, 503, 504])
#: Errors of a server that has not read the request.
_UNREAD_ERRORS = frozenset([-32001, -32002, -32003, -32004])
#: Statuses for a body of an unknown type.
_REFUSALS = frozenset([400, 415, 422])


async def decided_writer(pool: Any, options: Options, deadline: Deadline) -> RequestWriter:
    """The writer for a call, after the server was asked whether it takes frames.

    While another call asks, or if the answer does not tell, the call is JSON.

    Raises:
        ucall.ConnectionError, ucall.TimeoutError: No server accepts the connection.
    """
    support = options.address.frames
    assert support is not None, "calls to this address are never frames"
    if support.ask():
        takes_frames = None
        try:
            takes_frames = await _ask(pool, options, deadline)
        finally:
            support.record(takes_frames)
    return options.writer if support.state == "yes" else options.writer.without_frames()


def doubt_frames(error: Exception, options: Options) -> bool:
    """Doubts that a server takes frames after one has failed, so that it is asked before the next:
    it may have been replaced by an older one.

    Returns whether that is why the call has failed: it was not sent, or nothing of it was run.
    """
    support = options.address.frames
    if support is None or (isinstance(error, Undecided) and not isinstance(error, FrameRefused)):
        return support is not None
    if support.state != "yes" or not getattr(error, "may_have_run", True):
        return False
    support.doubt()
    return isinstance(error, FrameRefused) or (
        isinstance(error, HTTPError) and error.status in _REFUSALS
    )


async def writer_after(
    error: Exception, pool: Any, options: Options, deadline: Deadline
) -> RequestWriter:
    """The writer for another attempt of a call that has failed because of frames.

    A server that takes frames refuses one for its limits: the call is JSON then.

    Raises:
        Exception: The error, if frames are not its reason.
        ucall.ConnectionError, ucall.TimeoutError: See `decided_writer`.
    """
    if not doubt_frames(error, options):
        raise error from None
    return await writer_after_doubt(error, pool, options, deadline)


async def writer_after_doubt(
    error: Exception, pool: Any, options: Options, deadline: Deadline
) -> RequestWriter:
    """As `writer_after`, after `doubt_frames` has found that frames may be the reason."""
    if isinstance(error, FrameRefused):
        return options.writer.without_frames()
    writer = await decided_writer(pool, options, deadline)
    if isinstance(error, HTTPError) and writer is options.writer:
        raise error from None  # It does take frames.
    return writer


async def _ask(pool: Any, options: Options, deadline: Deadline) -> bool | None:
    left = left_to_send(deadline)
    left = _ANSWER_S if left is None else min(_ANSWER_S, left / 2)
    id = f"ucall-frame-{next(_ids)}"
    try:
        request = options.writer.frame(PROBE, id)
        reply = await result_of(pool.exchange_once(request, (id,), left))
    except Undecided:  # It has refused the frame.
        return False
    except HTTPError as error:
        return None if error.status in _UNREAD_STATUSES else False
    except OSError as error:
        if getattr(error, "may_have_run", True):
            return False
        if isinstance(error, builtins.TimeoutError) and not deadline.is_over():
            return None
        raise
    return _takes_frames(reply)


def _takes_frames(reply: Reply) -> bool | None:
    """Whether a server that answers so has read the frame."""
    if reply.is_empty or reply.is_batch:
        return False
    if reply.id is not None:
        return True
    error = reply.error()
    is_unread = isinstance(error, dict) and error.get("code") in _UNREAD_ERRORS
    return None if is_unread else False
