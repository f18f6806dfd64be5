//! The call of a native procedure, as the hooks around it have the worker make it.

use std::time::Instant;

use ucall_proto::Meta;
use ucall_proto::json::write_string;
use ucall_server::{Caller, InnerCall};

use super::{Context, Text};

impl Context {
    /// The call of a native procedure, with which this call is answered; `None` before the worker
    /// serves.
    pub(crate) fn native_call(&self, number: u64, now: Instant) -> Option<InnerCall> {
        let connection = self.channel.as_ref()?.connection();
        let caller = Caller { connection, peer: self.peer, transport: self.transport };
        let mut method = Vec::new();
        write_string(&mut method, &self.method());
        Some(InnerCall {
            id: InnerCall::id(&caller, number),
            caller,
            method,
            params: self.params().map(<[u8]>::to_vec),
            meta: self.native_meta(now),
            has_reply: self.text(Text::Id).is_some(),
        })
    }

    /// The text of a `_meta` with what native procedures pass on to other servers.
    fn native_meta(&self, now: Instant) -> Vec<u8> {
        let hops = self.text(Text::Meta).map(Meta).and_then(|meta| meta.find(b"hops"));
        let mut text = format!(r#"{{"hops":{}"#, String::from_utf8_lossy(hops.unwrap_or(b"0")));
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(now);
            text.push_str(&format!(r#","timeout_ms":{}"#, left.as_millis()));
        }
        let mut text = text.into_bytes();
        let traceparent = self.trace_member("traceparent");
        let tracestate = self.trace_member("tracestate").filter(|_| traceparent.is_some());
        for (name, value) in [("traceparent", traceparent), ("tracestate", tracestate)] {
            let Some(value) = value else { continue };
            text.extend_from_slice(format!(r#","{name}":"#).as_bytes());
            write_string(&mut text, &value);
        }
        text.push(b'}');
        text
    }
}
