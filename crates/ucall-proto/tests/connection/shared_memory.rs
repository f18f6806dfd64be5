//! Clients that share memory with their server: the preamble, and the frames behind it.

use std::sync::{Arc, Mutex};

use ucall_buffer::{Bytes, PartPlace, SharedMemory, SharedMemoryError, SlotOwner, SlotPlace};
use ucall_proto::{
    ConnectionProtocol, Limits, NextAction, client_preamble, read_server_preamble, server_preamble,
    write_shared_head,
};

use crate::frames::{Framed, call, framed, post_bytes, references};
use crate::harness::{Driver, sum, sum_reply};
use crate::websocket::{frame as socket_frame, upgrade};

const PLACE: SlotPlace = SlotPlace { slot: 1, descriptor: 7 };

/// Memory of which the first slot has these bytes for the server, which puts its own into `sent`.
#[derive(Clone, Debug, Default)]
struct Memory {
    received: Vec<u8>,
    sent: Arc<Mutex<Vec<u8>>>,
    is_full: bool,
}

impl SharedMemory for Memory {
    fn place(&mut self, parts: &[[&[u8]; 2]]) -> Result<Option<Vec<PartPlace>>, SharedMemoryError> {
        let lens: Vec<usize> = parts.iter().map(|[one, other]| one.len() + other.len()).collect();
        let places = places(&lens, PLACE);
        let mut memory = vec![0; places.last().map_or(0, end_of)];
        for (part, place) in parts.iter().zip(&places) {
            memory[place.start as usize..end_of(place)].copy_from_slice(&part.concat());
        }
        *self.sent.lock().unwrap() = memory;
        Ok((!self.is_full).then_some(places))
    }

    fn take(&mut self, places: &[PartPlace]) -> Result<Vec<Bytes>, SharedMemoryError> {
        let part = |place: &PartPlace| {
            if place.slot != PLACE || end_of(place) > self.received.len() {
                return Err(SharedMemoryError::Invalid);
            }
            let received = &self.received[place.start as usize..end_of(place)];
            let mut aligned = vec![0; received.len() + 63];
            let start = aligned.as_ptr().align_offset(64);
            aligned[start..][..received.len()].copy_from_slice(received);
            Ok(Bytes::from(aligned).slice(start..start + received.len()))
        };
        places.iter().map(part).collect()
    }

    fn reserve(&mut self, _header_bytes: usize, _bytes: usize) -> Option<Bytes> {
        None
    }
}

fn end_of(place: &PartPlace) -> usize {
    (place.start + place.bytes) as usize
}

/// The places of parts of these lengths, one after another in a slot.
fn places(lens: &[usize], slot: SlotPlace) -> Vec<PartPlace> {
    let mut end = 0_usize;
    let place = |&len: &usize| {
        let start = end.checked_next_multiple_of(64).unwrap_or_default();
        end = start.wrapping_add(len);
        PartPlace { owner: SlotOwner::Sender, slot, start: start as u64, bytes: len as u64 }
    };
    lens.iter().map(place).collect()
}

fn asking() -> Driver<Framed> {
    let mut driver = Driver::serving(Framed::default(), Limits::default());
    driver.receive(&client_preamble(1 << 20));
    driver
}

fn sharing(memory: &Memory) -> Driver<Framed> {
    let mut driver = asking();
    driver.share_memory(Some(Box::new(memory.clone())), true);
    driver
}

fn shared(text: &str, lens: &[usize], place: SlotPlace) -> Vec<u8> {
    let mut frame = Vec::new();
    write_shared_head(&mut frame, text.len(), &places(lens, place)).unwrap();
    frame.extend_from_slice(text.as_bytes());
    frame
}

