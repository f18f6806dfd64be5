//! The clients of trusted proxies: a table of headers and clients.

use crate::http1::ForwardedClient::{self, Absent, Unknown};
use crate::http1::{HeadLimits, InvalidProxy, TrustedProxies, parse_head, request_origin};

fn proxies(entries: &[&str]) -> Result<Option<TrustedProxies>, InvalidProxy> {
    TrustedProxies::new(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>())
}

fn client(headers: &[&str]) -> ForwardedClient {
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
    let head = parse_head(head.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
    let trusted = ["10.0.0.0/8", "2001:db8:1::/48", "192.0.2.7"];
    proxies(&trusted).unwrap().unwrap().client(&head)
}

fn address(text: &str) -> ForwardedClient {
    ForwardedClient::Address(text.parse().unwrap())
}

#[test]
fn the_last_entry_that_is_no_trusted_proxy_is_the_client() {
    let cases: &[(&[&str], ForwardedClient)] = &[
        (&[], Absent),
        (&["X-Forwarded-For:"], Absent),
        (&["X-Forwarded-For: , ,"], Absent),
        (&["X-Forwarded-For: 198.51.100.1"], address("198.51.100.1:0")),
        (&["x-forwarded-for: 198.51.100.1:80"], address("198.51.100.1:80")),
        (&["X-Forwarded-For: 203.0.113.9, 198.51.100.1"], address("198.51.100.1:0")),
        (&["X-Forwarded-For: 198.51.100.1,10.0.0.1 ,192.0.2.7"], address("198.51.100.1:0")),
        (&["X-Forwarded-For: 198.51.100.1, ::ffff:10.0.0.1"], address("198.51.100.1:0")),
        (&["X-Forwarded-For: ::ffff:198.51.100.1"], address("198.51.100.1:0")),
        (&["X-Forwarded-For: 1.1.1.1", "X-Forwarded-For: 2.2.2.2"], address("2.2.2.2:0")),
        (&["X-Forwarded-For: 1.1.1.1", "X-Forwarded-For: 10.2.2.2"], address("1.1.1.1:0")),
        (&["X-Forwarded-For: 2001:db8::1"], address("[2001:db8::1]:0")),
        (&["X-Forwarded-For: [2001:db8::1]"], address("[2001:db8::1]:0")),
        (&["X-Forwarded-For: [2001:db8::1]:80, 2001:db8:1::2"], address("[2001:db8::1]:80")),
        (&["X-Forwarded-For: 10.0.0.3, 10.0.0.2"], address("10.0.0.3:0")),
        (&["X-Forwarded-For: unknown"], Unknown),
        (&["X-Forwarded-For: 10.0.0.1, nonsense, 10.0.0.1"], Unknown),
        (&["X-Forwarded-For: nonsense, 198.51.100.1"], address("198.51.100.1:0")),
        (&["Forwarded: for=198.51.100.1"], address("198.51.100.1:0")),
        (&["forwarded: FOR=\"198.51.100.1:80\""], address("198.51.100.1:80")),
        (&["Forwarded: for=198.51.100.1:80"], address("198.51.100.1:80")),
        (&["Forwarded: for=\"198.51.100.1:_port\""], address("198.51.100.1:0")),
        (
            &[
                "Forwarded: proto=https;for=\"[2001:db8::1]:80\";by=_x , for=10.0.0.1; host=\"a;b,c\"",
            ],
            address("[2001:db8::1]:80"),
        ),
        (&["Forwarded: for=1.1.1.1, , for=2.2.2.2,"], address("2.2.2.2:0")),
        (&["Forwarded: for=1.1.1.1", "Forwarded: for=10.0.0.1"], address("1.1.1.1:0")),
        (&["Forwarded: for=unknown"], Unknown),
        (&["Forwarded: for=_hidden, for=10.0.0.1"], Unknown),
        (&["Forwarded: for=1.1.1.1, proto=https"], Unknown),
        (&["Forwarded: by=\"\\\"for=1.1.1.1,\";for=2.2.2.2"], address("2.2.2.2:0")),
    ];
    for (headers, expected) in cases {
        assert_eq!(client(headers), *expected, "{headers:?}");
    }
}

#[test]
fn a_header_that_does_not_parse_names_no_client() {
    for value in [
        "for",
        "for=1.1.1.1;for=2.2.2.2",
        "for=\"1.1.1.1",
        "for=\"1.1.1.1\"x",
        "for=1.1.1.1 2.2.2.2",
        "1.1.1.1",
        // The client's quote hides what its proxy has appended.
        "for=1.1.1.1;x=\", for=\"2.2.2.2\"",
    ] {
        assert_eq!(client(&[&format!("Forwarded: {value}")]), Unknown, "{value}");
        // A line of the proxy follows the line of its client.
        let lines = [&*format!("Forwarded: {value}"), "Forwarded: for=2.2.2.2"];
        assert_eq!(client(&lines), address("2.2.2.2:0"), "{value}");
    }
    for node in [
        "1.1.1.1:",
        "1.1.1.1:65536",
        "1.1.1.1:-1",
        "1.1.1",
        "01.1.1.1",
        "[1.1.1.1]",
        "[::1",
        "[::1]80",
        "fe80::1%eth0",
        "[::1]:80:80",
        "host.example",
        "\u{e9}",
    ] {
        assert_eq!(client(&[&format!("X-Forwarded-For: {node}")]), Unknown, "{node}");
    }
}

#[test]
fn headers_that_contradict_one_another_name_no_client() {
    let both = |standard, common| {
        client(&[&format!("Forwarded: for={standard}"), &format!("X-Forwarded-For: {common}")])
    };
    assert_eq!(both("1.1.1.1", "1.1.1.1"), address("1.1.1.1:0"));
    assert_eq!(both("\"1.1.1.1:80\"", "1.1.1.1"), address("1.1.1.1:80"));
    assert_eq!(both("1.1.1.1", "1.1.1.1:80"), address("1.1.1.1:80"));
    assert_eq!(both("1.1.1.1", "2.2.2.2"), Unknown);
    assert_eq!(both("unknown", "2.2.2.2"), Unknown);
    assert_eq!(both("1.1.1.1", "unknown"), Unknown);
    assert_eq!(both("1.1.1.1", ""), address("1.1.1.1:0"));
}

#[test]
fn networks_end_at_their_last_address() {
    let cases = [
        ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
        ("192.0.2.128/25", "192.0.2.128", "192.0.2.127"),
        ("192.0.2.1", "192.0.2.1", "192.0.2.0"),
        ("192.0.2.1/32", "::ffff:192.0.2.1", "::ffff:192.0.2.2"),
        ("0.0.0.0/0", "255.255.255.255", "::1"),
        ("::/0", "ffff::", "127.0.0.1"),
        ("2001:db8::/33", "2001:db8:7fff::", "2001:db8:8000::"),
        ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
    ];
    for (network, inside, outside) in cases {
        let proxies = proxies(&[network]).unwrap().unwrap();
        assert!(proxies.trusts(inside.parse().unwrap()), "{network}: {inside}");
        assert!(!proxies.trusts(outside.parse().unwrap()), "{network}: {outside}");
        assert!(!proxies.trusts_unix());
    }
    assert!(proxies(&["unix:"]).unwrap().unwrap().trusts_unix());
    assert!(proxies(&[]).unwrap().is_none());
}

#[test]
fn other_entries_are_rejected() {
    for entry in
        ["", "*", "localhost", "10.0.0.1/8", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/+8"]
    {
        let error = proxies(&["10.0.0.1", entry]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("trusted_proxies: {entry:?} is not like ")), "{error}");
    }
}

#[test]
fn the_origin_is_what_the_client_has_used() {
    let trusted = proxies(&["10.0.0.0/8"]).unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&[], "http://a:80"),
        (&["X-Forwarded-Proto: https"], "https://a:80"),
        (&["X-Forwarded-Proto: HTTPS", "X-Forwarded-Host: b:8443"], "https://b:8443"),
        (
            &["X-Forwarded-Proto: http, https,", "X-Forwarded-Host: x", "x-forwarded-host: b"],
            "https://b",
        ),
        (&["X-Forwarded-Proto: gopher", "X-Forwarded-Host: b/c"], "http://a:80"),
        (&["Forwarded: proto=https;host=b"], "https://b"),
        (
            &["Forwarded: for=1.1.1.1;host=x, FOR=2.2.2.2;Host=\"b:1\", for=10.1.1.1;host=y"],
            "http://b:1",
        ),
        (&["Forwarded: for=10.0.0.1;host=b, for=10.0.0.2;host=x"], "http://b"),
        (&["Forwarded: host=b", "X-Forwarded-Host: x", "X-Forwarded-Proto: https"], "https://b"),
        (&["Forwarded: host=x", "Forwarded: host=y;host=z"], "http://a:80"),
        (&["Forwarded: host=\"b\\\"c\""], "http://a:80"),
    ];
    for (headers, expected) in cases {
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let head = format!("GET / HTTP/1.1\r\nHost: a:80\r\n{lines}\r\n");
        let head = parse_head(head.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
        assert_eq!(
            request_origin(&head, trusted.as_ref(), false).as_deref(),
            Some(*expected),
            "{headers:?}"
        );
        assert_eq!(request_origin(&head, None, true).as_deref(), Some("https://a:80"));
    }
    let head = parse_head(b"GET / HTTP/1.0\r\n\r\n", &HeadLimits::default()).unwrap().unwrap();
    assert_eq!(request_origin(&head, trusted.as_ref(), true), None);
}
