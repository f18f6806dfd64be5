//! Reads what a broker sends.
//!
//! | operation | line | bytes that follow |
//! |---|---|---|
//! | `MSG` | subject, subscription, reply subject or none, length | the payload, CRLF |
//! | `HMSG` | the same, with the length of the headers before the last | headers, payload, CRLF |
//! | `PING`, `PONG`, `INFO`, `+OK`, `-ERR` | any | none |

use std::fmt;

use memchr::memchr;

/// The longest line. That of `INFO` names all nodes of a cluster.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The headers of one message.
const HEADERS_BYTES_MAX: usize = 64 << 10;

/// What a broker has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    /// A message of a subscription.
    Message(Message<'a>),
    /// A message above the limit. Its headers and its payload, of `rest` bytes, follow.
    TooLong {
        /// The number of the subscription.
        subscription: u64,
        /// Where the reply goes.
        reply: Option<&'a [u8]>,
        /// The bytes to skip.
        rest: usize,
    },
    /// Asks for a `PONG`.
    Ping,
    /// Answers a `PING`.
    Pong,
    /// Information, an acknowledgement, or an error, after which the broker closes if it is fatal.
    Other,
}

/// A message of a subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// The number of the subscription.
    pub subscription: u64,
    /// The subject that the reply goes to.
    pub reply: Option<&'a [u8]>,
    /// The headers as they were sent, from their version line to their blank line.
    pub headers: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

/// What input starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed<'a> {
    /// An operation of this length. That of [`Operation::TooLong`] is without what is to be
    /// skipped.
    Complete(Operation<'a>, usize),
    /// The begin of one that has at least this many bytes.
    Incomplete(usize),
}

/// An error of the broker, after which the connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NatsError {
    /// A line without an end.
    LineTooLong,
    /// An operation that a client does not get.
    UnknownOperation,
    /// A message whose line has too few or too many parts, or no numbers where they must be.
    LineMalformed,
    /// Headers that are longer than the message, or too long.
    HeadersTooLong,
    /// A payload that does not end where its line says.
    PayloadUnterminated,
}

impl fmt::Display for NatsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::LineTooLong => "expected the end of a line",
            Self::UnknownOperation => "expected an operation of the NATS protocol",
            Self::LineMalformed => "expected a subject, a subscription and a length",
            Self::HeadersTooLong => "expected shorter headers",
            Self::PayloadUnterminated => "expected the end of a payload",
        })
    }
}

/// Parses the operation that `input` starts with. A message with more than `message_bytes_max`
/// bytes of payload is not read.
///
/// # Errors
/// The input breaks the protocol. More bytes do not change that.
pub fn parse(input: &[u8], message_bytes_max: usize) -> Result<Parsed<'_>, NatsError> {
    let window = input.get(..LINE_BYTES_MAX).unwrap_or(input);
    let Some(end) = memchr(b'\n', window) else {
        return match window.len() < LINE_BYTES_MAX {
            true => Ok(Parsed::Incomplete(input.len() + 1)),
            false => Err(NatsError::LineTooLong),
        };
    };
    let (line, rest) = input.split_at(end + 1);
    let text = line.strip_suffix(b"\r\n").ok_or(NatsError::LineMalformed)?;
    let (name, parts) = text.split_at(text.iter().position(is_space).unwrap_or(text.len()));
    match name {
        b"MSG" => message(Line::parse(parts, false)?, rest, line.len(), message_bytes_max),
        b"HMSG" => message(Line::parse(parts, true)?, rest, line.len(), message_bytes_max),
        b"PING" => Ok(Parsed::Complete(Operation::Ping, line.len())),
        b"PONG" => Ok(Parsed::Complete(Operation::Pong, line.len())),
        b"INFO" | b"+OK" | b"-ERR" => Ok(Parsed::Complete(Operation::Other, line.len())),
        _ => Err(NatsError::UnknownOperation),
    }
}

fn is_space(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The line of a message.
struct Line<'a> {
    subscription: u64,
    reply: Option<&'a [u8]>,
    headers_bytes: usize,
    /// Of headers and payload.
    total_bytes: usize,
}

impl<'a> Line<'a> {
    fn parse(parts: &'a [u8], has_headers: bool) -> Result<Self, NatsError> {
        let mut found = [&[][..]; 5];
        let mut count = 0;
        for part in parts.split(is_space).filter(|part| !part.is_empty()) {
            *found.get_mut(count).ok_or(NatsError::LineMalformed)? = part;
            count += 1;
        }
        let [_subject, subscription, third, fourth, fifth] = found;
        let (reply, headers, total) = match (count, has_headers) {
            (3, false) => (None, None, third),
            (4, false) => (Some(third), None, fourth),
            (4, true) => (None, Some(third), fourth),
            (5, true) => (Some(third), Some(fourth), fifth),
            _ => return Err(NatsError::LineMalformed),
        };
        let headers = headers.map_or(Ok(0), decimal)?;
        let (subscription, total) = (decimal(subscription)?, decimal(total)?);
        if headers > total || headers > HEADERS_BYTES_MAX as u64 {
            return Err(NatsError::HeadersTooLong);
        }
        let (headers_bytes, total_bytes) = (headers as usize, total as usize);
        Ok(Self { subscription, reply, headers_bytes, total_bytes })
    }
}

