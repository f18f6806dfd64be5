//! A call allocates nothing once its connection has had a few.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../ucall-proto/tests/counting_allocator/mod.rs"]
mod counting_allocator;
#[cfg(target_os = "linux")]
#[path = "../../ucall-engine/tests/skipped/mod.rs"]
mod skipped;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use counting_allocator::{CountingAllocator, allocations};
use ucall_engine::Engine;
use ucall_engine::posix::Posix;
#[cfg(target_os = "linux")]
use ucall_engine::uring::{Config, Features, Uring};
use ucall_proto::http1::AccessRules;
use ucall_proto::{Call, CallOutcome, Reply};
use ucall_server::{AnyWorker, Caller, Handler, Procedures, Worker, WorkerConfig};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Its procedure returns its params.
struct Echo;

impl Handler for Echo {
    type Procedure = ();

    fn call(&mut self, _: &(), call: &Call<'_>, _: &Caller, reply: &mut Reply<'_>) -> CallOutcome {
        reply.result().extend_from_slice(call.params.unwrap_or(b"null"));
        CallOutcome::Done
    }
}

/// Writes text into a buffer, without allocating.
fn written<'buffer>(buffer: &'buffer mut [u8; 512], text: fmt::Arguments<'_>) -> &'buffer [u8] {
    let mut rest = &mut buffer[..];
    rest.write_fmt(text).unwrap();
    let left = rest.len();
    &buffer[..512 - left]
}

/// Makes calls one after another, whose lengths alternate.
fn make_calls<E: Engine>(
    worker: &mut Worker<E, Echo>,
    stream: &mut TcpStream,
    is_http: bool,
    count: usize,
) {
    let (mut body, mut request, mut reply, mut ending) = ([0; 512], [0; 512], [0; 512], [0; 512]);
    for number in 0..count {
        let value = if number % 2 == 0 { 7 } else { 1_000 };
        let body = written(
            &mut body,
            format_args!(r#"{{"jsonrpc":"2.0","method":"echo","params":[{value}],"id":{number}}}"#),
        );
        let text = str::from_utf8(body).unwrap();
        let (host, length) = ("POST / HTTP/1.1\r\nHost: localhost", text.len());
        let request = if is_http {
            let head = format_args!("{host}\r\nContent-Length: {length}\r\n\r\n{text}");
            written(&mut request, head)
        } else {
            body
        };
        stream.write_all(request).unwrap();
        let received = loop {
            // io_uring sends the reply in the wait of the next turn, whose end it may not report.
            worker.turn(Some(Instant::now() + Duration::from_millis(1))).unwrap();
            match stream.read(&mut reply) {
                Ok(len) => break &reply[..len],
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        };
        let ending = written(&mut ending, format_args!(r#""id":{number},"result":[{value}]}}"#));
        assert!(received.trim_ascii_end().ends_with(ending), "{}", received.escape_ascii());
    }
}

fn check<E: Engine>(engine: E) {
    let procedures = Arc::new(Procedures::new());
    procedures.insert("echo", ());
    let access = AccessRules::new(true, &[], &[]).unwrap();
    let mut worker = Worker::new(engine, Echo, procedures, WorkerConfig::new(access));
    let listener = ucall_engine::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), false).unwrap();
    let address = listener.local_addr().unwrap();
    worker.listen(listener.into()).unwrap();
    for is_http in [false, true] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        make_calls(&mut worker, &mut stream, is_http, 10);
        let before = allocations();
        make_calls(&mut worker, &mut stream, is_http, 1_000);
        assert_eq!(allocations() - before, 0, "in 1,000 calls, HTTP: {is_http}");
    }
}

#[test]
fn calls_allocate_nothing() {
    check(Posix::new().unwrap());
    #[cfg(target_os = "linux")]
    match Features::probe() {
        Ok(features) => check(Uring::new(Config::default(), features).unwrap()),
        Err(error) => skipped::report(&error),
    }
}
