//! The TLS of one connection, if it has any, between its plaintext and its socket.

use ucall_engine::Id;
use ucall_proto::tls::{TlsConnection, TlsError};
use ucall_server::NativeContext;

use crate::options::UpstreamTls;

/// Memory that an empty buffer keeps, so that the longest call does not stay reserved.
const CACHED_BYTES_MAX: usize = 64 * 1024;

/// One connection's TLS; by default none.
#[derive(Debug, Default)]
pub(crate) struct Transport {
    tls: Option<TlsConnection>,
    /// Records that were not passed to the engine yet.
    records: Vec<u8>,
}

impl Transport {
    /// A transport that begins with a handshake.
    pub(crate) fn secure(tls: &UpstreamTls) -> Result<Self, TlsError> {
        let mut records = Vec::new();
        let tls = TlsConnection::client(tls.config.clone(), tls.name.clone(), &mut records)?;
        Ok(Self { tls: Some(tls), records })
    }

    /// Whether plaintext cannot be sent yet.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(TlsConnection::is_handshaking)
    }

    /// Bytes that wait for a send.
    pub(crate) fn unsent(&self) -> usize {
        self.records.len()
    }

    /// Memory of records that are incomplete or wait.
    pub(crate) fn held_bytes(&self) -> usize {
        self.records.capacity() + self.tls.as_ref().map_or(0, TlsConnection::held_bytes)
    }

    /// Passes the plaintext in `bytes` to `take`. Returns whether the peer may send more.
    pub(crate) fn receive(
        &mut self,
        bytes: &mut [u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<bool, TlsError> {
        let Some(tls) = &mut self.tls else {
            take(bytes);
            return Ok(true);
        };
        tls.receive(bytes, &mut self.records, take)?;
        Ok(!tls.has_received_close_notify())
    }

    /// Sends as much as it can; returns whether it has taken `plaintext`, which is empty then.
    pub(crate) fn send(
        &mut self,
        socket: Id,
        plaintext: &mut Vec<u8>,
        context: &mut dyn NativeContext,
    ) -> Result<bool, TlsError> {
        let takes = self.pass(socket, plaintext, context)?;
        release(plaintext);
        release(&mut self.records);
        Ok(takes)
    }

    fn pass(
        &mut self,
        socket: Id,
        plaintext: &mut Vec<u8>,
        context: &mut dyn NativeContext,
    ) -> Result<bool, TlsError> {
        let Some(tls) = &mut self.tls else {
            return Ok(!plaintext.is_empty() && context.send(socket, plaintext));
        };
        // Records that wait are of calls that may have run: further calls wait as plaintext.
        let takes = self.records.is_empty() && !plaintext.is_empty() && !tls.is_handshaking();
        if takes {
            tls.send(plaintext, &mut self.records)?;
            plaintext.clear();
        }
        if !self.records.is_empty() {
            context.send(socket, &mut self.records);
        }
        Ok(takes)
    }
}

fn release(buffer: &mut Vec<u8>) {
    if buffer.is_empty() {
        buffer.shrink_to(CACHED_BYTES_MAX);
    }
}
