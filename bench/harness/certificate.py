"""A certificate for 127.0.0.1 from an authority of its own: ECDSA on P-256."""

from bench import OUTPUT

#: The certificate and its key, and the authority.
CHAIN, AUTHORITY = OUTPUT / "tls.pem", OUTPUT / "tls-authority.pem"


def issue() -> None:
    # A machine that runs models alone may lack it.
    import trustme

    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(CHAIN)
    authority.cert_pem.write_to_path(AUTHORITY)
