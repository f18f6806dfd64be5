//! The bytes of each request, and the length and bytes of its reply.
//!
//! Requests repeat, so each has the same reply every time. `httparse` or `tungstenite` parses the
//! first reply; the length and body of the others are compared with it, but not the head, which
//! contains the date.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustls::ClientConfig;
use socket2::{Domain, Socket, Type};
use tungstenite::Message;
use tungstenite::protocol::frame::Frame;
use tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::Error;
use crate::options::{Asked, Options};
use crate::stream::{Stream, encrypted};

const WAIT_MAX: Duration = Duration::from_secs(10);
const HEADERS_MAX: usize = 64;
/// A constant mask, because no proxy between client and server needs protection.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// The protocol.
#[derive(Clone, Copy, PartialEq)]
pub enum Protocol {
    Http,
    Raw,
    WebSocket,
}

impl FromStr for Protocol {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "http" => Ok(Self::Http),
            "raw" => Ok(Self::Raw),
            "websocket" => Ok(Self::WebSocket),
            _ => Err("--protocol is http, raw or websocket".into()),
        }
    }
}

/// The bytes of a request and of the reply to it.
pub struct Exchange {
    /// The request as it is sent.
    pub request: Vec<u8>,
    /// The length of the reply, including its head.
    pub reply_bytes: usize,
    /// The last bytes of the reply.
    pub body: Vec<u8>,
}

impl Exchange {
    /// Whether these bytes match the reply at this offset.
    pub fn is_expected(&self, at: usize, bytes: &[u8]) -> bool {
        let head_bytes = self.reply_bytes - self.body.len();
        let skipped = head_bytes.saturating_sub(at).min(bytes.len());
        let from = (at + skipped).saturating_sub(head_bytes);
        let compared = &bytes[skipped..];
        self.body.get(from..from + compared.len()) == Some(compared)
    }
}

/// The server, and what each kind of client exchanges with it in turn.
pub struct Wire {
    address: SocketAddr,
    protocol: Protocol,
    tls: Option<Arc<ClientConfig>>,
    pub clients: Vec<Vec<Exchange>>,
}

impl Wire {
    /// Sends each request once, and records its reply.
    pub fn learn(options: &Options) -> Result<Self, Error> {
        let Options { address, protocol, .. } = *options;
        let mut wire = Self { address, protocol, tls: options.tls.clone(), clients: Vec::new() };
        wire.clients = match &options.asked {
            Asked::Body(body) => vec![vec![wire.exchange_of(body)?]],
            Asked::Whole(clients) => {
                let learn = |requests: &Vec<Vec<u8>>| {
                    requests.iter().map(|it| wire.exchange(it.clone())).collect()
                };
                clients.iter().map(learn).collect::<Result<_, _>>()?
            }
        };
        Ok(wire)
    }

    fn exchange_of(&self, body: &[u8]) -> Result<Exchange, Error> {
        match self.protocol {
            Protocol::Http => self.exchange(http_request(body)),
            Protocol::Raw => self.exchange(body.to_vec()),
            Protocol::WebSocket => {
                let request = masked_frame(body)?;
                let (reply_bytes, body) = websocket_reply(self.connect()?, self.address, body)?;
                Ok(Exchange { request, reply_bytes, body })
            }
        }
    }

    fn exchange(&self, request: Vec<u8>) -> Result<Exchange, Error> {
        let mut stream = self.connect()?;
        stream.write_all(&request)?;
        let (reply_bytes, body) = match self.protocol {
            Protocol::Http => http_reply(&mut stream)?,
            _ => raw_reply(&mut stream)?,
        };
        Ok(Exchange { request, reply_bytes, body })
    }

    /// A connection on which the server waits for requests.
    pub fn open(&self) -> Result<Stream, Error> {
        let stream = self.connect()?;
        if self.protocol != Protocol::WebSocket {
            return Ok(stream);
        }
        let (websocket, _) = tungstenite::client(url(self.address), stream)?;
        Ok(websocket.into_inner())
    }

    /// A connection that has had one call.
    pub fn call_once(&self) -> Result<Stream, Error> {
        let mut stream = self.open()?;
        let exchange = &self.clients[0][0];
        stream.write_all(&exchange.request)?;
        let mut reply = vec![0; exchange.reply_bytes];
        stream.read_exact(&mut reply)?;
        if !exchange.is_expected(0, &reply) {
            return Err("an unexpected reply".into());
        }
        Ok(stream)
    }

    /// Starts a connection. Each one has another loopback address than the one before, because
    /// closed connections keep their ports for a minute.
    pub fn start_connecting(&self) -> io::Result<TcpStream> {
        static LAST: AtomicU8 = AtomicU8::new(0);
        let host = LAST.fetch_add(1, Ordering::Relaxed) % 250 + 2;
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        let source = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 1, host)), 0);
        socket.bind(&source.into())?;
        match socket.connect(&self.address.into()) {
            Err(error) if error.raw_os_error() != Some(IN_PROGRESS) => Err(error),
            _ => Ok(socket.into()),
        }
    }

    fn connect(&self) -> Result<Stream, Error> {
        let stream = TcpStream::connect_timeout(&self.address, WAIT_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        stream.set_write_timeout(Some(WAIT_MAX))?;
        match &self.tls {
            Some(tls) => encrypted(stream, tls, self.address.ip()),
            None => Ok(Stream::Plain(stream)),
        }
    }
}

