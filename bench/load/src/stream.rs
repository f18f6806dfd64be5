//! A connection with or without TLS.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::Error;

/// A connection, on a blocking socket or not.
pub enum Stream<S: Read + Write> {
    Plain(S),
    Tls(Box<StreamOwned<ClientConnection, S>>),
}

impl<S: Read + Write> Stream<S> {
    /// The socket.
    pub fn socket(&mut self) -> &mut S {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &mut stream.sock,
        }
    }

    /// The same connection on another form of the socket.
    pub fn on<T: Read + Write>(self, form: impl FnOnce(S) -> T) -> Stream<T> {
        match self {
            Self::Plain(socket) => Stream::Plain(form(socket)),
            Self::Tls(stream) => {
                let StreamOwned { conn, sock } = *stream;
                Stream::Tls(Box::new(StreamOwned::new(conn, form(sock))))
            }
        }
    }
}

impl<S: Read + Write> Read for Stream<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(bytes),
            Self::Tls(stream) => stream.read(bytes),
        }
    }
}

impl<S: Read + Write> Write for Stream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// What a client of TLS needs, with the authority of a file.
pub fn tls_of(authority: &Path) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority)? {
        roots.add(certificate?)?;
    }
    Ok(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
}

/// Begins TLS on a connected socket.
pub fn encrypted<S: Read + Write>(
    socket: S,
    tls: &Arc<ClientConfig>,
    address: IpAddr,
) -> Result<Stream<S>, Error> {
    let client = ClientConnection::new(tls.clone(), ServerName::from(address))?;
    Ok(Stream::Tls(Box::new(StreamOwned::new(client, socket))))
}
