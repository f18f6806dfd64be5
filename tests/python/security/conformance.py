"""Requirements of h1spec, RFC 9110 and RFC 9112 for an HTTP/1.1 server.

h1spec (github.com/uNetworking/h1spec) is in no package registry, so this file has its cases, after
its public list of names and accepted statuses. h1spec sends GET to an echo server. Cases that must
be rejected are sent as POST here, because a GET would be rejected for its method.
"""

from __future__ import annotations

from dataclasses import dataclass

from cases import CALL, HOST, chunked, head, post

from harness import http


@dataclass(frozen=True)
class Demand:
    """One case of a suite."""

    suite: str
    name: str
    sent: bytes
    #: The accepted statuses of the replies, x for any digit, "closed" for the end; one must match.
    accepted: tuple[str, ...]
    #: The reply and the reason, if it is none of them.
    instead: str = ""
    why: str = ""


H1SPEC = "h1spec"
LINE = "RFC 9112, 3: the request line"
FIELDS = "RFC 9112, 5 and RFC 9110, 7: Host and other fields"
BODY = "RFC 9112, 6 and 7: the body"
CONNECTION = "RFC 9112, 9 and RFC 9110: connections and replies"

BAD = ("4xx",)
ANY_ERROR = ("4xx", "5xx")
GOOD = ("2xx",)
LENGTH = f"Content-Length: {len(CALL)}"
GET = "GET / HTTP/1.1"
ONLY_POST = "calls are POST; the same as POST is the next case"


def line(text: str, *headers: str) -> bytes:
    """A call with another request line."""
    return head(text, HOST, LENGTH, *headers) + CALL


def called(*headers: str) -> bytes:
    """A call with more headers."""
    return post(LENGTH, *headers) + CALL


def sized(size: str, end: str = "\r\n0\r\n\r\n") -> bytes:
    """A call in one chunk with this text as its size."""
    return chunked(f"{size}\r\n".encode() + CALL + end.encode())


#: Fragments of a request after which h1spec expects the server to wait.
FRAGMENTS = {
    "method": b"P",
    "URL 1": b"POST ",
    "URL 2": b"POST /",
    "URL 3": b"POST / ",
    "HTTP version": b"POST / HTTP",
    "request line": b"POST / HTTP/1.1",
    "request line newline 1": b"POST / HTTP/1.1\r",
    "request line newline 2": b"POST / HTTP/1.1\r\n",
    "field name": b"POST / HTTP/1.1\r\nHos",
    "field value 1": b"POST / HTTP/1.1\r\nHost:",
    "field value 2": b"POST / HTTP/1.1\r\nHost: ",
    "field value 3": b"POST / HTTP/1.1\r\nHost: localhost",
    "field value 4": b"POST / HTTP/1.1\r\nHost: localhost\r",
    "request": b"POST / HTTP/1.1\r\nHost: localhost\r\n",
    "request termination": b"POST / HTTP/1.1\r\nHost: localhost\r\n\r",
}
#: A whole request that starts with each of them.
WHOLE = b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"

