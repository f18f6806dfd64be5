//! What passes once both ends have agreed, and what is no TLS at all.

use ucall_proto::tls::{Stage, TlsError, begins_record};

use crate::harness::{Authority, End, Pair, client, server};

fn agreed() -> Pair {
    let mut pair = fresh();
    pair.talk(1 << 20);
    pair
}

fn fresh() -> Pair {
    let authority = Authority::new();
    let certificate = authority.sign("localhost");
    Pair::new(server(&[certificate.identity()]), client(&authority), "localhost")
}

#[test]
fn what_is_said_is_heard_in_pieces_of_any_size() {
    let mut pair = agreed();
    let long: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
    for (piece_bytes, said) in [(1, &long[..20_000]), (1_000, &long[..]), (1 << 20, &long[..])] {
        pair.client.say(said);
        pair.server.say(said);
        pair.talk(piece_bytes);
        assert_eq!(std::mem::take(&mut pair.server.heard), said);
        assert_eq!(std::mem::take(&mut pair.client.heard), said);
    }
}

#[test]
fn a_reply_is_one_record_behind_what_the_output_holds() {
    let mut pair = agreed();
    pair.server.out.extend_from_slice(b"before");
    pair.server.say(&[b'x'; 100]);
    let record = pair.server.out.split_off(6);
    assert_eq!(pair.server.out, b"before");
    assert_eq!(record[0], 23);
    assert_eq!(record.len(), 5 + usize::from(u16::from_be_bytes([record[3], record[4]])));
    pair.client.hear(&record);
    assert_eq!(pair.client.heard, [b'x'; 100]);
}

#[test]
fn what_is_said_before_both_agree_is_kept_until_they_do() {
    let mut pair = fresh();
    pair.client.say(b"early");
    pair.server.say(b"early too");
    pair.talk(3);
    assert_eq!(pair.server.heard, b"early");
    assert_eq!(pair.client.heard, b"early too");
}

#[test]
fn either_end_may_close_and_the_other_goes_on() {
    let mut pair = agreed();
    pair.client.stage.close(&mut pair.client.out);
    pair.talk(1);
    assert!(pair.server.stage.is_ended_by_peer() && !pair.client.stage.is_ended_by_peer());
    assert!(matches!(pair.client.stage.send(b"x", &mut Vec::new()), Err(TlsError::Closed)));
    pair.server.say(b"still here");
    pair.server.stage.close(&mut pair.server.out);
    pair.talk(1);
    assert_eq!(pair.client.heard, b"still here");
    assert!(pair.client.stage.is_ended_by_peer());
}

#[test]
fn what_comes_behind_the_last_word_is_not_kept() {
    let mut pair = agreed();
    pair.client.stage.close(&mut pair.client.out);
    pair.client.out.extend_from_slice(b"no record at all");
    pair.talk(1 << 20);
    for _ in 0..100 {
        pair.server.hear(&[0; 10_000]);
    }
    assert!(pair.server.error.is_none() && pair.server.heard.is_empty());
}

#[test]
fn a_changed_byte_is_noticed_and_told() {
    let mut pair = agreed();
    pair.client.say(b"a message");
    *pair.client.out.last_mut().unwrap() ^= 1;
    pair.talk(1 << 20);
    assert!(pair.server.heard.is_empty());
    assert!(matches!(pair.server.error, Some(TlsError::Peer(_))));
    let told = pair.client.error.unwrap().to_string();
    assert!(told.contains("BadRecordMac"), "{told}");
    assert!(pair.server.stage.receive(&mut [], &mut Vec::new(), |_| {}).is_err());
}

#[test]
fn what_is_no_tls_is_refused_at_once() {
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[22; 1000], &[0; 64], &[255; 70_000]] {
        let mut pair = fresh();
        pair.server.hear(bytes);
        let error = pair.server.error.expect("an error");
        assert!(matches!(error, TlsError::Peer(_)), "{error}");
        assert_eq!(pair.server.out.first(), Some(&21), "an alert");
    }
}

#[test]
fn a_message_without_end_is_not_kept() {
    let mut pair = fresh();
    // Records of a client's hello that claims to be as long as can be said.
    let mut bytes = vec![22, 3, 1, 64, 0, 1, 255, 255, 255];
    bytes.resize(5 + (16 << 10), 0);
    for _ in 0..20 {
        pair.server.hear(&bytes);
        bytes[5..9].fill(0);
    }
    assert!(pair.server.error.is_some());
}

#[test]
fn the_first_byte_tells() {
    let pair = fresh();
    assert!(begins_record(&pair.client.out));
    assert!(!begins_record(b"") && !begins_record(b"POST / ") && !begins_record(b"{"));
}

#[test]
fn a_stage_that_is_still_agreeing_says_no_goodbye() {
    let authority = Authority::new();
    let config = server(&[authority.sign("localhost").identity()]);
    let mut end = End::new(Stage::server(config).unwrap(), Vec::new());
    end.stage.close(&mut end.out);
    assert!(end.out.is_empty() && end.stage.session().is_none());
}
