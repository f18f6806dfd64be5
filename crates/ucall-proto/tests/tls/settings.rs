//! Valid and invalid settings.

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use ucall_proto::tls::{
    ClientAuth, ClientSettings, Identity, ServerSettings, SettingsError, TicketSecret, Trust,
};

use crate::harness::{Authority, EndpointPair, HTTP, Pem, client, server};

const KEY: &str = include_str!("key.pem");
const KEY_ENCRYPTED: &str = include_str!("key-encrypted.pem");
const KEY_LEGACY: &str = include_str!("key-legacy.pem");

fn settings<'a>(identities: &'a [Identity<'a>], secret: &'a TicketSecret) -> ServerSettings<'a> {
    ServerSettings {
        identities,
        client_auth: ClientAuth::None,
        client_authorities: None,
        alpn: &[],
        tickets: secret,
    }
}

fn refusal(identity: Identity<'_>) -> SettingsError {
    settings(&[identity], &TicketSecret::new([0; 32])).build().unwrap_err()
}

fn certificate_of(key: &str) -> (Authority, Pem) {
    let authority = Authority::new();
    let pem = authority.sign_key("localhost", &KeyPair::from_pem(key).unwrap());
    (authority, pem)
}

#[test]
fn an_encrypted_key_is_opened_by_its_password() {
    let (authority, pem) = certificate_of(KEY);
    let encrypted =
        |password| Identity { private_key: KEY_ENCRYPTED.as_bytes(), password, ..pem.identity() };
    let server = server(&[encrypted(Some(b"secret".as_slice()))]);
    let mut pair = EndpointPair::new(server, client(&authority), "localhost");
    pair.deliver(1 << 20);
    assert!(pair.client.tls.session().is_some());
    assert!(matches!(refusal(encrypted(None)), SettingsError::PasswordMissing));
    assert!(matches!(refusal(encrypted(Some(b"public"))), SettingsError::PasswordWrong));
}

#[test]
fn invalid_identities_are_refused() {
    let (authority, pem) = certificate_of(KEY);
    let other = authority.sign("localhost");
    let with_key = |key: &'static str| {
        refusal(Identity { private_key: key.as_bytes(), ..pem.identity() }).to_string()
    };
    assert!(with_key("").contains("expected a private key"));
    assert!(with_key("-----BEGIN PRIVATE KEY-----\nAAAA").contains("a private key"));
    assert!(with_key(KEY_LEGACY).contains("openssl pkcs8"));
    let mismatched = Identity { private_key: other.key.as_bytes(), ..pem.identity() };
    assert!(matches!(refusal(mismatched), SettingsError::KeyMismatch));
    let none = Identity { certificates: b"", ..pem.identity() };
    assert!(matches!(refusal(none), SettingsError::Missing("a certificate")));
}

#[test]
fn client_certificates_cannot_be_requested_without_authorities() {
    let (_, pem) = certificate_of(KEY);
    let identities = [pem.identity()];
    let secret = TicketSecret::random().unwrap();
    for authorities in [None, Some(b"".as_slice())] {
        let settings = ServerSettings {
            client_auth: ClientAuth::Required,
            client_authorities: authorities,
            ..settings(&identities, &secret)
        };
        assert!(matches!(settings.build(), Err(SettingsError::Missing(_))));
    }
    assert!(settings(&[], &secret).build().is_err());
    let trust = Trust::Authorities(b"");
    assert!(ClientSettings { trust, identity: None, alpn: &[] }.build().is_err());
}

/// A self-signed certificate that claims to be an authority's, as `openssl req -x509` writes it.
fn self_signed(until_year: i32) -> Pem {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = date_time_ymd(until_year, 1, 1);
    let certificate = params.self_signed(&key).unwrap().pem();
    Pem { certificate, key: key.serialize_pem() }
}

/// The error of a client that connects to a server with this certificate.
fn refusal_by(client: &ClientSettings<'_>, shown: &Pem, name: &str) -> Option<String> {
    let mut pair = EndpointPair::new(server(&[shown.identity()]), client.build().unwrap(), name);
    pair.deliver(1 << 20);
    pair.client.error.map(|error| error.to_string())
}

#[test]
fn a_self_signed_certificate_that_is_trusted_is_accepted() {
    let (shown, expired, other) = (self_signed(4000), self_signed(2000), self_signed(4000));
    let trusted = [&shown, &expired].map(|pem| pem.certificate.as_str()).concat();
    let trust = Trust::Authorities(trusted.as_bytes());
    let client = ClientSettings { trust, identity: None, alpn: HTTP };
    assert_eq!(refusal_by(&client, &shown, "localhost"), None);
    let refused = |pem, name| refusal_by(&client, pem, name).unwrap();
    assert!(refused(&shown, "example.org").contains("not valid for"), "the name");
    assert!(refused(&expired, "localhost").contains("expired"), "the time");
    assert!(refusal_by(&client, &other, "localhost").is_some(), "another certificate");
}

#[test]
fn a_client_trusts_its_own_certificate_but_not_its_authority() {
    let (own, authority) = (self_signed(4000), Authority::new());
    let (mine, sibling) = (authority.sign("localhost"), authority.sign("localhost"));
    let chain = [mine.certificate.clone(), authority.pem()].concat();
    let with_chain = Identity { certificates: chain.as_bytes(), ..mine.identity() };
    let trust = Trust::Store(&[]);
    let client = |identity| ClientSettings { trust, identity: Some(identity), alpn: HTTP };
    assert_eq!(refusal_by(&client(own.identity()), &own, "localhost"), None);
    assert_eq!(refusal_by(&client(with_chain), &mine, "localhost"), None);
    assert!(refusal_by(&client(with_chain), &sibling, "localhost").is_some());
}