/// The reply in a slot that echoes parts of these lengths.
fn echoed(lens: &[usize]) -> Vec<u8> {
    let result = references(lens.len());
    shared(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#), lens, PLACE)
}

fn body(reply: &[u8]) -> &[u8] {
    let end = reply.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
    &reply[end + 4..]
}

#[test]
fn the_preamble_waits_for_its_answer_however_it_is_cut() {
    let preamble = client_preamble(123);
    for cuts in [vec![24], vec![1; 24], vec![16, 8], vec![23, 1]] {
        for is_http in [true, false] {
            let mut driver = Driver::new();
            let mut rest = &preamble[..];
            for len in cuts.iter().copied() {
                assert_eq!(driver.connection.asks_for_shared_memory(), None);
                assert_eq!(driver.connection.next_action(), NextAction::Receive);
                let (now, later) = rest.split_at(len);
                driver.receive(now);
                rest = later;
            }
            assert_eq!(driver.connection.asks_for_shared_memory(), Some(123));
            assert_eq!(driver.connection.next_action(), NextAction::Pause);
            let request = if is_http { crate::harness::post(&sum(1)) } else { sum(1) };
            // A client that does not wait.
            driver.receive(request.as_bytes());
            assert_eq!(driver.sent(), "");
            driver.share_memory(None, false);
            let sent = driver.sent_bytes();
            let (answer, reply) = sent.split_first_chunk().unwrap();
            assert_eq!(read_server_preamble(*answer), Some(0));
            assert!(reply.ends_with(sum_reply(1).trim_end().as_bytes()) || !is_http);
            let protocol = if is_http { ConnectionProtocol::Http } else { ConnectionProtocol::Raw };
            assert_eq!(driver.connection.protocol(), Some(protocol));
            assert_eq!(driver.connection.next_action(), NextAction::Receive);
        }
    }
    assert_eq!(read_server_preamble(server_preamble(9)), Some(9));
    assert_eq!(read_server_preamble(client_preamble(9)), None);
}

#[test]
fn what_only_begins_as_a_preamble_is_refused() {
    let mut other = client_preamble(1);
    other[9] = b'2';
    for bytes in [&b"ucall-m2 shared\n12345678"[..], &other, b"ucall /"] {
        let mut driver = Driver::new();
        driver.receive(bytes);
        driver.receive(b"\r\n\r\n");
        assert_eq!(driver.connection.asks_for_shared_memory(), None);
        assert!(driver.sent().starts_with("HTTP/1.1 400 "), "{bytes:?}");
    }
    // Only the first bytes of a connection are one.
    let mut driver = Driver::new();
    driver.receive(sum(1).as_bytes());
    driver.receive(&client_preamble(1));
    assert_eq!(driver.connection.asks_for_shared_memory(), None);
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn parts_lie_in_shared_memory_in_both_directions() {
    let lens = [100_000, 0, 5, 70_000];
    let received: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let memory = Memory { received: received.clone(), ..Memory::default() };
    // Each part begins at the next multiple of 64.
    let starts = [0, 100_032, 100_032, 100_096];
    let mut expected = vec![0; starts[3] + lens[3]];
    for (start, len) in starts.into_iter().zip(lens) {
        expected[start..start + len].copy_from_slice(&received[start..start + len]);
    }
    let frame = shared(&call("echo", 4), &lens, PLACE);

    let mut raw = sharing(&memory);
    raw.receive(&frame);
    assert_eq!(raw.sent_bytes(), echoed(&lens));
    assert_eq!(*memory.sent.lock().unwrap(), expected);

    let mut http = sharing(&memory);
    memory.sent.lock().unwrap().clear();
    http.receive(&post_bytes(&frame));
    assert_eq!(body(&http.sent_bytes()), echoed(&lens));
    assert_eq!(*memory.sent.lock().unwrap(), expected);

    let mut socket = sharing(&memory);
    socket.receive(upgrade("").as_bytes());
    socket.sent_bytes();
    socket.receive(&socket_frame(0x82, &frame));
    assert!(socket.sent_bytes().ends_with(&echoed(&lens)));
}

#[test]
fn short_results_and_those_without_a_slot_go_through_the_socket() {
    let mut memory = Memory { received: vec![9; 100_000], ..Memory::default() };
    let reply =
        |bytes: &[u8]| framed(r#"{"jsonrpc":"2.0","id":1,"result":[{"$part":0}]}"#, &[bytes]);
    let mut driver = sharing(&memory);
    driver.receive(&shared(&call("echo", 1), &[65_535], PLACE));
    assert_eq!(driver.sent_bytes(), reply(&[9; 65_535]));
    driver.receive(&shared(&call("echo", 1), &[65_536], PLACE));
    assert_eq!(driver.sent_bytes(), echoed(&[65_536]));
    driver.receive(&framed(call("echo", 1), &[&[8; 70_000]]));
    assert_eq!(driver.sent_bytes(), echoed(&[70_000]), "parts may come through the socket");
    memory.is_full = true;
    let mut driver = sharing(&memory);
    driver.receive(&shared(&call("echo", 1), &[70_000], PLACE));
    assert_eq!(driver.sent_bytes(), reply(&[9; 70_000]));
}

#[test]
fn memory_that_does_not_have_the_parts_ends_the_connection() {
    let memory = Memory { received: vec![9; 1000], ..Memory::default() };
    let other = SlotPlace { slot: 2, descriptor: 0 };
    for (lens, place) in [([1001], PLACE), ([10], other)] {
        let frame = shared(&call("sum", 1), &lens, place);
        for bytes in [frame.clone(), post_bytes(&frame)] {
            let mut driver = sharing(&memory);
            driver.receive(&bytes);
            let sent = driver.sent();
            assert!(sent.contains("-32600") && sent.contains("shared memory"), "{sent}");
            assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
        }
    }
    // Lengths beyond the limits are refused before the memory is looked at.
    for lens in [[1 << 40, 0], [usize::MAX, 0], [usize::MAX - 63, 64]] {
        let mut driver = sharing(&memory);
        driver.receive(&shared(&call("sum", 2), &lens, PLACE));
        let sent = driver.sent();
        assert!(sent.contains("max_body_bytes"), "{sent}");
        assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
    }
}

#[test]
fn a_connection_without_shared_memory_has_no_such_frames() {
    let frame = shared(&call("sum", 1), &[10], PLACE);
    let mut refused = asking();
    refused.share_memory(None, false);
    refused.sent_bytes();
    for mut driver in [refused, Driver::serving(Framed::default(), Limits::default())] {
        driver.receive(&frame);
        let sent = driver.sent();
        assert!(sent.contains("expected a frame of version 1, not 2"), "{sent}");
    }
}

#[test]
fn parts_in_shared_memory_count_as_held_until_they_are_dropped() {
    let memory = Memory { received: vec![9; 100_000], ..Memory::default() };
    let mut driver = sharing(&memory);
    driver.receive(&shared(&call("keep", 1), &[100_000], PLACE));
    assert_eq!(driver.held_bytes(), 100_000);
    driver.service.kept.clear();
    assert_eq!(driver.held_bytes(), 0);
}