DEMANDS = [
    Demand(H1SPEC, "request without HTTP version", b"POST / \r\n\r\n", ANY_ERROR),
    Demand(
        H1SPEC,
        "request with Expect header",
        called("Expect: 100-continue"),
        ("2xx", "100"),
    ),
    Demand(H1SPEC, "valid GET request", head(GET, HOST), GOOD, "405", ONLY_POST),
    Demand(H1SPEC, "valid POST request", called(), GOOD),
    Demand(
        H1SPEC,
        "valid GET request with edge cases",
        head(GET, "hoSt:\tlocalhost", "empty:"),
        GOOD,
        "405",
        ONLY_POST,
    ),
    Demand(
        H1SPEC,
        "valid POST request with edge cases",
        head("POST / HTTP/1.1", "hoSt:\tlocalhost", "empty:", LENGTH) + CALL,
        GOOD,
    ),
    Demand(H1SPEC, "invalid header characters", called("X-Invalid[]: test"), BAD),
    Demand(H1SPEC, "missing Host header", head("POST / HTTP/1.1", LENGTH) + CALL, BAD),
    Demand(H1SPEC, "multiple Host headers", called("Host: 127.0.0.1"), BAD),
    Demand(
        H1SPEC,
        "overflowing negative Content-Length header",
        post("Content-Length: -" + "123456789" * 3),
        BAD,
    ),
    Demand(H1SPEC, "negative Content-Length header", post("Content-Length: -1234"), BAD),
    Demand(H1SPEC, "non-numeric Content-Length header", post("Content-Length: abc"), BAD),
    Demand(H1SPEC, "empty header value", called("X-Empty: "), GOOD),
    Demand(H1SPEC, "header containing invalid control character", called("X-Bad: test\x07"), BAD),
    Demand(H1SPEC, "invalid HTTP version", line("POST / HTTP/9.9"), ANY_ERROR),
    Demand(H1SPEC, "invalid prefix of request", line("Extra linePOST / HTTP/1.1"), ANY_ERROR),
    Demand(
        H1SPEC,
        "invalid line ending",
        called().replace(b"\r\n\r\n", b"\r\n\rSome: x\r\n\r\n"),
        BAD,
    ),
    Demand(H1SPEC, "valid POST request with body", called(), ("2xx", "404")),
    Demand(H1SPEC, "chunked Transfer-Encoding", sized(f"{len(CALL):x}"), GOOD),
    Demand(
        H1SPEC,
        "conflicting Transfer-Encoding and Content-Length",
        post("Transfer-Encoding: chunked", "Content-Length: 5"),
        BAD,
    ),
    Demand(
        H1SPEC,
        "conflicting Transfer-Encoding and Content-Length in varying case",
        post("transfer-Encoding: Chunked", "content-length: 5"),
        ("4xx", "2xx"),
    ),
    Demand(LINE, "a method in lower case", line("post / HTTP/1.1"), (*BAD, "501")),
    Demand(LINE, "a method that is not a token", line("PO(ST / HTTP/1.1"), ("400", "501")),
    Demand(LINE, "an unknown method", line("BREW / HTTP/1.1"), ("405", "501")),
    Demand(LINE, "TRACE", head("TRACE / HTTP/1.1", HOST), ("405", "501")),
    Demand(LINE, "CONNECT", head("CONNECT localhost:80 HTTP/1.1", HOST), ("4xx", "501")),
    Demand(LINE, "OPTIONS *", head("OPTIONS * HTTP/1.1", HOST), ("2xx", "405")),
    Demand(LINE, "POST *", line("POST * HTTP/1.1"), BAD),
    Demand(LINE, "an absolute target", line("POST http://localhost/ HTTP/1.1"), GOOD),
    Demand(
        LINE,
        "an absolute target of another name than Host",
        line("POST http://127.0.0.1/ HTTP/1.1"),
        ("2xx", "400", "421"),
    ),
    Demand(LINE, "an absolute target without a name", line("POST http:/// HTTP/1.1"), BAD),
    Demand(LINE, "an authority as target", line("POST localhost:80 HTTP/1.1"), BAD),
    Demand(LINE, "a relative target", line("POST other HTTP/1.1"), BAD),
    Demand(LINE, "a query", line("POST /?a=b HTTP/1.1"), GOOD),
    Demand(
        LINE,
        "a fragment in the target",
        line("POST /#top HTTP/1.1"),
        ("400",),
    ),
    Demand(LINE, "a space in the target", line("POST /a b HTTP/1.1"), ("400",)),
    Demand(LINE, "a NUL in the target", line("POST /\0 HTTP/1.1"), ("400",)),
    Demand(LINE, "a byte above 127 in the target", line("POST /\xff HTTP/1.1"), BAD),
    Demand(LINE, "a target of 20,000 bytes", line(f"POST /{'a' * 20_000} HTTP/1.1"), BAD),
    Demand(LINE, "two spaces", line("POST  / HTTP/1.1"), ("400", "2xx")),
    Demand(LINE, "a tab for a space", line("POST\t/ HTTP/1.1"), ("400", "2xx")),
    Demand(LINE, "a space at the end", line("POST / HTTP/1.1 "), ("400", "2xx")),
    Demand(LINE, "an empty line before it", b"\r\n" + called(), GOOD),
    Demand(LINE, "http in lower case", line("POST / http/1.1"), ("400", "505")),
    Demand(LINE, "HTTP/1.1x", line("POST / HTTP/1.1x"), ("400", "505")),
    Demand(LINE, "HTTP/1.10", line("POST / HTTP/1.10"), ("400", "505")),
    Demand(LINE, "HTTP/2.0", line("POST / HTTP/2.0"), ("505", "400")),
    Demand(
        LINE,
        "HTTP/1.2",
        line("POST / HTTP/1.2"),
        GOOD,
        "505",
        "a SHOULD; there is no such version to be held to",
    ),
    Demand(FIELDS, "an empty Host", head("POST / HTTP/1.1", "Host:", LENGTH) + CALL, BAD),
    Demand(FIELDS, "Host with a path", head("POST / HTTP/1.1", "Host: localhost/a"), ("400",)),
    Demand(FIELDS, "Host with an invalid port", head("POST / HTTP/1.1", "Host: a:b"), ("400",)),
    Demand(
        FIELDS,
        "Host with a port",
        head("POST / HTTP/1.1", "Host: localhost:1", LENGTH) + CALL,
        GOOD,
    ),
    Demand(
        FIELDS,
        "HTTP/1.0 without Host",
        head("POST / HTTP/1.0", LENGTH) + CALL,
        GOOD,
        "403",
        "on a loopback address Host has to name it, against DNS rebinding",
    ),
    Demand(FIELDS, "a space before the colon", called("A : b"), ("400",)),
    Demand(FIELDS, "a folded line", called("A: b", " c"), ("400", "2xx")),
    Demand(FIELDS, "a folded first line", head("POST / HTTP/1.1", " A: b", HOST), ("400", "2xx")),
    Demand(FIELDS, "a line without a colon", called("A"), ("400",)),
    Demand(FIELDS, "an empty name", called(": b"), ("400",)),
    Demand(FIELDS, "a name with a byte above 127", called("\xe9: b"), ("400",)),
    Demand(FIELDS, "a NUL in a value", called("A: b\0c"), ("400", "2xx")),
    Demand(FIELDS, "a CR in a value", called("A: b\rc"), ("400", "2xx")),
    Demand(FIELDS, "a line ended by LF", called("A: b\nB: c"), ("400", "2xx")),
    Demand(FIELDS, "a byte above 127 in a value", called("A: \xe9"), GOOD),
    Demand(FIELDS, "spaces and tabs around a value", called("A: \t b \t "), GOOD),
    Demand(FIELDS, "every character of a token", called("!#$%&'*+-.^_`|~09azAZ: b"), GOOD),
    Demand(FIELDS, "101 fields", called(*["A: b"] * 99), BAD),
    Demand(FIELDS, "a field of 20,000 bytes", called("A: " + "b" * 20_000), BAD),
    Demand(BODY, "Content-Length twice, alike", called(LENGTH), ("400", "2xx")),
    Demand(BODY, "Content-Length twice, unlike", called("Content-Length: 5"), ("400",)),
    Demand(BODY, "a list of one length", post(f"{LENGTH}, {len(CALL)}") + CALL, ("400", "2xx")),
    Demand(BODY, "a length with a sign", post(f"Content-Length: +{len(CALL)}") + CALL, ("400",)),
    Demand(BODY, "a length in hex", post("Content-Length: 0x10"), ("400",)),
    Demand(BODY, "a length of 20 digits", post("Content-Length: " + "9" * 20), ("400", "413")),
    Demand(BODY, "zeros before a length", post(f"Content-Length: 00{len(CALL)}") + CALL, GOOD),
    Demand(BODY, "chunks in HTTP/1.0", post("Transfer-Encoding: chunked", version="HTTP/1.0"), BAD),
    Demand(BODY, "an unknown coding", post("Transfer-Encoding: x, chunked"), ("501", "400")),
    Demand(BODY, "chunked not last", post("Transfer-Encoding: chunked, gzip"), ("400", "501")),
    Demand(BODY, "chunked twice", post("Transfer-Encoding: chunked, chunked"), ("400", "501")),
    Demand(BODY, "xchunked", post("Transfer-Encoding: xchunked"), ("400", "501")),
    Demand(
        BODY,
        "Chunked with a capital",
        sized(f"{len(CALL):x}").replace(b"chunked", b"Chunked"),
        GOOD,
    ),
    Demand(BODY, "a size in capitals", sized(f"{len(CALL):X}"), GOOD),
    Demand(BODY, "zeros before a size", sized(f"000{len(CALL):x}"), GOOD),
    Demand(BODY, "an extension", sized(f'{len(CALL):x};a="b;c"'), GOOD),
    Demand(BODY, "an extension without a value", sized(f"{len(CALL):x};a"), GOOD),
    Demand(BODY, "two extensions", sized(f"{len(CALL):x};a=b;c"), GOOD),
    Demand(BODY, "an escaped quote in an extension", sized(f'{len(CALL):x};a="q\\"x"'), GOOD),
    Demand(BODY, "white space in an extension", sized(f"{len(CALL):x}; a\t= b"), GOOD),
    Demand(
        BODY,
        "white space before an extension",
        sized(f"{len(CALL):x} ;a"),
        GOOD,
        "400",
        "strict parsers (h11, llhttp) refuse it, so a proxy may",
    ),
    Demand(BODY, "an extension without a name", sized(f"{len(CALL):x};"), ("400",)),
    Demand(BODY, "an extension of white space", sized(f"{len(CALL):x}; "), ("400",)),
    Demand(BODY, "an extension of a value alone", sized(f"{len(CALL):x};=x"), ("400",)),
    Demand(BODY, "a trailer", sized(f"{len(CALL):x}", "\r\n0\r\nA: b\r\n\r\n"), GOOD),
    Demand(BODY, "a size of 0x", sized(f"0x{len(CALL):x}"), ("400",)),
    Demand(BODY, "a negative size", sized("-1"), ("400",)),
    Demand(BODY, "no size", sized(""), ("400",)),
    Demand(BODY, "a size that is not a number", sized("g"), ("400",)),
    Demand(BODY, "a size of 17 digits", sized("f" * 17), ("400", "413")),
    Demand(BODY, "chunk data longer than its size", sized(f"{len(CALL) - 1:x}"), ("400",)),
    Demand(BODY, "no line end after a chunk", sized(f"{len(CALL):x}", "0\r\n\r\n"), ("400",)),
    Demand(BODY, "an unknown Expect", called("Expect: more"), ("417", "2xx")),
    Demand(BODY, "Expect, and no body yet", post(LENGTH, "Expect: 100-continue"), ("100",)),
    Demand(BODY, "no length at all", post(), ("2xx", "411", "400")),
    Demand(CONNECTION, "two calls, pipelined", called() * 2, ("2xx, 2xx",)),
    Demand(CONNECTION, "Connection: close", called("Connection: close"), ("2xx, closed",)),
    Demand(CONNECTION, "close in a list", called("Connection: a, Close"), ("2xx, closed",)),
    Demand(CONNECTION, "HTTP/1.0", line("POST / HTTP/1.0"), ("2xx, closed",)),
    Demand(
        CONNECTION,
        "HTTP/1.0 with keep-alive",
        line("POST / HTTP/1.0", "Connection: keep-alive") * 2,
        ("2xx, 2xx", "2xx, closed"),
    ),
    Demand(CONNECTION, "HEAD", head("HEAD / HTTP/1.1", HOST), ("2xx", "405")),
    Demand(CONNECTION, "an unknown Upgrade", called("Connection: Upgrade", "Upgrade: x"), GOOD),
    Demand(
        CONNECTION,
        "a request after an error",
        head("DELETE / HTTP/1.1", HOST) + called(),
        ("4xx, closed",),
    ),
    Demand(CONNECTION, "a call, then a bad one", http(CALL) + b"x\r\n\r\n", ("2xx, 4xx",)),
]
