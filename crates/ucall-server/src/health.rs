//! The responses of the health checks: `GET /healthz` and `GET /readyz`.
//!
//! The worker answers both on its own thread, before all limits and without authentication, so that
//! they are answered while all other threads are busy.

pub(crate) const LIVE: &str = "/healthz";
pub(crate) const READY: &str = "/readyz";

/// The response of `/healthz`: the worker takes turns, even if it may not take calls.
pub(crate) fn liveness() -> Vec<u8> {
    response("200 OK", "ok")
}

/// The response of `/readyz`. `problem` is why the server is not ready, if it is not.
pub fn readiness(problem: Option<&str>) -> Vec<u8> {
    match problem {
        None => response("200 OK", "ready"),
        Some(problem) => response("503 Service Unavailable", &format!("not ready: {problem}")),
    }
}

#[cold]
fn response(status: &str, text: &str) -> Vec<u8> {
    let length = text.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\
         Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\n\r\n{text}\n"
    )
    .into_bytes()
}