/// At most nine digits, so that sums of lengths cannot overflow.
fn decimal(text: &[u8]) -> Result<u64, NatsError> {
    if text.is_empty() || text.len() > 9 || !text.iter().all(u8::is_ascii_digit) {
        return Err(NatsError::LineMalformed);
    }
    Ok(text.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0')))
}

fn message<'a>(
    line: Line<'a>,
    rest: &'a [u8],
    line_bytes: usize,
    message_bytes_max: usize,
) -> Result<Parsed<'a>, NatsError> {
    let Line { subscription, reply, headers_bytes, total_bytes } = line;
    if total_bytes - headers_bytes > message_bytes_max {
        let operation = Operation::TooLong { subscription, reply, rest: total_bytes + 2 };
        return Ok(Parsed::Complete(operation, line_bytes));
    }
    let Some((content, after)) = rest.split_at_checked(total_bytes) else {
        return Ok(Parsed::Incomplete(line_bytes + total_bytes + 2));
    };
    match after {
        [b'\r', b'\n', ..] => {
            let (headers, payload) = content.split_at(headers_bytes);
            let message = Message { subscription, reply, headers, payload };
            Ok(Parsed::Complete(Operation::Message(message), line_bytes + total_bytes + 2))
        }
        // Also if the one byte is wrong: the verdict must not depend on how bytes are split.
        [] | [_] => Ok(Parsed::Incomplete(line_bytes + total_bytes + 2)),
        _ => Err(NatsError::PayloadUnterminated),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(input: &[u8]) -> (Operation<'_>, usize) {
        match parse(input, 16) {
            Ok(Parsed::Complete(operation, len)) => (operation, len),
            other => panic!("{other:?} of {}", input.escape_ascii()),
        }
    }

    const HEADED: &[u8] = b"HMSG a.b 7 _INBOX.x 20 23\r\nNATS/1.0\r\nX: abc\r\n\r\n[1]\r\n";

    #[test]
    fn messages_have_their_parts() {
        let expected =
            Message { subscription: 3, reply: Some(b"_INBOX.1"), headers: b"", payload: b"[1,2]" };
        let input = b"MSG models.sum 3 _INBOX.1 5\r\n[1,2]\r\nPING\r\n";
        assert_eq!(complete(input), (Operation::Message(expected), input.len() - 6));
        let (Operation::Message(message), _) = complete(b"MSG a\t12   0\r\n\r\n") else { panic!() };
        assert_eq!((message.subscription, message.reply, message.payload), (12, None, &b""[..]));
        let (Operation::Message(message), len) = complete(HEADED) else { panic!() };
        assert_eq!(message.headers, b"NATS/1.0\r\nX: abc\r\n\r\n");
        assert_eq!((message.payload, len), (&b"[1]"[..], HEADED.len()));
        let (Operation::Message(message), _) = complete(b"HMSG a 1 2 2\r\n\r\n\r\n") else {
            panic!()
        };
        assert_eq!((message.reply, message.payload), (None, &b""[..]));
    }

    #[test]
    fn other_operations_are_lines() {
        assert_eq!(complete(b"PING\r\n"), (Operation::Ping, 6));
        assert_eq!(complete(b"PONG\r\nMSG"), (Operation::Pong, 6));
        for line in ["+OK\r\n", "-ERR 'Slow Consumer'\r\n", "INFO {\"a\":1}\r\n"] {
            assert_eq!(complete(line.as_bytes()), (Operation::Other, line.len()));
        }
    }

    #[test]
    fn input_that_is_cut_anywhere_needs_more_bytes() {
        for whole in [HEADED, b"MSG a 1 b 3\r\nabc\r\n", b"-ERR 'x'\r\n"] {
            for len in 0..whole.len() {
                let Ok(Parsed::Incomplete(needed)) = parse(&whole[..len], 16) else {
                    panic!("{len}")
                };
                assert!(len < needed && needed <= whole.len(), "{len} {needed}");
            }
        }
    }

    #[test]
    fn a_payload_above_the_limit_is_not_read() {
        let (operation, len) = complete(b"MSG a 1 b 17\r\n");
        let expected = Operation::TooLong { subscription: 1, reply: Some(b"b"), rest: 19 };
        assert_eq!((operation, len), (expected, 14));
        let at_limit = parse(b"HMSG a 1 b 4 20\r\n", 16);
        assert_eq!(at_limit, Ok(Parsed::Incomplete(17 + 20 + 2)));
    }

    #[test]
    fn what_breaks_the_protocol_is_an_error() {
        for (input, error) in [
            (&b"GET / HTTP/1.1\r\n"[..], NatsError::UnknownOperation),
            (b"\r\n", NatsError::UnknownOperation),
            (b"PING\n", NatsError::LineMalformed),
            (b"MSG a 1\r\n", NatsError::LineMalformed),
            (b"MSG a 1 b c 3\r\n", NatsError::LineMalformed),
            (b"MSG a 1 -3\r\n", NatsError::LineMalformed),
            (b"MSG a x 3\r\n", NatsError::LineMalformed),
            (b"MSG a 1 1000000000\r\n", NatsError::LineMalformed),
            (b"HMSG a 1 3\r\n", NatsError::LineMalformed),
            (b"HMSG a 1 b c 3 3\r\n", NatsError::LineMalformed),
            (b"HMSG a 1 4 3\r\n", NatsError::HeadersTooLong),
            (b"HMSG a 1 65537 65538\r\n", NatsError::HeadersTooLong),
            (b"MSG a 1 1\r\nabc", NatsError::PayloadUnterminated),
            (b"MSG a 1 1\r\na\rb", NatsError::PayloadUnterminated),
        ] {
            assert_eq!(parse(input, 16), Err(error), "{}", input.escape_ascii());
        }
        let endless = vec![b'x'; LINE_BYTES_MAX];
        assert_eq!(parse(&endless, 16), Err(NatsError::LineTooLong));
        assert_eq!(parse(&endless[1..], 16), Ok(Parsed::Incomplete(LINE_BYTES_MAX)));
    }
}
