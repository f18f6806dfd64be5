//! Percent-encoding in paths and queries (RFC 3986, section 2.1).

/// The bytes that a text stands for; `None` of a `%` without two hexadecimal digits.
#[must_use]
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
        decoded.push(u8::try_from(digit(0)? * 16 + digit(1)?).ok()?);
        rest = after;
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_digits_follow_each_percent_sign() {
        assert_eq!(decode(b"a%2Fb%c3%A9+").as_deref(), Some("a/b\u{e9}+".as_bytes()));
        for text in ["%", "%2", "a%2", "%+1", "%g0", "%%20"] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }
}
