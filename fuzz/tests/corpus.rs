//! Every target over its stored inputs, and over reproducible mutations of them.
//!
//! `MUTATIONS=1000000 cargo test --test corpus` tries more; a failing input is printed with its
//! panic, as one line of escaped bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::panic::{RefUnwindSafe, catch_unwind};
use std::path::Path;

use ucall_fuzz::TARGETS;
use ucall_fuzz::random::Random;

/// For each target; three seconds of the processor in all.
const MUTATIONS: usize = 10_000;
/// One handshake costs as much as a hundred inputs of other targets.
const MUTATIONS_OF_TLS: usize = 500;
/// One run is many calls, messages or objects, or a body that is decoded in every way.
const MUTATIONS_OF_LONG_RUNS: usize = 2_000;
/// Longer inputs find nothing that shorter ones do not.
const BYTES_MAX: usize = 4096;

/// What the languages of the targets are made of.
const TOKENS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u",
    "\\ud83d\\ude00",
    "\\u0000",
    "null",
    "true",
    "false",
    "-",
    "0",
    "1",
    "9",
    ".",
    "e",
    "E+",
    "1e999",
    "-0",
    "18446744073709551616",
    " ",
    "\n",
    "\r\n",
    "\r",
    "\t",
    "\0",
    "é",
    "\u{7f}",
    "\"jsonrpc\":\"2.0\"",
    "\"method\":\"d\"",
    "\"method\":\"m\"",
    "\"method\":\"g\"",
    "\"method\":\"$/cancelRequest\"",
    "\"_meta\":{\"progressToken\":1}",
    "\"timeout_ms\":",
    "\"params\":{\"id\":1}",
    "Accept: text/event-stream\r\n",
    "Accept: application/x-ndjson\r\n",
    "\"params\":[]",
    "\"params\":{}",
    "\"id\":1",
    "\"id\":null",
    "\"id\":\"x\"",
    "POST / HTTP/1.1\r\n",
    "OPTIONS * HTTP/1.1\r\n",
    "HTTP/1.0",
    "Host: localhost\r\n",
    "Host:",
    "Content-Length: 2\r\n",
    "Content-Length: ",
    "Transfer-Encoding: chunked\r\n",
    "chunked",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    "Expect: 100-continue\r\n",
    "Origin: http://localhost\r\n",
    "0\r\n\r\n",
    "5\r\n",
    ";",
    "=",
    "==",
    "ffffffff",
    "0x",
    "'descr': '<f8', ",
    "'shape': (",
    "(1,)",
    "True",
];

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no inputs are kept for {target}");
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn check(target: fn(&[u8]), input: &[u8])
where
    fn(&[u8]): RefUnwindSafe,
{
    if catch_unwind(|| target(input)).is_err() {
        panic!("the input was b\"{}\"", input.escape_ascii());
    }
}

fn mutate(input: &mut Vec<u8>, inputs: &[Vec<u8>], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(input.len() + 1);
        let end = at + random.below((input.len() - at).min(32) + 1);
        let replacement = match random.below(8) {
            0 => vec![],
            1 => vec![random.below(256) as u8],
            2..5 => TOKENS[random.below(TOKENS.len())].as_bytes().to_vec(),
            5 => input[at..end].repeat(1 + random.below(4)),
            6 => input.get(at).map(|byte| vec![byte ^ 1 << random.below(8)]).unwrap_or_default(),
            _ => {
                let other = &inputs[random.below(inputs.len())];
                let start = random.below(other.len() + 1);
                other[start..start + random.below(other.len() - start + 1)].to_vec()
            }
        };
        let end = if random.one_in(2) { at } else { end };
        input.splice(at..end, replacement);
    }
    input.truncate(BYTES_MAX);
}

fn drive(name: &str) {
    let (_, target) = TARGETS.iter().find(|(target, _)| *target == name).unwrap();
    let inputs = corpus(name);
    for input in &inputs {
        check(*target, input);
    }
    let wanted = std::env::var("MUTATIONS").ok().and_then(|text| text.parse().ok());
    let mut random = Random::new(name.len() as u64);
    let default_count = match name {
        "tls" => MUTATIONS_OF_TLS,
        "coded" | "pickle" | "queue_session" | "relay" => MUTATIONS_OF_LONG_RUNS,
        _ => MUTATIONS,
    };
    for _ in 0..wanted.unwrap_or(default_count) {
        let mut input = inputs[random.below(inputs.len())].clone();
        mutate(&mut input, &inputs, &mut random);
        check(*target, &input);
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            drive(stringify!($name));
        })*

        #[test]
        fn every_target_is_driven() {
            let driven = [$(stringify!($name)),*];
            assert!(TARGETS.iter().map(|(name, _)| *name).eq(driven));
        }
    };
}

targets! {
    base64 chunked coded connection datagrams endpoints frames http_head json_stream json_values npy
    params pickle queue_frames queue_session raw_documents relay relay_replies rpc_document tls
    websocket
    xdp_frames
}
