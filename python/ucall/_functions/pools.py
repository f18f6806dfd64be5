"""The processes that run functions of one server, and the models that are loaded there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ucall import _core
from ucall._server import checked

if TYPE_CHECKING:
    from ucall._functions.batch_processes import BatchPool, Connect
    from ucall._functions.exceptions import ExceptionHandlers
    from ucall._functions.loading import Model
    from ucall._functions.methods import ReplyOptions
    from ucall._functions.process_hooks import ProcessHook
    from ucall._functions.process_pool import Pool
    from ucall._functions.registration import BatchRules, Spans

__all__ = ["Pools"]


class Pools:
    """The pools of processes, each of which is made for the first function that needs it."""

    def __init__(
        self,
        core: _core.Server,
        replies: ReplyOptions,
        process_start_timeout_s: float,
        spans: Spans | None,
    ) -> None:
        self._core = core
        self._replies = replies
        self._process_start_timeout_s = process_start_timeout_s
        self._spans = spans
        self._of_calls: dict[int, Pool] = {}
        self._of_batches: list[BatchPool] = []
        #: Those whose functions were replaced, and that may have calls.
        self._retired: list[BatchPool] = []
        #: Connects with the processes that all workers share; ``None`` in other programs.
        self.connect: Connect | None = None
        self.is_serving = False
        #: The handlers of exceptions in processes of batches.
        self.exceptions: ExceptionHandlers | None = None
        #: What processes that serve load before their first call.
        self._loaded: list[Model[Any]] = []
        #: Run in each process of a pool that starts from now on.
        self._process_hooks: list[ProcessHook] = []

    def of_calls(self, processes: int) -> Pool:
        """The pool of this size, which all functions with it share."""
        from ucall._functions.process_pool import Pool

        checked.positive("processes", processes)
        timeout_s = self._process_start_timeout_s
        return self._of_calls.setdefault(
            processes, Pool(processes, self._process_hooks, self._count_processes, timeout_s)
        )

    def of_batches(self, name: str, rules: BatchRules) -> BatchPool | None:
        """The processes with these devices, which all functions share that have the same, or new
        ones, for `keep`."""
        if not (devices := rules.process_devices):
            return None
        if self.is_serving and self.connect is not None:
            raise RuntimeError(
                f"{name}: the workers share the processes of batches, whose functions the program "
                "registers before run(): register it there, and send SIGHUP to the supervisor"
            )
        from ucall._functions.batch_processes import BatchPool

        for pool in self._of_batches:
            if pool.fits(devices, rules.parallel):
                return pool
        hooks, report = self._process_hooks, self._count_processes
        timeout_s = self._process_start_timeout_s
        replies, spans = self._replies, self._spans
        return BatchPool(devices, rules.parallel, hooks, replies, report, timeout_s, spans)

    def keep(self, pool: BatchPool) -> None:
        """Has a pool serve the function that was added to it last; starts it if the server runs.

        Raises:
            RuntimeError: A process could not start, or the server stops meanwhile. Nothing is
                kept.
        """
        pool.keep()
        if self.is_serving:
            try:
                self.start_batches(pool)
                if not self.is_serving:
                    raise RuntimeError("the server stops")
            except BaseException:
                pool.close()
                raise
        if pool not in self._of_batches:
            self._of_batches.append(pool)

    def replace(self, name: str, successor: BatchPool | None) -> None:
        """Ends the processes of the function that had this name before, after its calls, unless
        they have other functions, too."""
        for pool in [it for it in self._of_batches if it is not successor and name in it.served]:
            pool.served.discard(name)
            if not pool.served:
                self._of_batches.remove(pool)
                self._retired = [it for it in self._retired if not it.closed.is_set()] + [pool]
                pool.retire()

    def add_process_hook(self, hook: Callable[..., object]) -> None:
        """Registers a hook of the pools' processes: see `ucall.Server.on_process_start`."""
        from ucall._functions import process_hooks

        self._process_hooks.append(process_hooks.describe_hook(hook))

    def add_model(self, model: Model[Any]) -> None:
        """Registers a model: see `ucall.Server.model`."""
        self._loaded.append(model)
        if model.in_processes is not False:
            self._process_hooks.append((model.load, False))

    def load_model(self, model: Model[Any]) -> Awaitable[None] | None:
        """Loads a model that this process needs."""
        has_processes = bool(self._of_calls or self._of_batches)
        elsewhere = has_processes if model.in_processes is None else model.in_processes
        if elsewhere or model.is_loaded:
            return None
        loading = model.load()
        if loading is not None:
            return self._await_loaded(model, loading)
        self._count_loaded(model)
        return None

    async def _await_loaded(self, model: Model[Any], loading: Awaitable[None]) -> None:
        await loading
        self._count_loaded(model)

    def _count_loaded(self, model: Model[Any]) -> None:
        _core.count_loaded_model(self._core, model.name, False)

    def _count_processes(self, has_ended: bool) -> None:
        """A process of a pool is ready, or has ended."""
        for model in self._loaded:
            if model.in_processes is not False:
                _core.count_loaded_model(self._core, model.name, has_ended)

    def start(self) -> None:
        """Starts the processes of functions that take batches; those of calls if they load models.

        Raises:
            RuntimeError: A process could not start.
        """
        load_models = any(model.in_processes is not False for model in self._loaded)
        self.is_serving = True
        try:
            for pool in self._of_calls.values() if load_models else ():
                pool.start()
            for batch_pool in self._of_batches:
                self.start_batches(batch_pool, self.connect)
        except BaseException:
            self.close()
            raise

    def start_batches(self, pool: BatchPool, connect: Connect | None = None) -> None:
        """Starts the processes of a pool: see `BatchPool.start`."""
        pool.exceptions = self.exceptions
        pool.start(connect)

    def find(self, key: str) -> BatchPool | None:
        """The pool with this key, if any."""
        return next((pool for pool in self._of_batches if pool.key == key), None)

    def close(self) -> None:
        """Ends the processes of all pools."""
        self.is_serving = False
        for pool in self._of_calls.values():
            pool.close()
        for batch_pool in [*self._of_batches, *self._retired]:
            batch_pool.close()
