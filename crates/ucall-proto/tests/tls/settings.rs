//! Valid and invalid settings.

use rcgen::KeyPair;
use ucall_proto::tls::{
    ClientAuth, ClientSettings, Identity, ServerSettings, SettingsError, TicketSecret, Trust,
};

use crate::harness::{Authority, EndpointPair, Pem, client, server};

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
    pair.exchange(1 << 20);
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
