//! The floor of TLS: rustls with aws-lc, as ucall has it, on epoll. It decrypts, and encrypts a
//! reply made before the first connection came, without parsing.
//!
//!     floor_tls --ssl-certfile PEM --port 0

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

type Error = Box<dyn std::error::Error>;

struct Connection {
    tls: ServerConnection,
    stream: TcpStream,
}

enum Step {
    ReadsOn,
    Waits,
    Ended,
}

const LISTENER: Token = Token(usize::MAX);
/// The size of rustls' reads.
const TLS_READ_BYTES: usize = 4096;
const READ_BYTES_MAX: usize = 16384;
/// The head has the same headers as ucall's. The date is constant: the floor does not format it.
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Content-Type: application/json\r\n\
    Date: Sat, 21 Nov 2026 21:00:00 GMT\r\n\
    Content-Length: 36\r\n\r\n\
    {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":76}";

fn configuration() -> Result<Arc<ServerConfig>, Error> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--ssl-certfile");
    let path = arguments.nth(1).ok_or("expected --ssl-certfile PEM")?;
    let certificates = CertificateDer::pem_file_iter(&path)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(&path)?;
    let builder = ServerConfig::builder().with_no_client_auth();
    Ok(Arc::new(builder.with_single_cert(certificates, key)?))
}

/// Answers each read, which holds one request. A short one has emptied the socket.
fn answer(connection: &mut Connection, bytes: &mut [u8]) -> Result<Step, Error> {
    let Connection { tls, stream } = connection;
    let received = match tls.read_tls(stream) {
        Ok(0) => return Ok(Step::Ended),
        Ok(received) => received,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Waits),
        Err(error) => return Err(error.into()),
    };
    if tls.process_new_packets()?.plaintext_bytes_to_read() > 0 {
        let _request = tls.reader().read(bytes)?;
        tls.writer().write_all(REPLY)?;
    }
    while tls.wants_write() {
        tls.write_tls(stream)?;
    }
    Ok(if received < TLS_READ_BYTES { Step::Waits } else { Step::ReadsOn })
}

fn main() -> Result<(), Error> {
    let configuration = configuration()?;
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(256));
    let mut listener = TcpListener::bind("127.0.0.1:0".parse()?)?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    println!("listening on {}", listener.local_addr()?.port());
    let mut connections: HashMap<Token, Connection> = HashMap::new();
    let (mut bytes, mut next) = (vec![0; READ_BYTES_MAX], 0);
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() != LISTENER {
                let Some(connection) = connections.get_mut(&event.token()) else { continue };
                let step = loop {
                    match answer(connection, &mut bytes) {
                        Ok(Step::ReadsOn) => {}
                        other => break other,
                    }
                };
                if !matches!(step, Ok(Step::Waits)) {
                    connections.remove(&event.token());
                }
                continue;
            }
            while let Ok((mut stream, _)) = listener.accept() {
                stream.set_nodelay(true)?;
                let token = Token(next);
                next += 1;
                poll.registry().register(&mut stream, token, Interest::READABLE)?;
                let tls = ServerConnection::new(configuration.clone())?;
                connections.insert(token, Connection { tls, stream });
            }
        }
    }
}
