//! One response object of a server, as slices of its text, for callers of other servers.

use crate::json::scan::Scanner;
use crate::json::{JsonError, Reader, ValueKind};
use crate::rpc::RpcError;

/// What a server has sent: a response, or a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response<'a> {
    /// The text of the id; `None` without one.
    pub id: Option<&'a [u8]>,
    /// What it says.
    pub body: ResponseBody<'a>,
}

/// What a response says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponseBody<'a> {
    /// The text of the result.
    Result(&'a [u8]),
    /// The text of the error.
    Error(&'a [u8]),
    /// It is a request or a notification.
    Request {
        /// The text of the method.
        method: &'a [u8],
        /// The text of the params.
        params: Option<&'a [u8]>,
    },
    /// Both a result and an error, or neither.
    Invalid,
}

impl<'a> Response<'a> {
    /// The object that `text` starts with, and its length. Of two members with one name, the last
    /// counts.
    ///
    /// # Errors
    /// `Incomplete` if the object goes on after `text`; the others if it is no object.
    pub fn parse(text: &'a [u8], nesting_max: usize) -> Result<(Self, usize), JsonError> {
        let mut scanner = Scanner::new(text, nesting_max);
        if scanner.peek()? != b'{' {
            return Err(JsonError::Invalid);
        }
        let (mut id, mut result, mut error) = (None, None, None);
        let (mut method, mut params) = (None, None);
        let mut more = scanner.enter_unless_empty(b'}')?;
        while more {
            scanner.peek()?;
            let key = scanner.key()?;
            scanner.peek()?;
            let start = scanner.position();
            scanner.value()?;
            let value = Some(scanner.since(start));
            match key.unescaped().as_ref() {
                b"id" => id = value,
                b"result" => result = value,
                b"error" => error = value,
                b"method" => method = value,
                b"params" => params = value,
                _ => {}
            }
            more = scanner.another(b'}')?;
        }
        scanner.finish()?;
        let body = match (result, error) {
            // A JSON-RPC 1.0 server sends the other member as null.
            (Some(result), None | Some(b"null")) => ResponseBody::Result(result),
            (None | Some(b"null"), Some(error)) if error != b"null" => ResponseBody::Error(error),
            _ => ResponseBody::Invalid,
        };
        let body = method.map_or(body, |method| ResponseBody::Request { method, params });
        Ok((Self { id, body }, scanner.position()))
    }
}

impl RpcError {
    /// The error whose text a server has sent; `None` if it lacks a code or a message.
    pub fn parse_response(text: &[u8]) -> Option<Self> {
        let [code, message, data] = Reader::new(text).members([b"code", b"message", b"data"])?;
        let (mut code, mut message) = (Reader::new(code?), Reader::new(message?));
        if (code.kind(), message.kind()) != (ValueKind::Number, ValueKind::String) {
            return None;
        }
        let text = String::from_utf8(message.string().unescaped().into_owned()).ok()?;
        let data = data.map(<[u8]>::to_vec);
        Some(Self { data, ..Self::new(code.number().as_i64()?, text) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(Response<'_>, usize), JsonError> {
        Response::parse(text.as_bytes(), 8)
    }

    #[test]
    fn the_parts_of_a_response_are_found_byte_for_byte() {
        let text = r#"{"jsonrpc":"2.0","id":7,"result":[1.0, "\u00e9" ]} {"#;
        let (response, len) = parsed(text).unwrap();
        assert_eq!(response.id, Some(&b"7"[..]));
        assert_eq!(response.body, ResponseBody::Result(br#"[1.0, "\u00e9" ]"#));
        assert_eq!(len, text.len() - 2);
        let (response, _) = parsed(r#" { "err\u006fr" : {} , "id":null, "result":null}"#).unwrap();
        assert_eq!((response.id, response.body), (Some(&b"null"[..]), ResponseBody::Error(b"{}")));
        let null = parsed(r#"{"result":null,"error":null}"#).unwrap().0;
        assert_eq!((null.id, null.body), (None, ResponseBody::Result(b"null")));
    }

    #[test]
    fn what_is_no_response_is_told_apart() {
        for text in ["{}", r#"{"result":1,"error":{}}"#, r#"{"error":null}"#] {
            assert_eq!(parsed(text).unwrap().0.body, ResponseBody::Invalid, "{text}");
        }
        let (request, _) = parsed(r#"{"method":"m","params":{}}"#).unwrap();
        let expected = ResponseBody::Request { method: br#""m""#, params: Some(b"{}") };
        assert_eq!(request.body, expected);
        for text in ["[]", "1", "{]", r#"{"a":[[[[[[[[1]]]]]]]]}"#, "{\"a\":\"\u{0}\"}"] {
            assert!(!matches!(parsed(text), Ok(_) | Err(JsonError::Incomplete)), "{text}");
        }
        assert!(Response::parse(b"{\"a\":\"\xff\"}", 8).is_err());
        let whole = r#"{"id":1,"result":{"a":[1.5e3,"b"]}}"#;
        for len in 0..whole.len() {
            assert_eq!(parsed(&whole[..len]), Err(JsonError::Incomplete), "{len}");
        }
    }

    #[test]
    fn an_error_needs_a_code_and_a_message() {
        let text = br#"{"code":-1,"message":"a\nb","data":{"x": 1.0}}"#;
        let error = RpcError::parse_response(text).unwrap();
        assert_eq!((error.code, error.message.as_ref()), (-1, "a\nb"));
        assert_eq!(error.data.as_deref(), Some(&br#"{"x": 1.0}"#[..]));
        for text in ["1", "{}", r#"{"code":1}"#, r#"{"code":1.5,"message":""}"#] {
            assert_eq!(RpcError::parse_response(text.as_bytes()), None, "{text}");
        }
    }
}