/// EINPROGRESS, for which `io::ErrorKind` has no stable name.
const IN_PROGRESS: i32 = 115;

fn url(address: SocketAddr) -> String {
    format!("ws://{address}/")
}

fn http_request(body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut request = format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n"
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

fn masked_frame(body: &[u8]) -> Result<Vec<u8>, Error> {
    let mut frame = Frame::message(body.to_vec(), OpCode::Data(Data::Text), true);
    frame.header_mut().mask = Some(MASK);
    let mut bytes = Vec::new();
    frame.format(&mut bytes)?;
    Ok(bytes)
}

/// Reads until `length_of` returns the whole length, and all bytes have arrived.
fn read_until(
    stream: &mut Stream,
    length_of: impl Fn(&[u8]) -> Result<Option<usize>, Error>,
) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 1 << 18];
    let mut length = None;
    while length.is_none_or(|length| bytes.len() < length) {
        let received = stream.read(&mut chunk)?;
        if received == 0 {
            return Err("the server closed the connection before it had replied".into());
        }
        bytes.extend_from_slice(&chunk[..received]);
        if length.is_none() {
            length = length_of(&bytes)?;
        }
    }
    Ok(bytes)
}

/// The lengths of the head and of the body that it announces, once the head is complete.
fn http_lengths(bytes: &[u8]) -> Result<Option<(usize, usize)>, Error> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head_bytes) = response.parse(bytes)? else { return Ok(None) };
    if response.code != Some(200) {
        return Err(format!("status {:?}", response.code).into());
    }
    let length = response.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
    let length = length.ok_or("a reply without Content-Length")?;
    Ok(Some((head_bytes, std::str::from_utf8(length.value)?.trim().parse()?)))
}

fn http_reply(stream: &mut Stream) -> Result<(usize, Vec<u8>), Error> {
    let whole = |bytes: &[u8]| Ok(http_lengths(bytes)?.map(|(head, body)| head + body));
    let bytes = read_until(stream, whole)?;
    let (head_bytes, _) = http_lengths(&bytes)?.ok_or("no head")?;
    Ok((bytes.len(), bytes[head_bytes..].to_vec()))
}

fn raw_reply(stream: &mut Stream) -> Result<(usize, Vec<u8>), Error> {
    let whole = |bytes: &[u8]| Ok(bytes.ends_with(b"\n").then_some(bytes.len()));
    let bytes = read_until(stream, whole)?;
    Ok((bytes.len(), bytes))
}

/// Servers do not mask: a frame's head has 2, 4 or 10 bytes.
fn websocket_reply(
    stream: Stream,
    address: SocketAddr,
    body: &[u8],
) -> Result<(usize, Vec<u8>), Error> {
    let (mut websocket, _) = tungstenite::client(url(address), stream)?;
    websocket.send(Message::text(std::str::from_utf8(body)?))?;
    let reply = websocket.read()?.into_data().to_vec();
    let head_bytes = match reply.len() {
        0..=125 => 2,
        126..=0xffff => 4,
        _ => 10,
    };
    Ok((head_bytes + reply.len(), reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(head_bytes: usize, body: &[u8]) -> Exchange {
        let reply_bytes = head_bytes + body.len();
        Exchange { request: Vec::new(), reply_bytes, body: body.to_vec() }
    }

    #[test]
    fn a_reply_is_compared_wherever_it_is_cut() {
        let exchange = exchange(3, b"body");
        let reply = b"xyzbody";
        for from in 0..reply.len() {
            for to in from..=reply.len() {
                assert!(exchange.is_expected(from, &reply[from..to]), "{from}..{to}");
            }
        }
    }

    #[test]
    fn another_body_is_seen_at_each_of_its_bytes() {
        let exchange = exchange(3, b"body");
        for at in 3..7 {
            let mut reply = *b"xyzbody";
            reply[at] ^= 1;
            assert!(!exchange.is_expected(0, &reply), "{at}");
            assert!(!exchange.is_expected(at, &reply[at..=at]), "{at}");
        }
    }

    #[test]
    fn the_lengths_of_a_reply_are_read_once_its_head_is_whole() {
        let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody";
        assert!(matches!(http_lengths(&reply[..30]), Ok(None)));
        assert_eq!(http_lengths(reply).ok().flatten(), Some((38, 4)));
        assert!(http_lengths(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n").is_err());
    }

    #[test]
    fn a_frame_is_masked() -> Result<(), Error> {
        let frame = masked_frame(b"hi")?;
        assert_eq!(frame, [0x81, 0x82, 0x37, 0xfa, 0x21, 0x3d, b'h' ^ 0x37, b'i' ^ 0xfa]);
        Ok(())
    }
}
