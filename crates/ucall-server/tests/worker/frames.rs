//! Documents in frames, and the parts of their results.

use std::sync::Arc;

use ucall_engine::fake::SendMode;
use ucall_proto::{ResultPart, frame_padding, write_frame_head};

use crate::harness::{Harness, call, reply, text};

/// Memory of another language, which is not copied.
struct Owner(Vec<u8>, #[expect(dead_code, reason = "counted by its clones")] Arc<()>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

const LENS: [usize; 4] = [200_000, 10, 65_536, 100_001];

fn parts(owners: &Arc<()>) -> Vec<ResultPart> {
    let bytes = |len: usize| (0..len).map(|at| (at % 251) as u8).collect();
    let part = |&len: &usize| {
        let owner = Owner(bytes(len), owners.clone());
        ResultPart { tensor: None, bytes: ucall_buffer::Bytes::from_owner(owner) }
    };
    LENS.iter().map(part).collect()
}

pub fn framed(text: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let lens: Vec<usize> = parts.iter().map(|it| it.len()).collect();
    write_frame_head(&mut out, text.len(), &lens).unwrap();
    out.extend_from_slice(text.as_bytes());
    for part in parts {
        out.extend_from_slice(frame_padding(out.len()));
        out.extend_from_slice(part);
    }
    out
}

fn expected(owners: &Arc<()>, id: &str) -> Vec<u8> {
    let parts = parts(owners);
    let parts: Vec<&[u8]> = parts.iter().map(|part| &part.bytes[..]).collect();
    framed(reply(id, "[]").trim_end(), &parts)
}

#[test]
fn parts_are_sent_in_their_place_and_dropped_when_they_are_sent() {
    for send_mode in [SendMode::AtOnce, SendMode::InSteps(usize::MAX), SendMode::InSteps(70_001)] {
        for is_deferred in [false, true] {
            let (mut harness, owners) = (Harness::new(), Arc::new(()));
            let peer = harness.connect();
            peer.set_send_mode(send_mode);
            let method = if is_deferred { "later" } else { "echo" };
            harness.worker.handler_mut().result_parts = parts(&owners);
            let frame = framed(&call(method, "[]", "1"), &[]);
            peer.write(&frame);
            if is_deferred {
                harness.turn();
                harness.complete("1", Ok(b"[]".to_vec()));
            }
            peer.write(call("echo", "[2]", "2").as_bytes());
            harness.turns(50);
            let replies = [&expected(&owners, "1")[..], reply("2", "[2]").as_bytes()].concat();
            assert!(peer.read() == replies, "{send_mode:?} {is_deferred}");
            assert_eq!(Arc::strong_count(&owners), 1, "the owners are dropped");
            assert_eq!(harness.worker.handler_mut().calls.budget().bytes(), 0);
        }
    }
}

#[test]
fn parts_that_a_peer_does_not_take_are_reserved_and_dropped_with_it() {
    let (mut harness, owners) = (Harness::new(), Arc::new(()));
    let peer = harness.connect();
    peer.set_send_mode(SendMode::Stalled);
    harness.worker.handler_mut().result_parts = parts(&owners);
    peer.write(&framed(&call("echo", "[]", "1"), &[]));
    harness.turns(3);
    let len: usize = LENS.iter().sum();
    let held_bytes = harness.worker.handler_mut().calls.budget().bytes();
    assert!((len..len + 1000).contains(&held_bytes), "{held_bytes}");
    assert!(Arc::strong_count(&owners) > 1);
    peer.reset();
    harness.turns(3);
    assert_eq!(Arc::strong_count(&owners), 1);
    assert_eq!(harness.worker.handler_mut().calls.budget().bytes(), 0);
}

#[test]
fn pipelined_results_wait_for_those_before_them() {
    let (mut harness, owners) = (Harness::new(), Arc::new(()));
    let peer = harness.connect();
    peer.set_send_mode(SendMode::Stalled);
    harness.worker.handler_mut().result_parts = (0..8).flat_map(|_| parts(&owners)).collect();
    peer.write(&framed(&call("echo", "[]", "1"), &[]));
    peer.write(call("echo", "[2]", "2").as_bytes());
    harness.turns(3);
    assert!(peer.unread() > 0 || harness.network.is_paused(peer.socket().unwrap()));
    peer.set_send_mode(SendMode::InSteps(usize::MAX));
    harness.turns(50);
    assert!(peer.read().ends_with(reply("2", "[2]").as_bytes()));
}

#[test]
fn a_reply_without_a_frame_has_its_parts_in_the_text() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    let batch = format!("[{},{}]", call("later", "[]", "1"), call("echo", "[]", "2"));
    peer.write(&framed(&batch, &[]));
    harness.turn();
    let part = ResultPart { tensor: None, bytes: ucall_buffer::Bytes::from_static(b"abc") };
    harness.worker.handler_mut().result_parts = vec![part];
    harness.complete("1", Ok(br#"{"$part":0}"#.to_vec()));
    assert!(text(&peer).contains(r#""id":1,"result":"YWJj"}"#));
}
