//! Documents that come one a line, as over standard input.
//!
//! A connection over raw TCP ends at bytes that are no JSON, because it cannot know where the next
//! document begins. Here that is the next line. So [`Lines`] passes on only what a raw connection
//! takes, and answers the other lines itself.
//!
//! [`ReplyLines`] adapts what the connection sends.
//!
//! White space before a document takes no memory, and white space after it is part of it.

use memchr::memchr;

use crate::Limits;
use crate::json::{JsonError, validate};
use crate::rpc::RpcError;

/// Separates the lines that are documents from those that are not.
#[derive(Debug)]
pub struct Lines {
    limits: Limits,
    /// The beginning of a line.
    partial: Vec<u8>,
    /// The rest of this line is dropped: it was refused.
    is_refused: bool,
}

impl Lines {
    /// With the limits of the connection that gets the documents.
    pub fn new(limits: &Limits) -> Self {
        Self { limits: limits.clone(), partial: Vec::new(), is_refused: false }
    }

    /// Takes the next bytes. Appends the documents that end in them to `documents`, and errors for
    /// the other lines to `errors`, each ended by a newline.
    pub fn receive(&mut self, bytes: &[u8], documents: &mut Vec<u8>, errors: &mut Vec<u8>) {
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            let (line, others) = rest.split_at(end);
            rest = others.get(1..).unwrap_or_default();
            self.end_line(line, documents, errors);
        }
        if self.is_refused {
            return;
        }
        let rest = if self.partial.is_empty() { without_indent(rest) } else { rest };
        self.partial.extend_from_slice(rest);
        // A carriage return may follow the longest document.
        if self.partial.len() > self.limits.body_bytes_max + 1 {
            write_error(&RpcError::document_too_long(&self.limits), errors);
            (self.partial, self.is_refused) = (Vec::new(), true);
        }
    }

    /// Nothing follows: what is left is the last line.
    pub fn finish(&mut self, documents: &mut Vec<u8>, errors: &mut Vec<u8>) {
        self.end_line(b"", documents, errors);
    }

    /// Takes the end of a line.
    fn end_line(&mut self, end: &[u8], documents: &mut Vec<u8>, errors: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_refused) {
            return;
        }
        let mut partial = std::mem::take(&mut self.partial);
        let line = if partial.is_empty() {
            end
        } else {
            partial.extend_from_slice(end);
            &partial
        };
        let line = without_indent(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match self.check(line) {
            Ok(()) if line.is_empty() => {}
            Ok(()) => {
                documents.extend_from_slice(line);
                documents.push(b'\n');
            }
            Err(error) => write_error(&error, errors),
        }
    }

    fn check(&self, line: &[u8]) -> Result<(), RpcError> {
        let fault = match line.first() {
            None => return Ok(()),
            _ if line.len() > self.limits.body_bytes_max => {
                return Err(RpcError::document_too_long(&self.limits));
            }
            Some(b'{' | b'[') => match validate(line, self.limits.nesting_max) {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            },
            Some(_) => JsonError::Invalid,
        };
        Err(RpcError::parse(fault, &self.limits))
    }
}

/// How the notification of a drain begins.
const DRAIN_START: &[u8] = br#"{"jsonrpc":"2.0","method":"$/drain""#;
/// How a reply begins to what has no valid id.
const UNKNOWN_ID_START: &[u8] = br#"{"jsonrpc":"2.0","id":null,"error":"#;
const ERROR_START: &[u8] = br#"{"jsonrpc":"2.0","error":"#;

/// Adapts the lines of a raw connection to MCP, which has no id that is null, and does not know the
/// notification of a drain.
#[derive(Debug, Default)]
pub struct ReplyLines {
    /// The beginning of a line, as long as it may be one of the two.
    start: Vec<u8>,
    place: Place,
}

/// Where the next byte is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Place {
    /// In the beginning of a line.
    #[default]
    Start,
    /// In the rest of a line.
    Rest,
    /// In the rest of a line that is left out.
    LeftOut,
}

impl ReplyLines {
    /// Appends the next bytes to `out`, adapted. It may keep the beginning of a line until the next
    /// bytes come.
    pub fn adapt(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            match self.place {
                Place::Start => self.begin(piece, out),
                Place::Rest => out.extend_from_slice(piece),
                Place::LeftOut => {}
            }
            if piece.ends_with(b"\n") {
                self.place = Place::Start;
            }
        }
    }

    fn begin(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        self.start.extend_from_slice(piece);
        let start = &self.start[..];
        if start.starts_with(DRAIN_START) {
            self.place = Place::LeftOut;
        } else if let Some(rest) = start.strip_prefix(UNKNOWN_ID_START) {
            out.extend_from_slice(ERROR_START);
            out.extend_from_slice(rest);
            self.place = Place::Rest;
        } else if DRAIN_START.starts_with(start) || UNKNOWN_ID_START.starts_with(start) {
            return;
        } else {
            out.extend_from_slice(start);
            self.place = Place::Rest;
        }
        self.start.clear();
    }
}

