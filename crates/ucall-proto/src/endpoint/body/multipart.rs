//! Bodies of several parts, as forms send them: `multipart/form-data` (RFC 7578).

use memchr::memmem;

use super::media::without_parameters;
use crate::endpoint::Refusal;

/// The headers of one field, all together.
const HEADERS_BYTES_MAX: usize = 4 << 10;
/// RFC 2046, section 5.1.1.
const BOUNDARY_BYTES_MAX: usize = 70;

/// A field of a form.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) name: String,
    pub(crate) is_file: bool,
    /// The value of its `Content-Type`; empty without one.
    pub(crate) content_type: &'a [u8],
    pub(crate) bytes: &'a [u8],
}

/// The fields of a body whose `Content-Type` is this one.
///
/// # Errors
/// It is invalid, or has more than `fields_max`.
pub(crate) fn read<'a>(
    content_type: &[u8],
    body: &'a [u8],
    fields_max: usize,
) -> Result<Vec<Field<'a>>, Refusal> {
    let boundary = parameter(content_type, b"boundary");
    let boundary = boundary.filter(|it| (1..=BOUNDARY_BYTES_MAX).contains(&it.len()));
    let boundary = boundary.ok_or_else(|| invalid("Content-Type has no valid boundary"))?;
    let delimiter = [b"\r\n--", &boundary[..]].concat();
    let finder = memmem::Finder::new(&delimiter);
    // The first line has no end of a line before it, unless text precedes it.
    let mut rest = match body.strip_prefix(delimiter.get(2..).unwrap_or_default()) {
        Some(rest) => rest,
        None => after(body, finder.find(body), delimiter.len())?,
    };
    let mut fields = Vec::new();
    loop {
        if rest.starts_with(b"--") {
            return Ok(fields);
        }
        // White space may follow a boundary.
        let spaces = rest.iter().take_while(|byte| b" \t".contains(byte)).count();
        let line = rest.get(spaces..).unwrap_or_default();
        let field = line.strip_prefix(b"\r\n").ok_or_else(|| invalid("a boundary has no line"))?;
        if fields.len() == fields_max {
            return Err(invalid(&format!("more than {fields_max} fields (max_parts)")));
        }
        // A field without headers has its blank line at once.
        let head = field.get(..field.len().min(HEADERS_BYTES_MAX)).unwrap_or_default();
        let end = memmem::find(head, b"\r\n\r\n");
        let end = end.ok_or_else(|| invalid("the headers of a field have no end, or are long"))?;
        let (headers, content) = field.split_at_checked(end + 2).unwrap_or_default();
        // The blank line may be the beginning of the delimiter after an empty field.
        let content_end = finder.find(content).ok_or_else(|| invalid("a field has no end"))?;
        let bytes = content.get(2..content_end).unwrap_or_default();
        fields.push(read_field(headers, bytes)?);
        rest = after(content, Some(content_end), delimiter.len())?;
    }
}

fn after(text: &[u8], at: Option<usize>, len: usize) -> Result<&[u8], Refusal> {
    at.and_then(|at| text.get(at + len..)).ok_or_else(|| invalid("no boundary was found"))
}

fn read_field<'a>(headers: &'a [u8], bytes: &'a [u8]) -> Result<Field<'a>, Refusal> {
    let (mut disposition, mut content_type): (&[u8], &[u8]) = (b"", b"");
    for line in headers.split(|&byte| byte == b'\n') {
        let mut halves = line.splitn(2, |&byte| byte == b':');
        let name = halves.next().unwrap_or_default();
        let value = halves.next().unwrap_or_default().trim_ascii();
        if name.eq_ignore_ascii_case(b"Content-Disposition") {
            disposition = value;
        } else if name.eq_ignore_ascii_case(b"Content-Type") {
            content_type = value;
        }
    }
    if !without_parameters(disposition).eq_ignore_ascii_case(b"form-data") {
        return Err(invalid("a field has no Content-Disposition: form-data"));
    }
    let name = parameter(disposition, b"name").and_then(|name| String::from_utf8(name).ok());
    let name = name.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| invalid("a field has no name"))?;
    let is_file = parameter(disposition, b"filename").is_some();
    Ok(Field { name, is_file, content_type, bytes })
}

