"""What the tools of NATS see of a server: its answers by ADR-32, and those that `nats` shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from brokers import NatsServer, registered, request
from jsonschema import Draft202012Validator

import ucall

_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]+$"}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_METADATA = {"type": "object", "additionalProperties": {"type": "string"}}
_TEXT = {"type": "string", "minLength": 1}


def _object(**members: Any) -> dict[str, Any]:
    return {"type": "object", "required": [*members], "properties": members}


def _answer(verb: str, **members: Any) -> dict[str, Any]:
    """The schema of an answer, by the text of ADR-32."""
    version = {
        "type": "string",
        "pattern": r"^(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}([-+][0-9A-Za-z.+-]+)?$",
    }
    kind = {"const": f"io.nats.micro.v1.{verb}_response"}
    return _object(type=kind, name=_NAME, id=_TEXT, version=version, metadata=_METADATA, **members)


_ENDPOINT = {"name": _NAME, "subject": _TEXT, "queue_group": _TEXT}
_COUNTS = dict.fromkeys(
    ("num_requests", "num_errors", "processing_time", "average_processing_time"), _COUNT
)
_STARTED = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"}
SCHEMAS = {
    "PING": _answer("ping"),
    "INFO": _answer(
        "info",
        description={"type": "string"},
        endpoints={"type": "array", "items": _object(**_ENDPOINT, metadata=_METADATA)},
    ),
    "STATS": _answer(
        "stats",
        started=_STARTED,
        endpoints={
            "type": "array",
            "items": _object(
                **_ENDPOINT, **_COUNTS, last_error={"type": "string"}, data={"type": "object"}
            ),
        },
    ),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[NatsServer]:
    with NatsServer() as started:
        server = ucall.Server(port=0)

        @server(idempotent=True)
        def add(a: int, b: int) -> int:
            return a + b

        server.start(broker=ucall.Broker(url=started.url, group="g" * 64))
        try:
            assert registered(started, 1, "g" * 64)
            yield started
        finally:
            server.stop()


@pytest.mark.parametrize("verb", SCHEMAS)
def test_answers_have_the_form_of_adr_32(broker: NatsServer, verb: str) -> None:
    request(broker, f"{'g' * 64}.add", b"[1, 2]")
    answer = json.loads(request(broker, f"$SRV.{verb}.{'g' * 64}").data)
    Draft202012Validator(SCHEMAS[verb]).validate(answer)


def test_a_group_has_up_to_64_letters(broker: NatsServer) -> None:
    with ucall.client.Client(broker.uri("g" * 64)) as client:
        assert client.add(1, 2).json == 3
    for wrong in ("g" * 65, ""):
        with pytest.raises(ValueError, match="group"):
            ucall.client.Client(broker.uri(wrong))
        with pytest.raises(ValueError, match="group"):
            ucall.Server(port=0).start(broker=ucall.Broker(url=broker.url, group=wrong))


def test_the_tool_of_nats_lists_measures_and_calls(broker: NatsServer) -> None:
    program = shutil.which("nats", path=f".bench/bin:{os.environ['PATH']}")
    if program is None:
        pytest.skip("nats is not installed (make test-nats-tool)")

    def nats(*arguments: str) -> str:
        command = [program, "--server", broker.url, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    group = "g" * 64
    before = json.loads(nats("micro", "stats", group, "--json"))
    assert nats("request", f"{group}.add", "[1, 2]", "--raw").strip() == "3"
    assert "ggg" in nats("micro", "list")
    shown = nats("micro", "info", group)
    assert f"{group}.add" in shown and "idempotent" in shown
    after = json.loads(nats("micro", "stats", group, "--json"))
    [[one], [other]] = (
        [it for it in stats["endpoints"] if it["name"] == "add"] for stats in (before[0], after[0])
    )
    assert other["num_requests"] == one["num_requests"] + 1
