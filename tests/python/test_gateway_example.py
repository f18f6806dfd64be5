"""examples/gateway: a configured gateway before a server in Python, as two programs."""

from __future__ import annotations

import sys
from pathlib import Path

import forking
import pytest

from harness import eventually, free_port
from ucall.client import Client

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/gateway"


def _is_ready(client: Client) -> bool:
    try:
        return client.shop.price(item="pear").error is None
    except ConnectionError:
        return False


def test_the_gateway_checks_keys_and_adds_params(tmp_path: Path) -> None:
    api, gateway = free_port(), free_port()
    config = (EXAMPLE / "config.toml").read_text()
    assert "port = 8545" in config and ":8546" in config
    config = config.replace("port = 8545", f"port = {gateway}").replace(":8546", f":{api}")
    path = tmp_path / "config.toml"
    path.write_text(config)
    uri = f"http://127.0.0.1:{gateway}"
    commands = [str(EXAMPLE / "api.py"), str(api)], ["-m", "ucall", "relay", str(path)]
    programs = [forking.Python([sys.executable, *it]) for it in commands]
    try:
        with Client(uri, headers={"X-API-Key": "k3y"}) as client:
            assert eventually(lambda: _is_ready(client))
            bought = client.shop.price(item="apple", amount=2)
            assert bought.json == {"shop": "Main Street", "price": 6}
            assert client.shop.price(item="apple", shop="Mine").error.code == -32602
        with Client(uri) as unknown, pytest.raises(ConnectionError, match="401"):
            unknown.shop.price(item="apple")
    finally:
        for program in programs:
            program.terminate()
            program.wait()
