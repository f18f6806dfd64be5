//! Datagrams of any sender.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

use serde::Deserialize;
use serde_json::Value;
use ucall_proto::{DatagramDocument, Limits, Scratch};

use crate::rpc_document::{self, Echo};

/// A datagram is answered only if a connection answers it without -32600 and -32700. No reply is a
/// request, so that two servers never answer each other. White space around a document changes
/// nothing.
///
/// # Panics
/// If that does not hold.
pub fn run(input: &[u8]) {
    let (limits, mut scratch) = (rpc_document::limits(), Scratch::default());
    let Some(hash) = hash_of(input, &limits, &mut scratch) else { return };
    let spaced = [b" \n".as_slice(), input, b"\r\n\t"].concat();
    assert_eq!(hash_of(&spaced, &limits, &mut scratch), Some(hash));
    let mut driver = rpc_document::driver();
    driver.receive(input.trim_ascii());
    if driver.out.is_empty() {
        return;
    }
    assert_eq!(hash_of(&driver.out, &limits, &mut scratch), None, "{}", driver.out.escape_ascii());
    let mut reader = serde_json::Deserializer::from_slice(&driver.out);
    reader.disable_recursion_limit();
    let reply = Value::deserialize(&mut reader).expect("a reply");
    for one in reply.as_array().unwrap_or(&vec![reply.clone()]) {
        assert_eq!(one.get("error"), None);
    }
}

/// A hash of all that a datagram is; `None` if it is not answered.
fn hash_of(text: &[u8], limits: &Limits, scratch: &mut Scratch) -> Option<u64> {
    let document = DatagramDocument::parse::<Echo>(text, limits, scratch)?;
    let mut hasher = DefaultHasher::new();
    document.hash_requests(&mut hasher);
    hasher.write_u8(u8::from(document.takes_items()));
    hasher.write(document.cookie().unwrap_or_default());
    hasher.write(document.id().unwrap_or_default());
    Some(hasher.finish())
}
