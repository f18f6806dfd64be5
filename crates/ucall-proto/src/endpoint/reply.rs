//! How the outcomes of calls become responses.

use super::body::BodyReply;
use super::inference::InferenceReply;
use crate::json::Reader;
use crate::rpc::{ResultPart, RpcError};

/// How the outcome of a call is replied.
#[derive(Debug)]
pub(crate) enum EndpointReply {
    Inference(InferenceReply),
    Body(BodyReply),
}

impl EndpointReply {
    /// Appends the response to a call whose JSON-RPC reply is `reply`.
    pub(crate) fn write(
        &self,
        out: &mut Vec<u8>,
        reply: &[u8],
        parts: &[ResultPart],
        len_max: usize,
    ) {
        let [result, error] =
            Reader::new(reply).members([&b"result"[..], b"error"]).unwrap_or_default();
        let error = match (result, error) {
            (Some(_), _) => None,
            (None, Some(error)) => Some(RpcError::of_object(error)),
            (None, None) => Some(RpcError::new(RpcError::INTERNAL_ERROR, "Internal error")),
        };
        let outcome = error.as_ref().map_or(Ok(result.unwrap_or_default()), Err);
        match self {
            Self::Inference(reply) => reply.write(out, outcome, parts, len_max),
            Self::Body(reply) => reply.write(out, outcome, parts, len_max),
        }
    }
}

/// The status of a response with the error of a call. A code that is a status of HTTP for errors is
/// the function's own choice.
pub(crate) fn status_of(code: i64) -> u16 {
    match code {
        RpcError::PARSE_ERROR | RpcError::INVALID_REQUEST => 400,
        RpcError::UNAUTHORIZED => 403,
        RpcError::METHOD_NOT_FOUND => 404,
        RpcError::INVALID_PARAMS => 422,
        RpcError::UPSTREAM_UNAVAILABLE => 502,
        RpcError::OVERLOADED | RpcError::DRAINING | RpcError::ABORTED => 503,
        RpcError::DEADLINE_PASSED => 504,
        403 | 404 | 406 | 413 | 415 | 422 | 502..=504 | 400 => code as u16,
        _ => 500,
    }
}
