//! `ucall_peer_t`: the other end of a connection.

use std::ffi::c_char;
use std::io::Write;

use ucall_engine::Peer;

/// The longest address, with a scope and a NUL.
const ADDRESS_BYTES: usize = 64;

/// `ucall_peer_t`.
#[repr(C)]
#[derive(Debug)]
pub struct PeerAddress {
    address: [c_char; ADDRESS_BYTES],
    port: u16,
    process: i32,
    user: u32,
    group: u32,
}

impl PeerAddress {
    pub(crate) fn of(peer: Peer) -> Option<Self> {
        let mut made = Self { address: [0; ADDRESS_BYTES], port: 0, process: 0, user: 0, group: 0 };
        match peer {
            Peer::Address(address) => {
                let mut text = Vec::with_capacity(ADDRESS_BYTES);
                write!(text, "{}", address.ip()).ok()?;
                for (to, from) in made.address.iter_mut().take(ADDRESS_BYTES - 1).zip(text) {
                    *to = from as c_char;
                }
                made.port = address.port();
            }
            Peer::Process { pid, uid, gid } => {
                (made.process, made.user, made.group) = (pid, uid, gid);
            }
            _ => return None,
        }
        Some(made)
    }
}
