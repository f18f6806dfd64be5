"""A test authority, and files with the certificates that it signs."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization


@dataclass(frozen=True)
class Files:
    """A certificate and its key: apart, in one file, and with the key encrypted by `PASSWORD`."""

    certificate: Path
    key: Path
    both: Path
    encrypted_key: Path

    PASSWORD = "a password"


class Authority:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = trustme.CA()
        self.path = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(self.path)

    def sign(
        self,
        *names: str,
        file: str | None = None,
        common_name: str | None = None,
        valid_days: tuple[int, int] = (-1, 90),
    ) -> Files:
        """Files for these names; the first name is the default name of the files."""
        since, until = (datetime.now(UTC) + timedelta(days=days) for days in valid_days)
        issued = self._authority.issue_cert(
            *names, common_name=common_name, not_before=since, not_after=until
        )
        stem = (file or names[0]).replace("*", "any").replace(":", "-")
        paths = [self.folder / f"{stem}{end}" for end in (".crt", ".key", ".pem", "-secret.key")]
        files = Files(*paths)
        issued.cert_chain_pems[0].write_to_path(files.certificate)
        issued.private_key_pem.write_to_path(files.key)
        issued.private_key_and_cert_chain_pem.write_to_path(files.both)
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        files.encrypted_key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(Files.PASSWORD.encode()),
            )
        )
        return files

    def context(self, client: Files | None = None) -> ssl.SSLContext:
        """The TLS context of a client: its trusted authority and its own certificate."""
        context = ssl.create_default_context(cafile=self.path)
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    yield Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def files(authority: Authority) -> Files:
    """The certificate of a server on this machine."""
    return authority.sign("localhost", "127.0.0.1")


def client_hello(context: ssl.SSLContext) -> bytes:
    """A client's first record, with its ClientHello."""
    hello = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    return hello.read()
