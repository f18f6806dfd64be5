//! Calls of functions by HTTP requests that are no JSON-RPC: the Open Inference Protocol
//! ([`inference`]), and whole bodies at the path of a function ([`body`]).
//!
//! Both turn a request into the params of a call, with arrays and files as its parts, and the
//! result of that call into a response. What runs the call is the same as for JSON-RPC.

pub(crate) mod body;
pub(crate) mod inference;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod outputs;
mod params;
mod percent;
pub(crate) mod reply;
mod tensors;

use std::borrow::Cow;
use std::sync::Arc;

pub use body::ParamKind;
pub use inference::{Datatype, InferenceModel, InferencePath, InputForm, ModelInput, ModelOutput};
pub(crate) use params::CallParams;
pub use percent::decode as percent_decoded;

use crate::http1::write_json_response;
use crate::rpc::RpcError;

/// What runs the requests of a path that are no JSON-RPC.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A model of the Open Inference Protocol.
    Inference(Arc<InferenceModel>),
    /// No model has the name in the path; the name.
    UnknownModel(String),
    /// The function of this name, of whose params the body is one, or has some.
    Body(String),
}

/// Why a request gets no result, and the status of its response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) error: RpcError,
}

impl Refusal {
    /// Of a request that cannot be read.
    pub(crate) fn invalid(problem: impl Into<Cow<'static, str>>) -> Self {
        Self::new(400, RpcError::INVALID_REQUEST, problem)
    }

    pub(crate) fn new(status: u16, code: i64, problem: impl Into<Cow<'static, str>>) -> Self {
        Self { status, error: RpcError::new(code, problem) }
    }
}

/// The status line of a response with an error, after the version.
fn status_line(status: u16) -> &'static str {
    match status {
        403 => "403 Forbidden",
        404 => "404 Not Found",
        406 => "406 Not Acceptable",
        409 => "409 Conflict",
        410 => "410 Gone",
        413 => "413 Content Too Large",
        415 => "415 Unsupported Media Type",
        422 => "422 Unprocessable Content",
        429 => "429 Too Many Requests",
        500 => "500 Internal Server Error",
        502 => "502 Bad Gateway",
        503 => "503 Service Unavailable",
        504 => "504 Gateway Timeout",
        _ => "400 Bad Request",
    }
}

/// A response with an error, whose body is JSON text.
#[cold]
fn error_response(status: u16, body: &[u8]) -> Vec<u8> {
    let mut response = Vec::new();
    let headers = match status {
        503 => RpcError::retry_after_line(body),
        415 => "Accept-Encoding: identity\r\n".to_owned(),
        _ => String::new(),
    };
    write_json_response(&mut response, status_line(status), &headers, body);
    response
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::invariants::{check_body, check_inference};

    proptest! {
        #[test]
        fn any_request_is_read_or_refused(
            at in 0..3_usize,
            values in prop::collection::vec("\\PC{0,12}|[0-9]{1,3}|&|=|%2", 0..6),
            body: Vec<u8>,
        ) {
            let types = ["application/json", "multipart/form-data; boundary=b", "image/png"];
            let query: String = values.concat().chars().filter(char::is_ascii_graphic).collect();
            let query = query.replace('#', "");
            let head = format!(
                "POST /f?{query} HTTP/1.1\r\nHost: a\r\nContent-Type: {}\r\n\r\n",
                types[at]
            );
            check_body(&[head.as_bytes(), &body].concat());
            check_body(&[head.as_bytes(), b"--b", &body, b"\r\n--b--"].concat());
            check_inference(None, &body);
        }
    }
}
