"""An issuer of access tokens for tests: its keys, and its documents on a port of its own."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from wire import HOST

__all__ = ["AUDIENCE", "METADATA", "Issuer", "jwk_of"]

AUDIENCE = "https://api.example.com"
METADATA = "/.well-known/oauth-authorization-server"


def jwk_of(key: Any, kid: str | None) -> dict[str, Any]:
    """The public part of an EC key."""
    jwk = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return jwk if kid is None else {**jwk, "kid": kid}


class Issuer:
    """Issues tokens signed by `key`, and answers requests with `documents`, by path. A function
    there gets the query or the body of its request."""

    def __init__(self, path: str = "") -> None:
        self.paths: list[str] = []
        self.documents: dict[str, Any] = {}
        #: Where a 302 leads to.
        self.location = "/elsewhere"
        #: A test takes it while the issuer is not to answer.
        self.answering = threading.Lock()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                self.answer(path, query)

            def do_POST(self) -> None:
                self.answer(
                    self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()
                )

            def answer(self, path: str, text: str) -> None:
                issuer.paths.append(path)
                with issuer.answering:
                    document = issuer.documents.get(path, 404)
                document = document(text) if callable(document) else document
                is_text = isinstance(document, bytes)
                content = document if is_text else json.dumps(document).encode()
                self.send_response(document if isinstance(document, int) else 200)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Content-Type", "application/json")
                self.send_header("Location", issuer.location)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Writes nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.origin = f"http://{HOST}:{self._server.server_port}"
        self.name = self.origin + path
        self.documents[METADATA + path] = {"issuer": self.name, "jwks_uri": self.origin + "/keys"}
        self.rotate("first")

    def rotate(self, kid: str) -> None:
        """Signs with another key from now on, the only one that is published."""
        self.kid = kid
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.documents["/keys"] = {"keys": [jwk_of(self.key, kid)]}

    def token(
        self, *, headers: dict[str, Any] | None = None, key: str | None = None, **claims: Any
    ) -> str:
        """A valid token with changes; a claim or header of None is left out. Times are seconds from
        now, and with a `key` it is not signed by ours."""
        whole = {
            "iss": self.name,
            "aud": AUDIENCE,
            "sub": "alice",
            "exp": 600,
            **claims,
        }
        for name in ("exp", "nbf", "iat"):
            if isinstance(whole.get(name), int):
                whole[name] += int(time.time())  # Any of JSON, as tests give it
        whole = {name: value for name, value in whole.items() if value is not None}
        named = {"kid": self.kid, "typ": "at+jwt", **(headers or {})}
        named = {name: value for name, value in named.items() if value is not None}
        return jwt.encode(
            whole,
            self.key if key is None else ec.generate_private_key(ec.SECP256R1()),
            "ES256",
            headers=named,
        )

    @property
    def readings(self) -> int:
        """How often the keys were read."""
        return self.paths.count("/keys")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
