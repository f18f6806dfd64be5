//! How the outcomes of calls become responses.

use ucall_buffer::Bytes;

use super::body::BodyReply;
use super::inference::InferenceReply;
use crate::json::Reader;
use crate::rpc::{ResultPart, RpcError};

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    /// Its status line, its headers, the blank line, and the first bytes of its body.
    pub(crate) text: Vec<u8>,
    /// The others, which may lie where the function has left them.
    pub(crate) tail: Vec<Bytes>,
}

impl From<Vec<u8>> for Response {
    fn from(text: Vec<u8>) -> Self {
        Self { text, tail: Vec::new() }
    }
}

impl Response {
    /// All bytes in one text.
    #[cfg(any(test, feature = "invariants"))]
    pub(crate) fn into_text(self) -> Vec<u8> {
        self.tail.iter().fold(self.text, |mut text, piece| {
            text.extend_from_slice(piece);
            text
        })
    }
}

/// How the outcome of a call is replied.
#[derive(Debug)]
pub(crate) enum EndpointReply {
    Inference(InferenceReply),
    Body(BodyReply),
}

impl EndpointReply {
    /// The response to a call whose JSON-RPC reply is `reply`.
    pub(crate) fn response(&self, reply: &[u8], parts: &[ResultPart], len_max: usize) -> Response {
        let [result, error] =
            Reader::new(reply).members([&b"result"[..], b"error"]).unwrap_or_default();
        let error = match (result, error) {
            (Some(_), _) => None,
            (None, Some(error)) => Some(RpcError::of_object(error)),
            (None, None) => Some(RpcError::new(RpcError::INTERNAL_ERROR, "Internal error")),
        };
        let outcome = error.as_ref().map_or(Ok(result.unwrap_or_default()), Err);
        match self {
            Self::Inference(reply) => reply.response(outcome, parts, len_max),
            Self::Body(reply) => reply.response(outcome, parts, len_max),
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
        400 | 403 | 404 | 406 | 409 | 410 | 413 | 415 | 422 | 429 | 502..=504 => code as u16,
        _ => 500,
    }
}
