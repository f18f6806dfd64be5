"""The classes of a server's options."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

import ucall
from ucall import TLS, UDP, Broker, Limits, Observability, Timeouts, _core
from ucall.options import GROUPS, PLACES, arguments, types_of

CLASSES = (*GROUPS.values(), Broker)


def test_the_defaults_are_those_of_the_core() -> None:
    given = {place[1]: GROUPS[place[0]]._defaults.get(place[1]) for place in PLACES.values()}
    limits = _core.default_limits()
    assert {name: given[name] for name in limits} == limits


def test_every_option_is_documented_and_has_a_place() -> None:
    own = set(inspect.signature(ucall.Server).parameters) - {"others"}
    assert len(own) <= 27 and own >= set(GROUPS)
    assert len(PLACES) == sum(len(group.names()) for group in GROUPS.values())
    assert not set(PLACES) & own
    documented = [(ucall.Server, own), *((it, it.names()) for it in CLASSES)]
    for kind, names in documented:
        text = inspect.cleandoc(kind.__doc__ or "")
        assert [name for name in names if f"\n    {name}: " not in text] == []


def test_a_server_is_private_by_default() -> None:
    defaults = inspect.signature(ucall.Server).parameters
    expected = {"host": "127.0.0.1", "port": 8545, "uds_mode": 0o600, "debug": False, "udp": None}
    assert {name: defaults[name].default for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_body_bytes": 1}, "max_body_bytes is now limits=Limits(max_body_bytes=…)"),
        ({"ssl_certfile": "a"}, "ssl_certfile is now tls=TLS(certfile=…)"),
        ({"udp_port": 1}, "udp_port is now udp=UDP(port=…)"),
        ({"metrics": True}, "metrics is now observability=Observability(metrics=…)"),
        ({"max_bodies": 1}, "Server has no option max_bodies"),
        ({"prot": 1}, "Server has no option prot; did you mean port?"),
        ({"udp": True}, "udp: expected udp=ucall.UDP(…), got bool"),
        ({"limits": {"max_body_bytes": 1}}, "limits: expected limits=ucall.Limits(…), got dict"),
    ],
)
def test_what_a_server_does_not_take_names_the_remedy(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TypeError) as refused:
        ucall.Server(port=0, **options)
    assert str(refused.value) == problem


def test_a_class_refuses_what_it_does_not_have() -> None:
    with pytest.raises(TypeError, match=r"^Timeouts has no option idle_s; did you mean "):
        Timeouts(idle_s=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^TLS: expected certfile$"):
        TLS()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Limits(3)  # type: ignore[misc]


def test_options_are_values() -> None:
    limits = Limits(max_headers=7)
    assert limits == Limits(max_headers=7) and hash(limits) == hash(Limits(max_headers=7))
    assert limits != Limits() and limits != Timeouts()
    assert limits.replace(max_nesting=3) == Limits(max_headers=7, max_nesting=3)
    assert pickle.loads(pickle.dumps(limits)) == copy.deepcopy(limits) == limits
    assert repr(limits) == "Limits(max_headers=7)"
    with pytest.raises(AttributeError, match=r"Limits cannot change: use replace\(max_headers=…\)"):
        limits.max_headers = 8  # type: ignore[misc]
    secret = TLS(certfile=["a.pem"], keyfile_password="secret")
    assert repr(secret) == "TLS(certfile=('a.pem',), keyfile_password=…)"
    assert TLS(certfile=iter(["a.pem"])).certfiles == ["a.pem"]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: TLS(certfile=[]), "tls.certfile: expected at least one file, got an empty list"),
        (lambda: TLS(certfile="a", keyfile=["a", "b"]), "tls.keyfile: expected one for each of 1"),
        (lambda: TLS(certfile="a", client_auth="optional"), "tls.ca_certs: needed to verify"),
        (
            lambda: TLS(certfile="a", client_auth="maybe"),  # type: ignore[arg-type]
            "tls.client_auth: expected one of none, optional, required, got 'maybe'",
        ),
        (lambda: UDP(port=65_536), "udp.port: expected 0 to 65535, got 65536"),
        (lambda: UDP(xdp_busy_poll=True), "udp.xdp_busy_poll: has no effect without xdp"),
        (lambda: Observability(access_log_sample=0.5), "has no effect without access_log"),
    ],
)
def test_options_that_contradict_each_other(make: Any, problem: str) -> None:
    with pytest.raises(ValueError) as refused:
        make()
    assert problem in str(refused.value)


def test_options_by_the_names_of_variables() -> None:
    given = arguments(
        {"max_headers": 7, "udp": True, "dedupe": False, "port": 1},
        {"limits": Limits(max_nesting=3), "title": "a"},
    )
    limits = Limits(max_headers=7, max_nesting=3)
    assert given == {"limits": limits, "udp": UDP(dedupe=False), "port": 1, "title": "a"}
    assert arguments({"udp": False}, {"udp": UDP()}) == {"udp": None}
    assert arguments({"udp_port": 7}) == {"udp": UDP(port=7)}
    for options, problem in (
        ({"ssl_keyfile": "a"}, "ssl_certfile: expected a certificate"),
        ({"udp_auth": True}, "udp_auth: has no effect without udp"),
        ({"xdp": "eth0"}, "xdp: has no effect without udp"),
    ):
        with pytest.raises(ValueError, match=problem):
            arguments(options)


def test_types_are_read_as_they_are_written() -> None:
    assert types_of(Limits)["max_connections_per_peer"] == "int"
    assert types_of(TLS)["certfile"] == "Path | Iterable[Path]"
