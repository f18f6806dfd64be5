//! Records after the handshake, and bytes that are no TLS.

use ucall_proto::tls::{TlsConnection, TlsError, starts_tls_record};

use crate::harness::{Authority, Endpoint, EndpointPair, client, server};

fn connected() -> EndpointPair {
    let mut pair = fresh();
    pair.deliver(1 << 20);
    pair
}

fn fresh() -> EndpointPair {
    let authority = Authority::new();
    let certificate = authority.sign("localhost");
    EndpointPair::new(server(&[certificate.identity()]), client(&authority), "localhost")
}

#[test]
fn data_arrives_in_pieces_of_any_size() {
    let mut pair = connected();
    let long: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
    for (piece_bytes, sent) in [(1, &long[..20_000]), (1_000, &long[..]), (1 << 20, &long[..])] {
        pair.client.send(sent);
        pair.server.send(sent);
        pair.deliver(piece_bytes);
        assert_eq!(std::mem::take(&mut pair.server.received), sent);
        assert_eq!(std::mem::take(&mut pair.client.received), sent);
    }
}

#[test]
fn a_reply_is_one_record_after_the_contents_of_the_output() {
    let mut pair = connected();
    pair.server.out.extend_from_slice(b"before");
    pair.server.send(&[b'x'; 100]);
    let record = pair.server.out.split_off(6);
    assert_eq!(pair.server.out, b"before");
    assert_eq!(record[0], 23);
    assert_eq!(record.len(), 5 + usize::from(u16::from_be_bytes([record[3], record[4]])));
    pair.client.receive(&record);
    assert_eq!(pair.client.received, [b'x'; 100]);
}

#[test]
fn data_sent_during_the_handshake_is_kept_until_its_end() {
    let mut pair = fresh();
    pair.client.send(b"early");
    pair.server.send(b"early too");
    pair.deliver(3);
    assert_eq!(pair.server.received, b"early");
    assert_eq!(pair.client.received, b"early too");
}

#[test]
fn either_end_may_close_and_the_other_continues() {
    let mut pair = connected();
    pair.client.tls.close(&mut pair.client.out);
    pair.deliver(1);
    assert!(
        pair.server.tls.has_received_close_notify() && !pair.client.tls.has_received_close_notify()
    );
    assert!(matches!(pair.client.tls.send(b"x", &mut Vec::new()), Err(TlsError::Closed)));
    pair.server.send(b"still here");
    pair.server.tls.close(&mut pair.server.out);
    pair.deliver(1);
    assert_eq!(pair.client.received, b"still here");
    assert!(pair.client.tls.has_received_close_notify());
}

#[test]
fn bytes_after_close_notify_are_not_kept() {
    let mut pair = connected();
    pair.client.tls.close(&mut pair.client.out);
    pair.client.out.extend_from_slice(b"no record at all");
    pair.deliver(1 << 20);
    for _ in 0..100 {
        pair.server.receive(&[0; 10_000]);
    }
    assert!(pair.server.error.is_none() && pair.server.received.is_empty());
}

#[test]
fn a_modified_record_fails_on_both_ends() {
    let mut pair = connected();
    pair.client.send(b"a message");
    *pair.client.out.last_mut().unwrap() ^= 1;
    pair.deliver(1 << 20);
    assert!(pair.server.received.is_empty());
    assert!(matches!(pair.server.error, Some(TlsError::Peer(_))));
    let message = pair.client.error.unwrap().to_string();
    assert!(message.contains("BadRecordMac"), "{message}");
    assert!(pair.server.tls.receive(&mut [], &mut Vec::new(), |_| {}).is_err());
}

#[test]
fn bytes_that_are_not_tls_are_refused_at_once() {
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[22; 1000], &[0; 64], &[255; 70_000]] {
        let mut pair = fresh();
        pair.server.receive(bytes);
        let error = pair.server.error.expect("an error");
        assert!(matches!(error, TlsError::Peer(_)), "{error}");
        assert_eq!(pair.server.out.first(), Some(&21), "an alert");
    }
}

#[test]
fn an_endless_handshake_message_is_not_kept() {
    let mut pair = fresh();
    // Records of a client's hello that claims the maximum length.
    let mut bytes = vec![22, 3, 1, 64, 0, 1, 255, 255, 255];
    bytes.resize(5 + (16 << 10), 0);
    for _ in 0..20 {
        pair.server.receive(&bytes);
        bytes[5..9].fill(0);
    }
    assert!(pair.server.error.is_some());
}

#[test]
fn the_first_byte_identifies_tls() {
    let pair = fresh();
    assert!(starts_tls_record(&pair.client.out));
    assert!(!starts_tls_record(b"") && !starts_tls_record(b"POST / ") && !starts_tls_record(b"{"));
}

#[test]
fn closing_during_the_handshake_sends_no_close_notify() {
    let authority = Authority::new();
    let config = server(&[authority.sign("localhost").identity()]);
    let mut end = Endpoint::new(TlsConnection::server(config).unwrap(), Vec::new());
    end.tls.close(&mut end.out);
    assert!(end.out.is_empty() && end.tls.session().is_none());
}