/// A line from its first byte that is no white space.
fn without_indent(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|byte| !b" \t\r".contains(byte));
    start.and_then(|start| line.get(start..)).unwrap_or_default()
}

/// The id is unknown, and MCP has no id that is null: it is absent.
fn write_error(error: &RpcError, out: &mut Vec<u8>) {
    out.extend_from_slice(ERROR_START);
    error.write(out);
    out.extend_from_slice(b"}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 40;

    /// What becomes of an input: the documents, and the codes of the errors. It is received whole,
    /// split in two at every byte, and byte by byte.
    fn lines(input: &[u8]) -> (String, Vec<i64>) {
        let limits = Limits { body_bytes_max: MAX, nesting_max: 3, ..Limits::default() };
        let run = |pieces: &[&[u8]]| {
            let (mut lines, mut documents, mut errors) = (Lines::new(&limits), vec![], vec![]);
            for piece in pieces {
                lines.receive(piece, &mut documents, &mut errors);
            }
            lines.finish(&mut documents, &mut errors);
            assert!(lines.partial.is_empty() && !lines.is_refused);
            (String::from_utf8(documents).unwrap(), String::from_utf8(errors).unwrap())
        };
        let whole = run(&[input]);
        for split in 0..input.len() {
            let (head, tail) = input.split_at(split);
            assert_eq!(run(&[head, tail]), whole, "split at {split}");
        }
        assert_eq!(run(&input.chunks(1).collect::<Vec<_>>()), whole);
        let code = |line: &str| {
            let code = line.strip_prefix(r#"{"jsonrpc":"2.0","error":{"code":"#).unwrap();
            code.split(',').next().unwrap().parse().unwrap()
        };
        (whole.0, whole.1.lines().map(code).collect())
    }

    #[test]
    fn each_line_is_a_document_or_an_error() {
        let both =
            lines(b"\r\n {\"a\":1} \r\nno JSON\n\n[2]\n{\"a\":\n1}\n{}{}\n3\n\t[\"\xff\"]\n{}");
        assert_eq!(both.0, "{\"a\":1} \n[2]\n{}\n");
        assert_eq!(both.1, [-32700; 6]);
    }

    #[test]
    fn a_line_without_its_end_is_the_last_one() {
        assert_eq!(lines(b"{}\n[1]"), ("{}\n[1]\n".to_owned(), vec![]));
        assert_eq!(lines(b"{}\n[1"), ("{}\n".to_owned(), vec![-32700]));
        assert_eq!(lines(b""), (String::new(), vec![]));
    }

    #[test]
    fn limits_are_those_of_the_connection() {
        let text = |len: usize| format!("[\"{}\"]", "x".repeat(len - 4));
        let long = text(MAX);
        let padded = format!("  {long}\r\n{long}\n");
        assert_eq!(lines(padded.as_bytes()), (format!("{long}\n{long}\n"), vec![]));
        let mixed = format!("{}\n{}\n[]\n{}", text(MAX + 1), text(3 * MAX), text(MAX + 1));
        assert_eq!(lines(mixed.as_bytes()), ("[]\n".to_owned(), vec![-32600; 3]));
        assert_eq!(lines(b"[[[]]]\n[[[[]]]]"), ("[[[]]]\n".to_owned(), vec![-32700]));
    }

    #[test]
    fn white_space_before_a_document_takes_no_memory() {
        let mut lines = Lines::new(&Limits::default());
        lines.receive(&[b' '; 100], &mut vec![], &mut vec![]);
        assert!(lines.partial.is_empty());
    }

    #[test]
    fn replies_are_those_of_mcp() {
        let sent = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\"}\n\
            {\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{}}\n\
            {\"jsonrpc\":\"2.0\",\"method\":\"$/drain\"}\n\
            {\"jsonrpc\":\"2.0\",\"method\":\"$/drain\",\"params\":{}}\n\
            {\"jsonrpc\":\"2.0\",\"method\":\"$/drains\"}\n[]\n{\n";
        let expected = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\"}\n\
            {\"jsonrpc\":\"2.0\",\"error\":{}}\n\
            {\"jsonrpc\":\"2.0\",\"method\":\"$/drains\"}\n[]\n{\n";
        let run = |pieces: &[&[u8]]| {
            let (mut lines, mut out) = (ReplyLines::default(), Vec::new());
            pieces.iter().for_each(|piece| lines.adapt(piece, &mut out));
            out
        };
        for split in 0..=sent.len() {
            let (head, tail) = sent.split_at(split);
            assert_eq!(run(&[head, tail]), expected, "split at {split}");
        }
        assert_eq!(run(&sent.chunks(1).collect::<Vec<_>>()), expected);
    }
}
