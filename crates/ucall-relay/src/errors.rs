//! The errors of a relay, for callers.

use ucall_proto::RpcError;
use ucall_proto::json::write_string;

/// The error of a call past a limit on calls to one upstream.
#[cold]
pub(crate) fn overloaded(limit: &str, max: usize) -> RpcError {
    let mut error = RpcError::new(RpcError::OVERLOADED, "Overloaded");
    error.data = Some(format!(r#"{{"retry_after_ms":100,"{limit}":{max}}}"#).into_bytes());
    error
}

/// The error of a call that upstreams would refuse to read, perhaps by closing its connection.
pub(crate) fn too_long(max: usize) -> RpcError {
    let expected = format!("expected at most {max} bytes with what the relay adds");
    RpcError::new(RpcError::INVALID_REQUEST, "The call is too long")
        .expected(&format!("{expected} (max_request_bytes)"))
}

/// The error of a call that was not sent because this process has run out of something.
pub(crate) fn out_of_resources(reason: &str) -> RpcError {
    let mut error = RpcError::new(RpcError::OVERLOADED, "Overloaded");
    let mut data = br#"{"retry_after_ms":100,"reason":"#.to_vec();
    write_string(&mut data, reason);
    data.push(b'}');
    error.data = Some(data);
    error
}

/// The error of a call whose upstream is unavailable. If it was sent, it may have run.
pub(crate) fn unavailable(was_sent: bool, reason: &str) -> RpcError {
    let mut error = RpcError::new(RpcError::UPSTREAM_UNAVAILABLE, "Upstream unavailable");
    let mut data = format!(r#"{{"sent":{was_sent},"reason":"#).into_bytes();
    write_string(&mut data, reason);
    data.push(b'}');
    error.data = Some(data);
    error
}
