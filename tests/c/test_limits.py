"""Every limit of the configuration in C: its last allowed and its first rejected value."""

import gzip
import http.client
import json
import ssl

import limits
import pytest
import trustme
from limits import LIMITS, TIMEOUT_S, TIMEOUTS, LimitedServer

import harness
from harness import serving

PROGRAM = harness.PROGRAMS / "limits.c"


@pytest.fixture(params=["plain", "TLS"])
def security(request, tmp_path):
    """The program's arguments, and the TLS context of its clients."""
    if request.param == "plain":
        return [], None
    authority = trustme.CA()
    path = tmp_path / "server.pem"
    authority.issue_cert(limits.HOST).private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return ["--certificate", path], context


@pytest.mark.one_of("engine", "security")
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.c)
def test_every_limit_by_its_field(built, engine, security, limit):
    flags, context = security
    flags = [*flags, "--ping_interval_ms", round(limit.ping_interval_s * 1000)]
    command = [built(PROGRAM), "--engine", engine, *flags, f"--{limit.c}", limit.value]
    with serving(command) as server:
        limit.check(LimitedServer(server.port, context), limit.value)


@pytest.mark.one_of("engine", "security")
def test_every_limit_in_time_by_its_field(built, engine, security):
    flags, context = security
    for name in TIMEOUTS:
        flags = [*flags, f"--{name}_ms", round(TIMEOUT_S * 1000)]
    with serving([built(PROGRAM), "--engine", engine, *flags]) as server:
        limits.check_timeouts(LimitedServer(server.port, context))


@pytest.mark.one_of("engine")
def test_compressed_replies(built, engine):
    lengths = ["--compression_min_bytes", 100, "--compression_max_bytes", 10_000]
    overhead = len(b'{"jsonrpc":"2.0","id":1,"result":""}')
    with serving([built(PROGRAM), "--engine", engine, *lengths]) as server:
        connection = http.client.HTTPConnection(limits.HOST, server.port, timeout=60)
        for length, is_coded in ((99, False), (100, True), (10_000, True), (10_001, False)):
            value = "x" * (length - overhead)
            call = {"jsonrpc": "2.0", "method": "echo", "params": {"value": value}, "id": 1}
            connection.request("POST", "/", json.dumps(call), {"Accept-Encoding": "gzip"})
            reply = connection.getresponse()
            body = reply.read()
            assert (reply.headers["Content-Encoding"] == "gzip") == is_coded
            text = gzip.decompress(body) if is_coded else body
            assert len(text) == length and json.loads(text)["result"] == value
        connection.close()
