"""A server whose packets are lost: what its callers notice. Needs root on Linux."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import networks
import pytest
from brokers import cluster, registered
from many_servers import SECONDS, Servers, load, rounds, servers
from networks import Network
from test_nats_many import AGAIN, LONG, broker_options, uri

from harness import eventually
from ucall._nats import connection

pytestmark = [
    LONG,
    pytest.mark.skipif((reason := networks.why_no_network()) is not None, reason=str(reason)),
]
#: How long packets are lost, and how many callers there are.
LOST_S, CALLERS = (5.0, 32) if SECONDS else (2.5, 8)


@pytest.fixture
def network() -> Iterator[Network]:
    """This test runs in one namespace; the server that is cut off is in the other."""
    with networks.network(1500, name="lost") as made, made.on_client():
        # The thread of the brokers stays in the namespace that it was started in.
        connection._forget_thread()
        yield made
    connection._forget_thread()


@pytest.mark.parametrize(("kind", "found_by"), [("threads", "NATS"), ("tasks", "a list")])
def test_lost_packets_fail_no_call(
    tmp_path: Path, network: Network, kind: str, found_by: str
) -> None:
    """Calls in flight on the server wait until TCP sends their bytes again; later ones avoid it."""
    folders = [tmp_path / name for name in ("reached", "lost")]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack:
        nodes = stack.enter_context(cluster(address="0.0.0.0")) if found_by == "NATS" else []
        broker = broker_options(nodes) if nodes else {}
        reached = stack.enter_context(servers(folders[0], 3, broker))
        if nodes:
            broker["url"] = ",".join(f"nats://192.0.2.1:{node.port}" for node in nodes)
        with network.on_server():
            lost = Servers(folders[1], 1, {"host": "192.0.2.2"}, broker)
        stack.callback(lost.kill_all)
        options: dict[str, Any] = {}
        addresses: str | list[str] = [*reached.uris(""), f"192.0.2.2:{lost.ports[0]}"]
        if nodes:
            assert registered(nodes[0], 4)
            addresses, options = uri(nodes), {"broker_options": AGAIN}
        with load(addresses, kind, CALLERS, **options) as made:
            assert eventually(lambda: lost.begun().total() > 50)
            for _ in rounds(1):
                ends_at = time.monotonic() + LOST_S
                with network.lost_packets():
                    assert made.goes_on_until(ends_at)
                before = lost.begun().total()
                assert made.goes_on()
                assert eventually(lambda before=before: lost.begun().total() > before + 50)
        begun = reached.begun() + lost.begun()
    made.check(begun)
    assert made.failures == []
    # Calls in flight waited; the others did not.
    waited = sum(seconds > LOST_S / 2 for _, seconds in made.latencies)
    assert 0 < waited <= CALLERS * (1 + SECONDS)
