"""The lifespan of a mounted application: one task, from before the first request to after the last.

The server asks, the application answers:

| asks | answers | |
|---|---|---|
| ``lifespan.startup`` | ``lifespan.startup.complete`` | the server goes on |
| | ``lifespan.startup.failed`` | the server does not start |
| | raises or returns | it has no lifespan, and is asked nothing more |
| ``lifespan.shutdown`` | ``lifespan.shutdown.complete`` | the server ends |
| | ``lifespan.shutdown.failed``, or raises | the end of the server raises |
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ucall._asgi.mount import Application, Message

__all__ = ["AppLifespan"]

#: How long an application may take to return after its last answer.
_RETURN_S = 2.0


class AppLifespan:
    """The lifespan of one application, with the startup hook and the shutdown hook of a server."""

    def __init__(self, app: Application, path: str) -> None:
        self._app = app
        self._path = path
        #: What the application keeps for its requests, each of which gets a copy.
        self.state: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None
        self._questions: asyncio.Queue[Message]
        self._answer: asyncio.Future[Message]

    async def startup(self) -> None:
        self.state.clear()
        self._questions = asyncio.Queue()
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.state,
        }
        task = asyncio.ensure_future(self._run(scope))
        try:
            answer = await self._ask("startup", task)
        except BaseException:
            task.cancel()
            raise
        if answer is None:
            self._log_unsupported(task)
        else:
            self._task = task

    async def shutdown(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        if await self._ask("shutdown", task) is not None:
            await asyncio.wait([task], timeout=_RETURN_S)
        if task.cancel():
            await asyncio.wait([task])
        elif not task.cancelled():
            task.result()

    async def _run(self, scope: dict[str, Any]) -> None:
        await self._app(scope, self._questions.get, self._send)

    async def _ask(self, question: str, task: asyncio.Task[None]) -> Message | None:
        """The answer of the application; None if it ends without one.

        Raises:
            RuntimeError: The answer is that it has failed.
        """
        self._answer = asyncio.get_running_loop().create_future()
        self._questions.put_nowait({"type": f"lifespan.{question}"})
        waiting: list[asyncio.Future[Any]] = [self._answer, task]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not self._answer.done():
            return None
        answer = self._answer.result()
        if answer["type"] == f"lifespan.{question}.failed":
            problem = str(answer.get("message", "")).strip() or "it does not say why"
            raise RuntimeError(
                f"the {question} of the application at {self._path!r} failed: {problem}"
            )
        return answer

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        expected = ["startup", "shutdown"] if self._task is None else ["shutdown"]
        answers = [f"lifespan.{it}.{end}" for it in expected for end in ("complete", "failed")]
        if kind not in answers:
            raise RuntimeError(f"expected a message {' or '.join(answers)}, got {kind!r}")
        if not self._answer.done():
            self._answer.set_result(message)

    def _log_unsupported(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        logging.getLogger("ucall").info(
            "the application at %r has no lifespan%s",
            self._path,
            f": {failure!r}" if failure else "",
        )
