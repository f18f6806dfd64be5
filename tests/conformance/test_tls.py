"""testssl.sh: no finding worse than low, except the ones listed here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from limits import LimitedServer
from programs import find, require

#: The authority is made for the test: no store trusts it, it has no revocation, and its
#: certificates do not expire. The client chooses the order of ciphers, as in Mozilla's intermediate
#: profile.
EXPECTED = {
    "cert_chain_of_trust",
    "cert_trust",
    "cert_revocation",
    "cert_crlDistribution",
    "cert_validityPeriod",
    "cipher_order",
}
WORSE_THAN_LOW = ("MEDIUM", "HIGH", "CRITICAL", "FATAL")


def test_testssl_finds_no_weakness(secure_peer: LimitedServer, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    checks = ["--protocols", "--server-defaults", "--vulnerable", "--fs", "--server-preference"]
    command = [
        find("testssl.sh") or require("testssl"),
        "--quiet",
        "--warnings",
        "off",
        "--nodns",
        "none",
        "--ip",
        "127.0.0.1",
    ]
    command += [*checks, "--jsonfile", str(path), f"localhost:{secure_peer.port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    found = json.loads(path.read_text())
    assert len(found) > 50, done.stdout
    worse = {it["id"]: it["finding"] for it in found if it["severity"] in WORSE_THAN_LOW}
    assert {name: what for name, what in worse.items() if name not in EXPECTED} == {}
