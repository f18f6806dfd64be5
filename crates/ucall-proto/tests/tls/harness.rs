//! Certificates made on the spot, and two ends that exchange bytes in pieces of any size.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use ucall_proto::tls::{
    ClientAuth, ClientConfig, ClientSettings, Identity, ServerConfig, ServerSettings, TicketSecret,
    TlsConnection, TlsError, Trust,
};

pub(crate) const HTTP: &[&[u8]] = &[b"http/1.1"];

/// An authority that signs the certificates of a test.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub(crate) struct Pem {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Authority of these tests");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub(crate) fn sign(&self, name: &str) -> Pem {
        self.sign_key(name, &KeyPair::generate().unwrap())
    }

    pub(crate) fn sign_key(&self, name: &str, key: &KeyPair) -> Pem {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(key, &self.issuer).unwrap().pem();
        Pem { certificate, key: key.serialize_pem() }
    }
}

impl Pem {
    pub(crate) fn identity(&self) -> Identity<'_> {
        Identity {
            certificates: self.certificate.as_bytes(),
            private_key: self.key.as_bytes(),
            password: None,
        }
    }
}

pub(crate) fn server(identities: &[Identity<'_>]) -> Arc<ServerConfig> {
    server_asking(identities, ClientAuth::None, None)
}

pub(crate) fn server_asking(
    identities: &[Identity<'_>],
    client_auth: ClientAuth,
    client_authorities: Option<&str>,
) -> Arc<ServerConfig> {
    let settings = ServerSettings {
        identities,
        client_auth,
        client_authorities: client_authorities.map(str::as_bytes),
        alpn: HTTP,
        tickets: &TicketSecret::new([7; 32]),
    };
    settings.build().unwrap()
}

pub(crate) fn client(authority: &Authority) -> Arc<ClientConfig> {
    client_as(authority, None)
}

pub(crate) fn client_as(
    authority: &Authority,
    identity: Option<Identity<'_>>,
) -> Arc<ClientConfig> {
    let pem = authority.pem();
    let trust = Trust::Authorities(pem.as_bytes());
    ClientSettings { trust, identity, alpn: HTTP }.build().unwrap()
}

/// One end: its connection, its undelivered output, and the plaintext that it has received.
pub(crate) struct Endpoint {
    pub(crate) tls: TlsConnection,
    pub(crate) out: Vec<u8>,
    pub(crate) received: Vec<u8>,
    pub(crate) error: Option<TlsError>,
}

impl Endpoint {
    pub(crate) fn new(tls: TlsConnection, out: Vec<u8>) -> Self {
        Self { tls, out, received: Vec::new(), error: None }
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let received = &mut self.received;
        let outcome =
            self.tls.receive(&mut bytes, &mut self.out, |piece| received.extend_from_slice(piece));
        self.error = self.error.take().or(outcome.err());
    }

    pub(crate) fn send(&mut self, plaintext: &[u8]) {
        self.tls.send(plaintext, &mut self.out).unwrap();
    }
}

/// A server and a client on one wire.
pub(crate) struct EndpointPair {
    pub(crate) server: Endpoint,
    pub(crate) client: Endpoint,
}

impl EndpointPair {
    pub(crate) fn new(server: Arc<ServerConfig>, client: Arc<ClientConfig>, name: &str) -> Self {
        let mut out = Vec::new();
        let name = name.to_owned().try_into().unwrap();
        let client = TlsConnection::client(client, name, &mut out).unwrap();
        Self {
            server: Endpoint::new(TlsConnection::server(server).unwrap(), Vec::new()),
            client: Endpoint::new(client, out),
        }
    }

    /// Delivers bytes both ways, in pieces of limited size, until none are left.
    pub(crate) fn deliver(&mut self, piece_bytes: usize) {
        let Self { server, client } = self;
        while !(server.out.is_empty() && client.out.is_empty()) {
            transfer(client, server, piece_bytes);
            transfer(server, client, piece_bytes);
        }
    }
}

fn transfer(from: &mut Endpoint, to: &mut Endpoint, piece_bytes: usize) {
    for piece in std::mem::take(&mut from.out).chunks(piece_bytes) {
        to.receive(piece);
    }
}
