//! How many nanoseconds a head, an access check and a reply head cost: the least and the median
//! of many rounds, because the machine is shared.
//! `cargo run --release -p ucall-proto --example head_bench`

use std::hint::black_box;
use std::time::Instant;

use ucall_proto::http1::{
    AccessRules, ChunkedDecoder, ChunkedLimits, HeadLimits, HeadParser, InvalidAccessRule,
    ReplyHeaders, ReplyWriter,
};

const ROUNDS: usize = 301;
const CALLS: u32 = 20_000;

const WRK: &[u8] = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:8545\r\n\
    Content-Type: application/json\r\nContent-Length: 66\r\n\r\n";
const CURL: &[u8] = b"POST / HTTP/1.1\r\nHost: localhost:8545\r\nUser-Agent: curl/7.88.1\r\n\
    Accept: */*\r\nContent-Length: 66\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n";
const AIOHTTP: &[u8] = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:8545\r\nAccept: */*\r\n\
    Accept-Encoding: gzip, deflate\r\nUser-Agent: Python/3.11 aiohttp/3.9.1\r\n\
    Content-Length: 66\r\nContent-Type: application/json\r\n\r\n";
const LOWER: &[u8] = b"POST / HTTP/1.1\r\nhost: 127.0.0.1:8545\r\nconnection: keep-alive\r\n\
    content-type: application/json\r\naccept: */*\r\naccept-language: *\r\n\
    sec-fetch-mode: cors\r\nuser-agent: node\r\naccept-encoding: gzip, deflate\r\n\
    content-length: 66\r\n\r\n";

fn measure(name: &str, mut call: impl FnMut()) {
    let mut nanos: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            start.elapsed().as_nanos() as f64 / f64::from(CALLS)
        })
        .collect();
    nanos.sort_unstable_by(f64::total_cmp);
    println!("{name:<28} least {:7.1} ns, median {:7.1} ns", nanos[0], nanos[ROUNDS / 2]);
}

fn main() -> Result<(), InvalidAccessRule> {
    let limits = HeadLimits::default();
    for (name, head) in [
        ("least", b"POST / HTTP/1.1\r\nHost: a\r\n\r\n".as_slice()),
        ("wrk", WRK),
        ("curl", CURL),
        ("aiohttp", AIOHTTP),
        ("node fetch", LOWER),
    ] {
        let mut parser = HeadParser::default();
        let input =
            [head, br#"{"jsonrpc":"2.0","method":"sum","params":{"a":55,"b":21},"id":1234}"#]
                .concat();
        measure(&format!("head: {name} ({} bytes)", head.len()), || {
            let head = parser.parse(black_box(&input), &limits);
            let _ = black_box(&head);
        });
    }
    let rules = AccessRules::new(true, &[], &[])?;
    for host in ["127.0.0.1:8545", "localhost:8545", "[::1]:8545"] {
        measure(&format!("access: {host}"), || {
            let _ = black_box(rules.check(black_box(Some(host.as_bytes())), None, false));
        });
    }
    let mut writer = ReplyWriter::default();
    let mut out = Vec::with_capacity(4096);
    measure("reply: begin, body, end", || {
        out.clear();
        writer.set_time(black_box(1_795_294_800));
        let pending = writer.begin(&mut out, &ReplyHeaders::default());
        out.extend_from_slice(black_box(br#"{"jsonrpc":"2.0","result":76,"id":123}"#));
        writer.end(&mut out, pending);
        black_box(&out);
    });
    measure("chunked: 66 bytes", || {
        out.clear();
        let mut decoder = ChunkedDecoder::default();
        let input = black_box(
            b"42\r\n012345678901234567890123456789012\
              345678901234567890123456789012345\r\n0\r\n\r\n",
        );
        let _ = black_box(decoder.decode(input, &mut out, &ChunkedLimits::default()));
    });
    Ok(())
}
