"""What `auth` of a server in C knows of a request."""

import http.client
import json
import ssl

import pytest
import trustme

import harness
from harness import Client, serving
from wire import UdpWire

PROGRAM = harness.PROGRAMS / "identity.c"
HTTP, WEBSOCKET, TCP, UDP = 1, 2, 3, 4
NO_CERTIFICATE = {"subject": None, "common_name": None, "names": [], "der": []}
LAST = {"jsonrpc": "2.0", "method": "last", "id": 1}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def test_auth_knows_the_transport_and_the_path(built, engine):
    with serving([built(PROGRAM), engine]) as server, Client(server.port) as client:

        def exchange(verb: str, path: str, headers: dict[str, str]) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request(verb, path, json.dumps(LAST) if verb == "POST" else None, headers)
            status = connection.getresponse().status
            connection.close()
            return status

        assert client.call("last") == {"transport": TCP, "path": None, **NO_CERTIFICATE}
        # The connection of this client is not authenticated again.
        for request, status, transport, path in [
            (("POST", "/", {}), 200, HTTP, "/"),
            (("GET", "/metrics?a=%20b", {}), 401, HTTP, "/metrics"),
            (("GET", "/ws", UPGRADE), 101, WEBSOCKET, "/ws"),
        ]:
            assert exchange(*request) == status
            assert client.call("last") == {"transport": transport, "path": path, **NO_CERTIFICATE}
        with UdpWire(server.port) as datagrams:
            reply = datagrams.exchange(LAST)
        assert reply["result"] == {"transport": UDP, "path": None, **NO_CERTIFICATE}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the files in PEM of an authority, a server, and two clients."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "root.pem")
    server = authority.issue_cert("localhost")
    server.cert_chain_pems[0].write_to_path(folder / "server.pem")
    server.private_key_pem.write_to_path(folder / "server.key")
    alice = authority.issue_cert("alice@example.com", "10.0.0.1", common_name="alice")
    alice.private_key_and_cert_chain_pem.write_to_path(folder / "alice.pem")
    unnamed = authority.issue_cert("host.example")
    unnamed.private_key_and_cert_chain_pem.write_to_path(folder / "unnamed.pem")
    return folder


@pytest.mark.parametrize(
    "client, common_name, names",
    [
        ("alice.pem", "alice", ["alice@example.com", "10.0.0.1"]),
        ("unnamed.pem", None, ["host.example"]),
        (None, None, []),
    ],
    ids=["named", "unnamed", "none"],
)
def test_auth_knows_the_certificate_of_the_client(built, engine, files, client, common_name, names):
    context = ssl.create_default_context(cafile=files / "root.pem")
    if client:
        context.load_cert_chain(files / client)
    command = [built(PROGRAM), engine, *(files / it for it in ("server.pem", "server.key"))]
    with (
        serving([*command, files / "root.pem"]) as server,
        Client(server.port, context=context, name="localhost") as caller,
    ):
        known = caller.call("last")
    assert (known["common_name"], known["names"]) == (common_name, names)
    if client is None:
        assert known == {"transport": TCP, "path": None, **NO_CERTIFICATE}
        return
    # The file has the key, then the client's certificate.
    pem = (files / client).read_text()
    start, end = pem.index("-----BEGIN CERT"), pem.index("-----END CERT")
    der = ssl.PEM_cert_to_DER_cert(pem[start:end] + "-----END CERTIFICATE-----")
    assert bytes(known["der"]) == der
    assert ("CN=alice" in known["subject"]) == (client == "alice.pem")
    assert "O=trustme" in known["subject"]
