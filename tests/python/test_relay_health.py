"""Health checks of the upstreams of a relay."""

from __future__ import annotations

from urllib.request import urlopen

import pytest
from serving import Serve
from test_relay_names import ready

from harness import Wire, eventually


@pytest.mark.one_of("scheme", "ask")
@pytest.mark.parametrize("scheme", ["tcp", "http"])
@pytest.mark.parametrize("ask", ["/readyz", "health"])
def test_an_upstream_that_turns_unhealthy_gets_calls_only_without_another(
    serve: Serve, scheme: str, ask: str
) -> None:
    upstreams, is_well = [serve(), serve()], [True, True]
    for index, upstream in enumerate(upstreams):

        def health(index: int = index) -> bool:
            if not is_well[index]:
                raise OSError
            return True

        upstream.add(health, name="health")
        upstream.ready(health)
        upstream.add(lambda index=index: index, name="up.which")
    server = serve(metrics=True)
    addresses = [f"{scheme}://127.0.0.1:{upstream.port}" for upstream in upstreams]
    server.relay("up.*", to=addresses, health_check=ask, health_interval_ms=5)

    def metrics() -> str:
        with urlopen(f"http://127.0.0.1:{server.port}/metrics") as reply:
            return reply.read().decode()

    def verdict(index: int, state: str) -> str:
        return f'ucall_upstream_health{{upstream="{addresses[index]}",state="{state}"}} 1\n'

    with Wire(server.port) as wire:

        def called() -> set[int]:
            return {wire.result("up.which") for _ in range(30)}

        assert called() == {0, 1}
        is_well[0] = False
        assert eventually(lambda: called() == {1})
        assert verdict(0, "unhealthy") in metrics() and verdict(1, "healthy") in metrics()
        assert ready(server.port) == (200, "ready\n")
        is_well[1] = False
        problem = f"not ready: relay: {addresses[0]} is unhealthy\n"
        assert eventually(lambda: ready(server.port) == (503, problem))
        assert called() == {0, 1}
        is_well[:] = True, True
        assert eventually(lambda: called() == {0, 1} and verdict(1, "healthy") in metrics())
        assert ready(server.port) == (200, "ready\n")
    # The checks are no calls.
    assert 'method="health"' not in metrics()


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("health_check", "/a b", "a path or the name of a method"),
        ("health_check", "", "a path or the name of a method"),
        ("health_interval_ms", 0, "a positive number"),
        ("health_timeout_ms", float("nan"), "a positive number"),
        ("health_failures", 0, "a positive number"),
        ("health_successes", -1, "a positive number"),
    ],
)
def test_options_of_health_checks_are_checked(
    serve: Serve, option: str, value: object, expected: str
) -> None:
    options = {"health_check": "/readyz", option: value}
    with pytest.raises(ValueError, match=f"{option}: expected {expected}"):
        serve().relay("up.*", to="tcp://127.0.0.1:1", **options)
