//! A JSON-RPC 2.0 `sum` with serde, which these servers share.
//!
//! Fields are borrowed, params stay text until the method is known, and the id is returned as text.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: &'a RawValue,
    #[serde(borrow)]
    id: &'a RawValue,
}

#[derive(Deserialize)]
struct Sum {
    a: i64,
    b: i64,
}

#[derive(Serialize)]
struct Reply<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

#[derive(Serialize)]
struct Failure {
    code: i32,
    message: &'static str,
}

fn failed<T>(code: i32, message: &'static str) -> Result<T, Failure> {
    Err(Failure { code, message })
}

fn outcome_of(request: &Request) -> Result<i64, Failure> {
    if request.jsonrpc != "2.0" {
        return failed(-32600, "Invalid Request");
    }
    if request.method != "sum" {
        return failed(-32601, "Method not found");
    }
    match serde_json::from_str::<Sum>(request.params.get()) {
        Ok(Sum { a, b }) => Ok(a + b),
        Err(_) => failed(-32602, "Invalid params"),
    }
}

/// Writes the reply to a request.
pub fn answer(body: &[u8], out: &mut impl Write) -> io::Result<()> {
    let Ok(request) = serde_json::from_slice::<Request>(body) else {
        return out.write_all(
            br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#,
        );
    };
    let (result, error) = match outcome_of(&request) {
        Ok(result) => (Some(result), None),
        Err(failure) => (None, Some(failure)),
    };
    Ok(serde_json::to_writer(out, &Reply { jsonrpc: "2.0", id: request.id, result, error })?)
}

/// The address to listen on: the port is the last argument.
pub fn address() -> (&'static str, u16) {
    let port = std::env::args().last().and_then(|port| port.parse().ok());
    ("127.0.0.1", port.expect("the last argument is a port"))
}
