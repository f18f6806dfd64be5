"""The options of a queue as those of nats-py, and their checks."""

from __future__ import annotations

import re
import ssl
from typing import Any

from ucall._core import system_certificates
from ucall._nats.connection import check_options
from ucall._nats.subjects import parse_brokers
from ucall.queue.core.options import CommunicatorOptions, SecurityOptions, trusted_file

__all__ = ["broker_urls", "check_nats", "connection_options"]

#: Parts between dots, without the wildcards of NATS and white space.
_TOPIC = re.compile(r"[^\s.*>$][^\s.*>]*(\.[^\s.*>]+)*")


def check_nats(options: CommunicatorOptions) -> None:
    """Refuses options that nats-py or a broker would.

    Raises:
        ImportError: nats-py is not installed.
        OSError: A file of credentials cannot be read.
        ValueError: The message names the option.
    """
    broker = options.broker
    if _TOPIC.fullmatch(broker.topic) is None:
        raise ValueError(
            f"broker: expected a topic that is a subject of NATS, got {broker.topic!r}"
        )
    if options.security is not None and "tls" in broker.options:
        raise ValueError("broker: expected TLS in either the options of the broker or security")
    for name in ("user", "password"):
        if getattr(broker, name) is not None and name in broker.options:
            raise ValueError(f"broker: {name} is given twice")
    check_options(broker.options)
    broker_urls(options)


def broker_urls(options: CommunicatorOptions) -> list[str]:
    """The brokers of the option ``urls``, else the one at the ``netloc``."""
    if options.broker.urls is not None:
        return parse_brokers(options.broker.urls)
    host, port = options.netloc
    return [f"nats://[{host}]:{port}" if ":" in host else f"nats://{host}:{port}"]


def connection_options(options: CommunicatorOptions) -> dict[str, Any]:
    """The options of `nats.connect`.

    Raises:
        OSError: A file of TLS cannot be read, or is not one.
    """
    connection = options.connection
    given: dict[str, Any] = {
        "reconnect_time_wait": connection.reconnect[1],
        "ping_interval": connection.keepalive_s,
        **options.broker.options,
    }
    if options.broker.user is not None:
        given["user"] = options.broker.user
    if options.broker.password is not None:
        given["password"] = options.broker.password
    if options.security is not None:
        given["tls"] = _tls_context(options.security)
        if options.security.name is not None:
            given["tls_hostname"] = options.security.name
    return given


def _tls_context(security: SecurityOptions) -> ssl.SSLContext:
    trusted = trusted_file(security)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # A certificate that is no authority is trusted as such.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if trusted is not None:
        context.load_verify_locations(trusted)
    else:
        system = "".join(map(ssl.DER_cert_to_PEM_cert, system_certificates()))
        if system:
            context.load_verify_locations(cadata=system)
        if security.certificate is not None:
            # A client trusts its own certificate, too, but not the authorities in its chain.
            with open(security.certificate, encoding="ascii") as file:
                own, end, _ = file.read().partition("-----END CERTIFICATE-----")
            context.load_verify_locations(cadata=own + end)
    if security.key is not None and security.certificate is not None:
        context.load_cert_chain(security.certificate, security.key, security.password)
    return context
