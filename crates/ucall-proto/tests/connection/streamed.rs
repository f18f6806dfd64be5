//! Bodies that are passed to the service while they arrive.

#[cfg(feature = "compression")]
mod coded;

use ucall_proto::http1::{Head, Methods};
use ucall_proto::{Call, CallNumber, CallOutcome, Limits, NextAction, Reply, Service};

use crate::harness::{Driver, bodies, post, sum, sum_reply};

/// What a service takes before it has no room.
const ROOM: usize = 64 << 10;
const PROBE: &str = "HTTP/1.1 100 Continue\r\n\r\n";
pub const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";

/// `/a` takes bodies in parts while it has room, and is answered later.
#[derive(Default)]
pub struct Uploads {
    pub head: String,
    pub number: Option<CallNumber>,
    pub body: Vec<u8>,
    pub longest: usize,
    pub is_over: bool,
    pub is_cancelled: bool,
    /// The bytes that were taken and not read.
    unread: usize,
    /// Whether they are read at once.
    reads: bool,
    own_bytes_max: Option<usize>,
}

impl Uploads {
    pub fn reading() -> Self {
        Self { reads: true, ..Self::default() }
    }

    pub fn read(&mut self) {
        self.unread = 0;
    }
}

impl Service for Uploads {
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        crate::harness::Examples::default().call(call, reply)
    }

    fn route_methods(&self, path: &[u8]) -> Methods {
        if path == b"/a" { Methods::named("POST").unwrap() } else { Methods::default() }
    }

    fn streams_body(&self, _: &Head<'_>) -> bool {
        true
    }

    fn body_bytes_max(&self, _: &Head<'_>) -> Option<usize> {
        self.own_bytes_max
    }

    fn respond_streamed(&mut self, call: &Call<'_>, _: &mut Reply<'_>) -> CallOutcome {
        let head = call.head.unwrap();
        *self = Self { reads: self.reads, own_bytes_max: self.own_bytes_max, ..Self::default() };
        self.head = String::from_utf8(head.bytes().to_vec()).unwrap();
        self.number = Some(call.number);
        CallOutcome::Deferred
    }

    fn takes_body(&mut self, number: CallNumber) -> bool {
        assert_eq!(Some(number), self.number);
        self.unread < ROOM
    }

    fn take_body_part(&mut self, number: CallNumber, part: &[u8], is_last: bool) {
        assert!(Some(number) == self.number && !self.is_over && (is_last || !part.is_empty()));
        self.body.extend_from_slice(part);
        self.longest = self.longest.max(part.len());
        self.unread += if self.reads { 0 } else { part.len() };
        self.is_over = is_last;
    }

    fn cancel(&mut self, _: CallNumber) {
        self.is_cancelled = true;
    }
}

pub fn head(lines: &str) -> Vec<u8> {
    format!("POST /a HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").into_bytes()
}

pub fn in_chunks(lines: &str, body: &[u8]) -> Vec<u8> {
    let mut request = head(&format!("Transfer-Encoding: chunked\r\n{lines}"));
    for chunk in body.chunks(50_000) {
        request.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    request
}

pub fn with_length(lines: &str, body: &[u8]) -> Vec<u8> {
    [head(&format!("Content-Length: {}\r\n{lines}", body.len())), body.to_vec()].concat()
}

pub fn driver(service: Uploads, limits: Limits) -> Driver<Uploads> {
    Driver::serving(service, limits)
}

/// Decodes received bytes while the service has room.
pub fn decode(driver: &mut Driver<Uploads>) {
    while driver.connection.is_decoding() {
        assert_eq!(driver.connection.next_action(), NextAction::Pause);
        driver.decode_piece();
    }
}

/// The service reads what waits until the body is over.
pub fn read_to_end(driver: &mut Driver<Uploads>) {
    while !driver.service.is_over {
        let before = driver.service.body.len();
        driver.service.read();
        driver.resume();
        decode(driver);
        assert!(driver.service.body.len() > before || driver.service.is_over);
    }
}

/// The call ends, and another one is answered on the connection.
pub fn complete(driver: &mut Driver<Uploads>) {
    let number = driver.service.number.unwrap();
    driver.complete(number, Ok(RESPONSE));
    driver.receive(post(&sum(1)).as_bytes());
    assert_eq!(bodies(&driver.sent()), ["done".to_owned(), sum_reply(1)]);
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn a_body_that_has_arrived_is_passed_on_after_the_client_has_shut_down_its_side() {
    let body = vec![b'x'; 200_000];
    for request in [with_length("", &body), in_chunks("", &body)] {
        let mut driver = driver(Uploads::default(), Limits::default());
        request.chunks(ROOM).for_each(|piece| driver.receive(piece));
        assert!(!driver.service.is_over);
        driver.handle_eof();
        assert_eq!(driver.sent(), PROBE);
        assert!(driver.connection.is_half_closed());
        read_to_end(&mut driver);
        assert!(driver.service.body == body && !driver.service.is_cancelled);
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
        driver.complete(driver.service.number.unwrap(), Ok(RESPONSE));
        let sent = driver.sent();
        assert!(sent.contains("Connection: close\r\n") && sent.ends_with("done"), "{sent}");
        assert_eq!(driver.connection.next_action(), NextAction::Close);
    }
}

#[test]
fn a_body_that_is_cut_off_is_cancelled() {
    let body = vec![b'x'; 200_000];
    for request in [with_length("", &body), in_chunks("", &body)] {
        for reads in [false, true] {
            let mut driver = driver(Uploads { reads, ..Uploads::default() }, Limits::default());
            request[..request.len() - 1].chunks(ROOM).for_each(|piece| driver.receive(piece));
            driver.handle_eof();
            assert_eq!(driver.sent(), "");
            assert!(!driver.connection.is_half_closed());
            assert_eq!(driver.connection.next_action(), NextAction::Close);
        }
    }
}
