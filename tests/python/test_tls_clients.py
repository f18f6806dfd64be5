"""TLS with other implementations: openssl, curl, Go, Python's HTTP clients, and sslyze."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import httpx
import pytest
import requests
from certificates import Authority, Files, authority, files
from functions import add
from programs import require
from serving import Serve

import ucall
from harness import request

__all__ = ["authority", "files"]

GO_CLIENT = Path(__file__).parents[2] / ".bench" / "tls_client"


@pytest.fixture
def server(serve: Serve, authority: Authority, files: Files) -> ucall.Server:
    return serve(add, ssl_certfile=files.certificate, ssl_keyfile=files.key)


def output(*command: str | Path, input: bytes | None = None) -> str:
    done = subprocess.run(command, input=input, capture_output=True, timeout=120)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


@pytest.mark.parametrize("version", ["tls1_2", "tls1_3"])
def test_openssl(server: ucall.Server, authority: Authority, version: str) -> None:
    """Sends a document over raw TCP after a verified handshake."""
    command = [require("openssl"), "s_client", "-quiet", "-verify_return_error", f"-{version}"]
    command += ["-connect", f"127.0.0.1:{server.port}", "-servername", "localhost"]
    command += ["-verify_hostname", "localhost", "-CAfile", str(authority.path)]
    # The server closes the connection after an invalid document, which ends s_client.
    said = output(*command, input=request("add", [1, 2]) + b"\nend\n")
    first, second = said.splitlines()
    assert json.loads(first)["result"] == 3
    assert json.loads(second)["error"]["code"] == -32700


def test_openssl_gets_close_notify(serve: Serve, authority: Authority, files: Files) -> None:
    """Without close_notify it prints `unexpected eof` and has status 1."""
    server = serve(add, ssl_certfile=files.both)
    command = [require("openssl"), "s_client", "-quiet", "-verify_return_error"]
    command += ["-connect", f"127.0.0.1:{server.port}", "-servername", "localhost"]
    command += ["-CAfile", str(authority.path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as client:
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write(request("add", [1, 2]))
        client.stdin.flush()
        assert json.loads(client.stdout.readline())["result"] == 3
        # The connection is idle, so the drain closes it.
        server.stop()
        _, complaint = client.communicate(timeout=60)
    assert client.returncode == 0 and b"eof" not in complaint, complaint


@pytest.mark.parametrize("version", ["--tls-max 1.2", "--tlsv1.3"])
def test_curl(server: ucall.Server, authority: Authority, version: str) -> None:
    uri = f"https://localhost:{server.port}/"
    options = ["--silent", "--show-error", "--fail", "--cacert", str(authority.path)]
    options += ["--write-out", "|%{http_version} %{num_connects}|", *version.split()]
    body = request("add", [1, 2]).decode()
    said = output(
        require("curl"), *options, "--data", body, uri, "--next", *options, "--data", body, uri
    )
    first, connected, second, again, _ = said.split("|")
    assert json.loads(first) == json.loads(second) == {"jsonrpc": "2.0", "id": 1, "result": 3}
    assert (connected, again) == ("1.1 1", "1.1 0"), "the second call has the same connection"


@pytest.fixture
def go_client() -> Path:
    """Go's own client, which make builds before the tests."""
    require("go")
    assert GO_CLIENT.exists(), "make .bench/tls_client builds it"
    return GO_CLIENT


def test_go(server: ucall.Server, authority: Authority, go_client: Path) -> None:
    """HTTP with connections kept and sessions resumed, from several goroutines, and raw TLS."""
    said = json.loads(output(go_client, str(authority.path), str(server.port)))
    assert said["calls"] == 400 and said["raw"] == 3
    assert said["resumed"] is True
    assert said["version"] == "TLS 1.3"


def test_go_gets_an_error_for_plaintext(
    serve: Serve, authority: Authority, files: Files, go_client: Path
) -> None:
    plain = serve(add)
    done = subprocess.run([go_client, authority.path, str(plain.port)], capture_output=True)
    assert b"server gave HTTP response to HTTPS client" in done.stderr


def test_python_http_clients(server: ucall.Server, authority: Authority) -> None:
    uri, call = f"https://localhost:{server.port}/", {"jsonrpc": "2.0", "method": "add", "id": 1}
    with requests.Session() as session:
        for number in range(10):
            reply = session.post(
                uri, json=call | {"params": [number, 1]}, verify=str(authority.path)
            )
            assert reply.json()["result"] == number + 1
    with httpx.Client(verify=authority.context()) as client:
        for number in range(10):
            replied = client.post(uri, json=call | {"params": [number, 1]})
            assert replied.json()["result"] == number + 1


def strict_files(folder: Path) -> tuple[Path, Path, Path]:
    """An authority, a certificate and its key with the fields that browsers require."""
    root, root_key, own, key = (folder / name for name in ("root", "root.key", "own", "own.key"))
    new = [require("openssl"), "req", "-x509", "-newkey", "ec", "-nodes", "-days", "90"]
    new += ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    output(*new, "-keyout", root_key, "-out", root, "-subj", "/CN=Authority", *usage)
    signed = ["-CA", root, "-CAkey", root_key, "-addext", "subjectAltName=DNS:localhost"]
    signed += ["-addext", "basicConstraints=critical,CA:false"]
    signed += ["-addext", "extendedKeyUsage=serverAuth"]
    output(*new, "-keyout", key, "-out", own, "-subj", "/CN=localhost", *signed)
    return root, own, key


def test_mozilla_intermediate_profile(serve: Serve, tmp_path: Path) -> None:
    """sslyze scans protocols, ciphers and known weaknesses, and compares with Mozilla's profile."""
    pytest.importorskip("sslyze")
    from sslyze import (
        CertificateInfoExtraArgument,
        ScanCommandsExtraArguments,
        Scanner,
        ServerNetworkLocation,
        ServerScanRequest,
    )
    from sslyze.mozilla_tls_profile.tls_config_checker import (
        MozillaTlsConfiguration,
        TlsConfigurationEnum,
        check_server_against_tls_configuration,
    )

    root, certificate, key = strict_files(tmp_path)
    server = serve(add, ssl_certfile=certificate, ssl_keyfile=key)
    location = ServerNetworkLocation("localhost", server.port, ip_address="127.0.0.1")
    trust = CertificateInfoExtraArgument(custom_ca_file=root)
    more = ScanCommandsExtraArguments(certificate_info=trust)
    scanner = Scanner()
    scanner.queue_scans([ServerScanRequest(location, scan_commands_extra_arguments=more)])
    [result] = scanner.get_results()
    assert result.scan_result is not None, result.connectivity_error_trace
    profile = MozillaTlsConfiguration.get(TlsConfigurationEnum.MOZILLA_INTERMEDIATE)
    check_server_against_tls_configuration(result, profile)
