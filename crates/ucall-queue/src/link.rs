//! One link: what carries a session's bytes just now.
#![forbid(unsafe_code)]

use std::time::Instant;

use crate::decoder::Decoder;

/// Names a link of a hub. A number is never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinkKey(pub(crate) u64);

/// Which side of the link speaks first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// We made it.
    Dialed,
    /// The other side did.
    Accepted,
}

pub(crate) struct Link {
    pub(crate) role: Role,
    pub(crate) decoder: Decoder,
    /// The session, once the handshake told which. For a dialed one that is known at once.
    pub(crate) session: Option<u32>,
    pub(crate) is_open: bool,
    /// Frames that are not messages, in line before those.
    pub(crate) control: Vec<u8>,
    /// However many pings came since the last one: a flood of them takes no memory.
    pub(crate) pong_is_due: bool,
    pub(crate) opened: Instant,
    pub(crate) heard: Instant,
    pub(crate) spoke: Instant,
    /// It is on the list of links with something to send.
    pub(crate) is_listed: bool,
    /// It is closed once what it has to say is said.
    pub(crate) is_ending: bool,
}

impl Link {
    pub(crate) fn new(role: Role, message_bytes_max: usize, now: Instant) -> Self {
        Self {
            role,
            decoder: Decoder::new(message_bytes_max),
            session: None,
            is_open: false,
            control: Vec::new(),
            pong_is_due: false,
            opened: now,
            heard: now,
            spoke: now,
            is_listed: false,
            is_ending: false,
        }
    }
}
