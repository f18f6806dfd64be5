"""Queues under test: a server and its clients, closed after the test."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker import BROKERS, SharedBroker
from brokers import NatsServer, jetstream
from certificates import Authority, authority  # noqa: F401
from pairs import PROTOCOLS, Pairs
from resources import shared_maps
from stored_queues import Queues

from harness import eventually
from ucall import queue as nq


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[SharedBroker]:
    """The brokers of the protocols, each started on first use."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda protocol: stack.enter_context(BROKERS[protocol]()))


@pytest.fixture(params=PROTOCOLS)
def pairs(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    shared_broker: SharedBroker,
    authority: Authority,  # noqa: F811
) -> Iterator[Pairs]:
    if request.param == "shm" and shared_maps():
        # The test counts memory. Earlier tests of this process may still be releasing theirs, and a
        # failed test keeps it.
        gc.collect()
        eventually(lambda: shared_maps() == 0, timeout_s=10)
    made = Pairs(request.param, tmp_path, shared_broker, authority)
    yield made
    for communicator in reversed(made.made):
        communicator.close(0.2)


@pytest.fixture
def pair(pairs: Pairs) -> Iterator[Callable[..., tuple[nq.Communicator, nq.Communicator]]]:
    """A server and one client, both with these options."""

    def make(**given: Any) -> tuple[nq.Communicator, nq.Communicator]:
        server = pairs.server(**given)
        return server, pairs.client(server, **given)

    yield make


@pytest.fixture(scope="module")
def storing_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Stores the queues over JetStream of the tests of one file."""
    with NatsServer(*jetstream(tmp_path_factory.mktemp("jetstream") / "node")) as broker:
        yield broker


@pytest.fixture
def queues(storing_broker: NatsServer) -> Iterator[Queues]:
    with contextlib.closing(Queues(storing_broker)) as made:
        yield made
