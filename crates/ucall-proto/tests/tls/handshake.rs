//! Handshakes between clients and servers of different settings.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ucall_proto::tls::{ClientAuth, ClientConfig, ClientSettings, Trust};

use crate::harness::{Authority, EndpointPair, HTTP, client, client_as, server, server_asking};

#[test]
fn handshakes_complete_in_pieces_of_any_size() {
    let authority = Authority::new();
    let certificate = authority.sign("localhost");
    for piece_bytes in [1, 2, 5, 100, 1 << 20] {
        let server = server(&[certificate.identity()]);
        let mut pair = EndpointPair::new(server, client(&authority), "localhost");
        assert!(pair.server.tls.session().is_none());
        pair.deliver(piece_bytes);
        for end in [&pair.server, &pair.client] {
            assert!(end.error.is_none() && !end.tls.is_handshaking(), "{:?}", end.error);
            let session = end.tls.session().unwrap();
            assert_eq!(session.version, "TLSv1.3");
            assert!(session.cipher.starts_with("TLS_"), "{}", session.cipher);
            assert_eq!(session.alpn.as_deref(), Some(HTTP[0]));
        }
        assert_eq!(pair.client.tls.session().unwrap().peer_certificates.len(), 1);
        assert!(pair.server.tls.session().unwrap().peer_certificates.is_empty());
    }
}

/// A client that speaks nothing newer.
fn tls12_client(authority: &Authority) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

#[test]
fn clients_of_tls_1_2_are_served_and_resume() {
    let authority = Authority::new();
    let certificate = authority.sign("localhost");
    let (server, client) = (server(&[certificate.identity()]), tls12_client(&authority));
    for (round, is_resumed) in [false, true].into_iter().enumerate() {
        let mut pair = EndpointPair::new(server.clone(), client.clone(), "localhost");
        pair.deliver(7);
        let session = pair.server.tls.session().unwrap();
        assert_eq!(session.version, "TLSv1.2");
        assert_eq!(session.is_resumed, is_resumed, "round {round}");
        assert_eq!(session.cipher, "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384");
    }
}

#[test]
fn sessions_are_resumed_by_any_server_with_the_same_secret() {
    let authority = Authority::new();
    let certificate = authority.sign("localhost");
    let client = client(&authority);
    for is_resumed in [false, true] {
        let server = server(&[certificate.identity()]);
        let mut pair = EndpointPair::new(server, client.clone(), "localhost");
        pair.deliver(1 << 20);
        assert_eq!(pair.server.tls.session().unwrap().is_resumed, is_resumed);
    }
}

#[test]
fn requested_client_certificates_are_sent_in_each_handshake() {
    let authority = Authority::new();
    let (certificate, alice) = (authority.sign("localhost"), authority.sign("alice"));
    let with_one = client_as(&authority, Some(alice.identity()));
    for (client_auth, client, shown) in [
        (ClientAuth::Required, with_one.clone(), 1),
        (ClientAuth::Optional, with_one, 1),
        (ClientAuth::Optional, client(&authority), 0),
        (ClientAuth::Optional, tls12_client(&authority), 0),
    ] {
        let identities = [certificate.identity()];
        let server = server_asking(&identities, client_auth, Some(&authority.pem()));
        for round in 0..3 {
            let mut pair = EndpointPair::new(server.clone(), client.clone(), "localhost");
            pair.deliver(1 << 20);
            let session = pair.server.tls.session().unwrap();
            assert!(!session.is_resumed, "{client_auth:?} in round {round}");
            assert_eq!(session.peer_certificates.len(), shown);
        }
    }
}

#[test]
fn a_certificate_is_chosen_by_name() {
    let authority = Authority::new();
    let signed = ["a.example", "*.b.example"].map(|name| authority.sign(name));
    let config = server(&signed.each_ref().map(|pem| pem.identity()));
    for (name, chosen) in [("a.example", 0), ("x.b.example", 1), ("b.example", 0)] {
        let trust = ClientSettings { trust: Trust::Anyone, identity: None, alpn: &[] };
        let mut pair = EndpointPair::new(config.clone(), trust.build().unwrap(), name);
        pair.deliver(1 << 20);
        let shown = pair.client.tls.session().unwrap().peer_certificates;
        let wanted = CertificateDer::from_pem_slice(signed[chosen].certificate.as_bytes());
        assert_eq!(shown, [wanted.unwrap()], "{name}");
    }
}

#[test]
fn required_client_certificates_are_enforced() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (certificate, alice) = (authority.sign("localhost"), authority.sign("alice"));
    let untrusted = other.sign("alice");
    for (client_auth, shown, expected) in [
        (ClientAuth::Required, None, None),
        (ClientAuth::Required, Some(&alice), Some(1)),
        (ClientAuth::Required, Some(&untrusted), None),
        (ClientAuth::Optional, None, Some(0)),
        (ClientAuth::Optional, Some(&alice), Some(1)),
        (ClientAuth::Optional, Some(&untrusted), None),
        (ClientAuth::None, Some(&alice), Some(0)),
    ] {
        let identities = [certificate.identity()];
        let server = server_asking(&identities, client_auth, Some(&authority.pem()));
        let client = client_as(&authority, shown.map(|pem| pem.identity()));
        let mut pair = EndpointPair::new(server, client, "localhost");
        pair.deliver(1 << 20);
        let certificates = pair.server.tls.session().map(|it| it.peer_certificates.len());
        assert_eq!(certificates, expected, "{client_auth:?}");
        assert_eq!(pair.server.error.is_none(), expected.is_some());
        assert_eq!(pair.client.error.is_none(), expected.is_some(), "the alert arrives");
    }
}

#[test]
fn a_client_refuses_an_untrusted_server() {
    let (authority, other) = (Authority::new(), Authority::new());
    let certificate = authority.sign("localhost");
    for (trusted, name) in [(&other, "localhost"), (&authority, "example.com")] {
        let server = server(&[certificate.identity()]);
        let mut pair = EndpointPair::new(server, client(trusted), name);
        pair.deliver(1 << 20);
        assert!(pair.client.error.is_some() && pair.server.error.is_some());
    }
}

#[test]
fn no_common_application_protocol_is_refused() {
    let authority = Authority::new();
    let certificate = authority.sign("localhost");
    let client = ClientSettings { trust: Trust::Anyone, identity: None, alpn: &[b"h2"] };
    let mut pair =
        EndpointPair::new(server(&[certificate.identity()]), client.build().unwrap(), "localhost");
    pair.deliver(1 << 20);
    let message = pair.client.error.unwrap().to_string();
    assert!(message.contains("NoApplicationProtocol"), "{message}");
}
