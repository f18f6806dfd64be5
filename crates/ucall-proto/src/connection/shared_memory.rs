//! A client that shares memory with its server, so that the parts of calls are not copied through
//! the socket.
//!
//! The client asks by a preamble, the first [`PREAMBLE_BYTES`] of the connection, and waits for
//! that of the server. Then the connection goes on as any other, in whatever protocol:
//!
//! | at | of a preamble |
//! |---|---|
//! | 0 | `ucall-m1 shared\n` of a client, `ucall-m1 memory\n` of a server |
//! | 16 | the bytes of slots that this side takes, 64 bits with the lowest byte first; 0 for none |
//!
//! The server's preamble carries the descriptor of a channel, so the layer that owns the socket
//! sends it. Until that has happened, the preamble of the client is a request that waits.

use ucall_buffer::SharedMemory;

use super::{Environment, PlainConnection, ReadEvent, Step};
use crate::rpc::Service;

/// The length of a preamble.
pub const PREAMBLE_BYTES: usize = 24;

const CLIENT: [u8; 16] = *b"ucall-m1 shared\n";
const SERVER: [u8; 16] = *b"ucall-m1 memory\n";

/// The preamble of a client that takes slots of so many bytes.
pub fn client_preamble(bytes_max: u64) -> [u8; PREAMBLE_BYTES] {
    preamble(CLIENT, bytes_max)
}

/// The preamble of a server that takes slots of so many bytes.
pub fn server_preamble(bytes_max: u64) -> [u8; PREAMBLE_BYTES] {
    preamble(SERVER, bytes_max)
}

fn preamble(name: [u8; 16], bytes_max: u64) -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [0; PREAMBLE_BYTES];
    let bytes = name.into_iter().chain(bytes_max.to_le_bytes());
    preamble.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    preamble
}

/// The bytes of slots that a server takes, which has this preamble; `None` if it is none.
pub fn read_server_preamble(preamble: [u8; PREAMBLE_BYTES]) -> Option<u64> {
    read_preamble(SERVER, &preamble)
}

fn read_preamble(name: [u8; 16], bytes: &[u8]) -> Option<u64> {
    let (found, rest) = bytes.split_first_chunk()?;
    let (bytes_max, _) = rest.split_first_chunk()?;
    (*found == name).then(|| u64::from_le_bytes(*bytes_max))
}

/// How far a connection has come with its peer's wish for shared memory.
#[derive(Debug)]
pub(super) enum Sharing {
    /// The preamble of the client waits. It takes slots of so many bytes.
    Asked(u64),
    /// The preamble was answered.
    Answered,
    /// Both sides share memory.
    Shared(Box<dyn SharedMemory>),
}

impl PlainConnection {
    /// The bytes of slots that a client takes whose preamble waits for an answer.
    pub fn asks_for_shared_memory(&self) -> Option<u64> {
        match self.sharing.as_deref() {
            Some(Sharing::Asked(bytes_max)) => Some(*bytes_max),
            _ => None,
        }
    }

    /// The memory that both sides share.
    pub(super) fn shared_memory(&mut self) -> Option<&mut dyn SharedMemory> {
        match self.sharing.as_deref_mut() {
            Some(Sharing::Shared(memory)) => Some(&mut **memory),
            _ => None,
        }
    }

    /// Goes on after the answer to the preamble, which is written here unless it `was_sent`.
    pub(super) fn share_memory<S: Service>(
        &mut self,
        memory: Option<Box<dyn SharedMemory>>,
        was_sent: bool,
        environment: &mut Environment<'_, S>,
    ) {
        if !was_sent {
            environment.out.extend_from_slice(&server_preamble(0));
        }
        let sharing = memory.map_or(Sharing::Answered, Sharing::Shared);
        self.sharing = Some(Box::new(sharing));
        self.resume(environment);
    }

    /// Detects the preamble of a client, at the start of a connection without TLS.
    pub(super) fn detect_preamble(&mut self, bytes: &[u8]) -> Option<Step> {
        let is_open = self.session.is_none() && self.requests == 0;
        let name = bytes.get(..CLIENT.len().min(bytes.len()))?;
        if name.is_empty() || !is_open || !CLIENT.starts_with(name) {
            return None;
        }
        let Some(bytes_max) = read_preamble(CLIENT, bytes) else { return Some(Step::Incomplete) };
        match self.sharing.as_deref() {
            // It was answered: another protocol follows.
            Some(Sharing::Answered | Sharing::Shared(_)) => Some(Step::Consumed(PREAMBLE_BYTES)),
            _ => {
                self.sharing = Some(Box::new(Sharing::Asked(bytes_max)));
                self.reading.handle(ReadEvent::Wait);
                Some(Step::Incomplete)
            }
        }
    }
}
