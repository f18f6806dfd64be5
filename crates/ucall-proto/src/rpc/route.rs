//! Replies of routes: HTTP requests that are not calls.
//!
//! A request of a route is run as a call whose id is [`ROUTE_ID`]. Its handler writes a response by
//! [`Reply::response`](super::Reply::response), or an error, which gets the status below.
//!
//! | error | status |
//! |---|---|
//! | invalid params | 400 |
//! | unauthorized | 403 |
//! | overloaded, draining, aborted | 503 |
//! | deadline passed | 504 |
//! | any other | 500 |

use super::RpcError;
use crate::http1::write_json_response;

/// Stands for the id of a request of a route. No JSON text is empty, so no call has it.
pub(crate) const ROUTE_ID: &[u8] = b"";

/// Appends the response that carries an error: a JSON object with the member `error`.
#[cold]
pub(super) fn write_error_response(out: &mut Vec<u8>, error: &RpcError) {
    let mut body = br#"{"error":"#.to_vec();
    error.write(&mut body);
    body.extend_from_slice(b"}\n");
    let (status, headers) = match error.code {
        RpcError::INVALID_PARAMS => ("400 Bad Request", String::new()),
        RpcError::UNAUTHORIZED => ("403 Forbidden", String::new()),
        RpcError::OVERLOADED | RpcError::DRAINING | RpcError::ABORTED => {
            ("503 Service Unavailable", RpcError::retry_after_line(&body))
        }
        RpcError::DEADLINE_PASSED => ("504 Gateway Timeout", String::new()),
        _ => ("500 Internal Server Error", String::new()),
    };
    write_json_response(out, status, &headers, &body);
}