/// The parameter of a header's value, without its quotes.
fn parameter(value: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let mut rest = value.get(without_parameters(value).len()..)?;
    loop {
        rest = rest.trim_ascii_start().strip_prefix(b";")?.trim_ascii_start();
        let end = rest.iter().position(|byte| b"=;".contains(byte)).unwrap_or(rest.len());
        let (key, after) = rest.split_at(end);
        let is_wanted = key.trim_ascii().eq_ignore_ascii_case(name);
        let Some(after) = after.strip_prefix(b"=") else {
            rest = after;
            continue;
        };
        let (found, after) = match after.trim_ascii_start().strip_prefix(b"\"") {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = after.iter().position(|&byte| byte == b';').unwrap_or(after.len());
                let (found, after) = after.split_at(end);
                (found.trim_ascii().to_vec(), after)
            }
        };
        if is_wanted {
            return Some(found);
        }
        rest = after;
    }
}

/// A quoted text, and what follows it. Browsers write `%22` for a quotation mark, and no
/// backslashes but those of names; others write `\"`.
fn unquoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        rest = match rest {
            [b'"', after @ ..] => return Some((found, after)),
            [b'%', b'2', b'2', after @ ..] => {
                found.push(b'"');
                after
            }
            [b'\\', byte @ (b'"' | b'\\'), after @ ..] | [byte, after @ ..] => {
                found.push(*byte);
                after
            }
            [] => return None,
        };
    }
}

fn invalid(problem: &str) -> Refusal {
    Refusal::invalid(format!("multipart: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TYPE: &[u8] = b"multipart/form-data; charset=utf-8; boundary=\"b-1\"";

    fn fields(body: &[u8]) -> Result<Vec<Field<'_>>, Refusal> {
        read(TYPE, body, 3)
    }

    #[test]
    fn fields_have_names_types_and_bytes() {
        let body =
            b"preamble\r\n--b-1 \t\r\nContent-Disposition: form-data; name=\"a \\\"%22;b\"\r\n\r\n\
            x\r\n--b-2\r\n\r\n--b-1\r\ncontent-type: image/png\r\n\
            content-disposition: FORM-DATA; filename=\"x;name=y\"; name=file\r\n\r\n\
            \r\n--b-1--\r\nepilogue";
        let read = fields(body).expect("fields");
        let (first, second) = (&read[0], &read[1]);
        assert_eq!(
            (read.len(), &*first.name, first.bytes),
            (2, "a \"\";b", &b"x\r\n--b-2\r\n"[..])
        );
        assert_eq!(
            (&*second.name, second.content_type, second.bytes),
            ("file", &b"image/png"[..], &b""[..])
        );
        assert!(second.is_file && !first.is_file);
        assert_eq!(fields(b"--b-1--"), Ok(Vec::new()));
    }

    #[test]
    fn invalid_bodies_are_refused() {
        let disposition = "Content-Disposition: form-data; name=a\r\n\r\n";
        for body in [
            String::new(),
            "--b-1".to_owned(),
            "--b-1\r\n".to_owned(),
            format!("--b-1\r\n{disposition}x"),
            format!("--b-1\r\n{disposition}x\r\n--b-1"),
            format!("--b-1x\r\n{disposition}x\r\n--b-1--"),
            "--b-1\r\n\r\nx\r\n--b-1--".to_owned(),
            "--b-1\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b-1--".to_owned(),
            "--b-1\r\nContent-Disposition: form-data; name=\"a\r\n\r\nx\r\n--b-1--".to_owned(),
            "--b-1\r\nContent-Disposition: attachment; name=a\r\n\r\nx\r\n--b-1--".to_owned(),
            format!("--b-1\r\nX: {}\r\n{disposition}x\r\n--b-1--", "y".repeat(HEADERS_BYTES_MAX)),
            format!("{}--b-1--", format!("--b-1\r\n{disposition}x\r\n").repeat(4)),
        ] {
            assert!(fields(body.as_bytes()).is_err(), "{body}");
        }
        for content_type in ["multipart/form-data", "multipart/form-data; boundary=", "multipart/x"]
        {
            assert!(read(content_type.as_bytes(), b"----", 3).is_err(), "{content_type}");
        }
        let three = format!("{}--b-1--", format!("--b-1\r\n{disposition}x\r\n").repeat(3));
        assert_eq!(fields(three.as_bytes()).expect("fields").len(), 3);
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic(body: Vec<u8>) {
            let _ = fields(&body);
            let _ = fields(&[b"--b-1\r\n", &body[..], b"\r\n--b-1--"].concat());
            let _ = parameter(&body, b"name");
        }

        #[test]
        fn bytes_of_a_field_are_exact(content: Vec<u8>) {
            let head = b"--b-1\r\nContent-Disposition: form-data; name=a\r\n\r\n";
            let body = [head, &content[..], b"\r\n--b-1--\r\n"].concat();
            prop_assume!(memmem::find(&content, b"--b-1").is_none());
            let read = fields(&body).expect("a field");
            prop_assert_eq!(read[0].bytes, &content[..]);
        }
    }
}
