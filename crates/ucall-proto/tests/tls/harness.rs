//! Certificates made on the spot, and two ends that exchange bytes in pieces of any size.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use ucall_proto::tls::{
    ClientAuth, ClientConfig, ClientSettings, Identity, ServerConfig, ServerSettings, Stage,
    TicketSecret, TlsError, Trust,
};

pub(crate) const HTTP: &[&[u8]] = &[b"http/1.1"];

/// An authority that signs what a test needs.
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

/// One end: its stage, what it has said and not been heard, and what it has heard.
pub(crate) struct End {
    pub(crate) stage: Stage,
    pub(crate) out: Vec<u8>,
    pub(crate) heard: Vec<u8>,
    pub(crate) error: Option<TlsError>,
}

impl End {
    pub(crate) fn new(stage: Stage, out: Vec<u8>) -> Self {
        Self { stage, out, heard: Vec::new(), error: None }
    }

    pub(crate) fn hear(&mut self, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let heard = &mut self.heard;
        let outcome =
            self.stage.receive(&mut bytes, &mut self.out, |piece| heard.extend_from_slice(piece));
        self.error = self.error.take().or(outcome.err());
    }

    pub(crate) fn say(&mut self, plaintext: &[u8]) {
        self.stage.send(plaintext, &mut self.out).unwrap();
    }
}

/// A server and a client on one wire.
pub(crate) struct Pair {
    pub(crate) server: End,
    pub(crate) client: End,
}

impl Pair {
    pub(crate) fn new(server: Arc<ServerConfig>, client: Arc<ClientConfig>, name: &str) -> Self {
        let mut out = Vec::new();
        let name = name.to_owned().try_into().unwrap();
        let client = Stage::client(client, name, &mut out).unwrap();
        Self {
            server: End::new(Stage::server(server).unwrap(), Vec::new()),
            client: End::new(client, out),
        }
    }

    /// Carries bytes both ways, in pieces of at most so many, until there are no more.
    pub(crate) fn talk(&mut self, piece_bytes: usize) {
        let Self { server, client } = self;
        while !(server.out.is_empty() && client.out.is_empty()) {
            carry(client, server, piece_bytes);
            carry(server, client, piece_bytes);
        }
    }
}

fn carry(from: &mut End, to: &mut End, piece_bytes: usize) {
    for piece in std::mem::take(&mut from.out).chunks(piece_bytes) {
        to.hear(piece);
    }
}
