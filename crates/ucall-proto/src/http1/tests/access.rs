//! Who may call: a table of server, Host, Origin and verdict.

use crate::http1::{
    AccessRules, AllowedOrigin, HeadLimits, HttpError, InvalidAccessRule, parse_head,
};

fn rules(is_loopback: bool, hosts: &[&str], origins: &[&str]) -> AccessRules {
    AccessRules::new(is_loopback, &owned(hosts), &owned(origins)).unwrap()
}

fn owned(entries: &[&str]) -> Vec<String> {
    entries.iter().map(|entry| (*entry).to_owned()).collect()
}

/// `None`: served without CORS headers; `Some`: served with them.
fn check<'a>(
    rules: &AccessRules,
    host: &str,
    origin: impl Into<Option<&'a str>>,
) -> Result<Option<&'a str>, HttpError> {
    let origin = origin.into();
    let head = format!("POST / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    if let Ok(Some(head)) = parse_head(head.as_bytes(), &HeadLimits::default())
        && rules.allows_unchecked(head.names_loopback())
    {
        let checked = rules.check(Some(host.as_bytes()), None, false);
        assert_eq!(checked, Ok(None), "{host} was admitted by a look at its name");
    }
    let granted = rules.check(Some(host.as_bytes()), origin.map(str::as_bytes), false)?;
    Ok(granted.map(|granted: AllowedOrigin<'a>| std::str::from_utf8(granted.as_bytes()).unwrap()))
}

#[test]
fn on_loopback_only_known_hosts_are_served() {
    let rules = rules(true, &["Dev.Example:9", "::2", "10.0.0.1"], &[]);
    for host in [
        "127.0.0.1",
        "127.0.0.1:8545",
        "localhost",
        "localhost:1",
        "LocalHost:1",
        "[::1]",
        "[::1]:8545",
        "dev.example",
        "DEV.EXAMPLE:80",
        "[::2]:1",
        "10.0.0.1:5",
        "127.0.0.1:",
    ] {
        assert_eq!(check(&rules, host, None), Ok(None), "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:8545",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "127.0.0.2",
        "127.0.0.11",
        "localhost.",
        "localhostx",
        "x.dev.example",
        "[::]",
        "0.0.0.0",
        "",
        ":80",
        "127.0.0.1:80x",
        "[::1",
        "[::1]x",
    ] {
        assert_eq!(check(&rules, host, None), Err(HttpError::HostForbidden), "{host}");
    }
    assert_eq!(rules.check(None, None, false), Err(HttpError::HostForbidden));
}

#[test]
fn off_loopback_hosts_matter_only_with_an_origin() {
    let rules = rules(false, &["api.example"], &["*"]);
    assert_eq!(rules.check(None, None, false), Ok(None));
    assert_eq!(check(&rules, "whatever.example", None), Ok(None));
    for host in ["10.0.0.1", "10.0.0.1:80", "[fe80::1]:80", "api.example", "API.example:8080"] {
        assert_eq!(check(&rules, host, "http://x"), Ok(Some("http://x")), "{host}");
    }
    for host in ["evil.example", "localhost", "10.0.0.1.evil.example", "10.1", "[fe80::1", "x:80"] {
        assert_eq!(check(&rules, host, "http://x"), Err(HttpError::HostForbidden), "{host}");
        let own = format!("http://{host}");
        assert_eq!(check(&rules, host, own.as_str()), Err(HttpError::HostForbidden), "{host}");
    }
    assert_eq!(rules.check(None, Some(b"http://x"), false), Err(HttpError::HostForbidden));
}

#[test]
fn only_its_own_origin_is_served_by_default() {
    let rules = rules(true, &[], &[]);
    for (host, origin) in [
        ("localhost:8545", "http://localhost:8545"),
        ("LOCALHOST:8545", "http://localhost:8545"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("127.0.0.1:80", "http://127.0.0.1"),
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("[::1]:8545", "http://[::1]:8545"),
    ] {
        assert_eq!(check(&rules, host, origin), Ok(None), "{origin}");
    }
    for origin in [
        "null",
        "",
        "http://evil.example",
        "http://localhost:3000",
        "http://localhost",
        "https://localhost:8545",
        "http://127.0.0.1:8545",
        "http://localhost:8545.evil.example",
        "http://localhost:8545/",
        "http://localhost:8545, http://evil.example",
        "localhost:8545",
        "ws://localhost:8545",
        "http://localhost:08545x",
        "chrome-extension://abc",
        "*",
    ] {
        let verdict = check(&rules, "localhost:8545", origin);
        assert_eq!(verdict, Err(HttpError::OriginForbidden), "{origin}");
    }
}

#[test]
fn a_foreign_origin_does_not_allow_a_foreign_host() {
    let rules = rules(true, &[], &["*"]);
    for origin in ["http://evil.example", "http://localhost:8545"] {
        let verdict = check(&rules, "evil.example:8545", origin);
        assert_eq!(verdict, Err(HttpError::HostForbidden));
    }
}

#[test]
fn over_tls_the_own_scheme_is_https() {
    let rules = rules(true, &[], &[]);
    let check = |host: &str, origin: &'static str| {
        rules.check(Some(host.as_bytes()), Some(origin.as_bytes()), true)
    };
    assert_eq!(check("localhost", "https://localhost"), Ok(None));
    assert_eq!(check("localhost", "https://localhost:443"), Ok(None));
    assert_eq!(check("localhost", "http://localhost"), Err(HttpError::OriginForbidden));
}

#[test]
fn allowed_origins_are_granted() {
    let origins = ["https://App.Example/", "http://a.example:80", "app://x", "http://b:8080"];
    let rules = rules(true, &[], &origins);
    for origin in ["https://app.example", "http://a.example", "app://x", "http://b:8080"] {
        assert_eq!(check(&rules, "localhost:1", origin), Ok(Some(origin)), "{origin}");
    }
    for origin in ["http://app.example", "https://app.example:8443", "null", "http://b"] {
        assert_eq!(check(&rules, "localhost:1", origin), Err(HttpError::OriginForbidden));
    }
    let null = AccessRules::new(true, &[], &owned(&["null"])).unwrap();
    assert_eq!(check(&null, "localhost:1", "null"), Ok(Some("null")));
    let any = AccessRules::new(true, &[], &owned(&["*"])).unwrap();
    for origin in ["null", "http://x"] {
        assert_eq!(check(&any, "localhost:1", origin), Ok(Some(origin)));
    }
}

#[test]
fn rules_that_could_never_match_are_errors() {
    for host in ["", "a b", "http://a", "a/", "user@a", "*", "*.example"] {
        let outcome = AccessRules::new(true, &owned(&[host]), &[]);
        assert_eq!(outcome.err(), Some(InvalidAccessRule::Host(host.to_owned())), "{host}");
    }
    for origin in [
        "",
        "a",
        "example.com",
        "://a",
        "http://",
        "http://a/b",
        "http://u@a",
        "**",
        "https://*.example",
    ] {
        let outcome = AccessRules::new(true, &[], &owned(&[origin]));
        assert_eq!(outcome.err(), Some(InvalidAccessRule::Origin(origin.to_owned())), "{origin}");
    }
}
