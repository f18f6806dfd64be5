//! The header of a `.npy` file, both ways.
//!
//! A header is a magic, a version, a length, and the literal of a Python dict of three members. The
//! parser takes what NumPy and other writers write: strings without escapes, tuples of integers,
//! `True` and `False`. It evaluates nothing. Nothing is allocated by what a shape claims before
//! that is compared with the bytes that are there.

use std::fmt::{self, Write};

use super::{DIMENSIONS_MAX, DType, Tensor};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// NumPy's own limit of the text.
const TEXT_BYTES_MAX: usize = 10_000;
/// Items begin at a multiple of this.
const ALIGNMENT: usize = 64;
/// NumPy leaves room for so many digits of the side that grows when items are appended.
const GROWING_SIDE_DIGITS: usize = 21;
/// What is quoted of a header.
const QUOTED_CHARACTERS_MAX: usize = 200;

/// The bytes from which [`header_bytes`] knows the length of any header.
pub const START_BYTES: usize = 12;

/// Why bytes are no array that can be taken.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NpyError {
    /// There is no header, or it is none of a known version. Has the reason.
    Unreadable(String),
    /// The items are neither bool nor numbers. Has the name of their dtype.
    UnsupportedDType(String),
    /// A side is no length. Has the shape.
    Shape(String),
    /// The array has too many dimensions, or exceeds the address space. Has the reason.
    TooLarge(String),
    /// The number of bytes is not that of the items.
    Length {
        /// The items that the shape claims.
        items: usize,
        /// The bytes of one.
        item_bytes: u8,
        /// The bytes that are there.
        have: usize,
    },
}

impl fmt::Display for NpyError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(reason) => write!(out, "no .npy that can be read: {reason}"),
            Self::UnsupportedDType(name) => {
                write!(out, "an array of dtype {name} cannot be sent: only bool and numbers can")
            }
            Self::Shape(shape) => write!(out, "the .npy claims the shape {shape}"),
            Self::TooLarge(reason) => write!(out, "the .npy has an invalid shape: {reason}"),
            Self::Length { items, item_bytes, have } => {
                let claims = format_args!("{items} items of {item_bytes} bytes");
                write!(out, "the .npy claims {claims}, but has {have} bytes")
            }
        }
    }
}

impl std::error::Error for NpyError {}

/// Parses a whole file: what it has, and where its items are.
///
/// # Errors
/// It is no `.npy` of bool or numbers, or its length is not that of its items.
pub fn split(file: &[u8]) -> Result<(Tensor, &[u8]), NpyError> {
    let header_bytes = header_bytes(file)?;
    let (header, items) = file.split_at_checked(header_bytes).ok_or_else(cut)?;
    let tensor = parse(header)?;
    check_length(&tensor, items.len())?;
    Ok((tensor, items))
}

/// The length of the whole header of a file that starts with `start`: [`START_BYTES`], or all if it
/// has fewer.
///
/// # Errors
/// It is no `.npy` of a known version, or its header is too long.
pub fn header_bytes(start: &[u8]) -> Result<usize, NpyError> {
    let Some((magic, rest)) = start.split_first_chunk::<6>() else {
        return Err(unreadable("it has no header"));
    };
    if magic != MAGIC {
        return Err(unreadable("it does not start with the magic of one"));
    }
    let (text_bytes, prefix_bytes) = match rest {
        [1, 0, length @ ..] => match length.first_chunk() {
            Some(length) => (usize::from(u16::from_le_bytes(*length)), 10),
            None => return Err(cut()),
        },
        [2, 0, length @ ..] => match length.first_chunk() {
            Some(length) => (u32::from_le_bytes(*length) as usize, 12),
            None => return Err(cut()),
        },
        [major, minor, ..] => return Err(unreadable(format!("version {major}.{minor}"))),
        _ => return Err(cut()),
    };
    match text_bytes > TEXT_BYTES_MAX {
        true => Err(unreadable(format!(
            "its header has {text_bytes} bytes, more than {TEXT_BYTES_MAX}"
        ))),
        false => Ok(prefix_bytes + text_bytes),
    }
}

/// Parses a header of the length that [`header_bytes`] tells.
///
/// # Errors
/// It is not that of an array of bool or numbers.
pub fn parse(header: &[u8]) -> Result<Tensor, NpyError> {
    let prefix_bytes = if header.get(6) == Some(&1) { 10 } else { 12 };
    let text = header.get(prefix_bytes..).ok_or_else(cut)?;
    Parser { text, position: 0 }.header()
}

/// Compares the bytes of the items with what the shape claims.
///
/// # Errors
/// They differ, or the shape is that of no array.
pub fn check_length(tensor: &Tensor, have: usize) -> Result<(), NpyError> {
    let Some(bytes) = tensor.bytes() else {
        return Err(NpyError::TooLarge("it exceeds the address space".to_owned()));
    };
    let item_bytes = tensor.dtype.item_bytes;
    match bytes == have {
        true => Ok(()),
        false => {
            let items = bytes / usize::from(item_bytes.max(1));
            Err(NpyError::Length { items, item_bytes, have })
        }
    }
}

/// Appends the header of a file, byte for byte as NumPy writes it.
pub fn write_header(out: &mut Vec<u8>, tensor: &Tensor) {
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0, 0, 0]);
    let prefix_bytes = MAGIC.len() + 4;
    let start = out.len();
    let Tensor { dtype, shape, is_fortran } = tensor;
    let order = if *is_fortran { "True" } else { "False" };
    let mut text = String::with_capacity(128);
    let _ = write!(text, "{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': (");
    for (index, side) in shape.iter().enumerate() {
        let separator = if index > 0 { ", " } else { "" };
        text.push_str(separator);
        text.push_str(itoa::Buffer::new().format(*side));
    }
    text.push_str(if shape.len() == 1 { ",), }" } else { "), }" });
    out.extend_from_slice(text.as_bytes());
    let growing = if *is_fortran { shape.last() } else { shape.first() };
    let room = growing.map_or(0, |side| GROWING_SIDE_DIGITS - digits(*side));
    let bytes = prefix_bytes + text.len() + room + 1;
    let padding = ALIGNMENT - bytes % ALIGNMENT;
    out.resize(out.len() + room + padding, b' ');
    out.push(b'\n');
    let text_bytes = ((out.len() - start) as u16).to_le_bytes();
    if let Some(length) = out.get_mut(start - 2..start) {
        length.copy_from_slice(&text_bytes);
    }
}

fn digits(side: usize) -> usize {
    side.checked_ilog10().map_or(1, |log| log as usize + 1)
}

#[cold]
fn unreadable(reason: impl Into<String>) -> NpyError {
    NpyError::Unreadable(reason.into())
}

#[cold]
fn cut() -> NpyError {
    unreadable("its header is cut off")
}

/// Reads the text of a header.
struct Parser<'a> {
    text: &'a [u8],
    position: usize,
}

/// A side of a shape as it is written.
enum Side {
    Length(usize),
    /// A bool, a negative number, or one beyond the address space.
    Invalid,
}

impl<'a> Parser<'a> {
    fn header(mut self) -> Result<Tensor, NpyError> {
        let (mut descr, mut is_fortran, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.take(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            let is_first = match key {
                b"descr" => descr.replace(self.descr()?).is_none(),
                b"fortran_order" => is_fortran.replace(self.boolean()?).is_none(),
                b"shape" => shape.replace(self.shape()?).is_none(),
                _ => return Err(unreadable("its header has another key")),
            };
            if !is_first {
                return Err(unreadable("its header has a key twice"));
            }
            if !self.take(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        if self.peek().is_some() {
            return Err(self.unexpected());
        }
        let (Some(descr), Some(is_fortran), Some(shape)) = (descr, is_fortran, shape) else {
            return Err(unreadable("its header lacks a key"));
        };
        Ok(Tensor { dtype: descr?, shape: shape?, is_fortran })
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = self.text.get(self.position..)?;
        let blank = rest.iter().take_while(|it| matches!(it, b' ' | b'\n' | b'\t' | b'\r')).count();
        self.position += blank;
        rest.get(blank).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.position += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, byte: u8) -> Result<(), NpyError> {
        match self.take(byte) {
            true => Ok(()),
            false => Err(self.unexpected()),
        }
    }

    fn skip_word(&mut self, word: &[u8]) -> bool {
        self.peek();
        let rest = self.text.get(self.position..).unwrap_or_default();
        let after = rest.get(word.len()).copied().unwrap_or(b' ');
        let is_next = rest.starts_with(word) && !after.is_ascii_alphanumeric();
        self.position += if is_next { word.len() } else { 0 };
        is_next
    }

    #[cold]
    fn unexpected(&self) -> NpyError {
        let rest = self.text.get(self.position..).unwrap_or_default();
        unreadable(match rest.is_empty() {
            true => "its header ends early".to_owned(),
            false => format!("its header has {:?} at byte {}", excerpt(rest), self.position),
        })
    }

    /// A string without escapes.
    fn string(&mut self) -> Result<&'a [u8], NpyError> {
        let quote = match self.peek() {
            Some(quote @ (b'\'' | b'"')) => quote,
            _ => return Err(self.unexpected()),
        };
        let text = self.text.get(self.position + 1..).unwrap_or_default();
        let end = text.iter().position(|it| *it == quote || matches!(it, b'\\' | b'\n'));
        match end.and_then(|end| text.split_at_checked(end)) {
            Some((string, [end, ..])) if *end == quote => {
                self.position += string.len() + 2;
                Ok(string)
            }
            _ => Err(self.unexpected()),
        }
    }

    fn boolean(&mut self) -> Result<bool, NpyError> {
        match (self.skip_word(b"True"), self.skip_word(b"False")) {
            (true, false) => Ok(true),
            (false, true) => Ok(false),
            _ => Err(self.unexpected()),
        }
    }

    /// The dtype, or the error that it is; and an outer error if it cannot be read at all.
    fn descr(&mut self) -> Result<Result<DType, NpyError>, NpyError> {
        if matches!(self.peek(), Some(b'[' | b'(')) {
            return Ok(Err(NpyError::UnsupportedDType(excerpt(self.brackets()?))));
        }
        let text = self.string()?;
        let name = std::str::from_utf8(text).unwrap_or_default();
        if let Some(dtype) = DType::of_descr(name) {
            return Ok(Ok(dtype));
        }
        let bare = name.trim_start_matches(['<', '>', '|', '=']);
        let is_number = |text: &str| text.bytes().all(|it| it.is_ascii_digit());
        let named = match bare.as_bytes() {
            b"O" | b"O8" | b"O4" => "object".to_owned(),
            [b'M', b'8', unit @ ..] => format!("datetime64{}", excerpt(unit)),
            [b'm', b'8', unit @ ..] => format!("timedelta64{}", excerpt(unit)),
            [b'S' | b'a' | b'U' | b'V', ..] if bare.get(1..).is_some_and(is_number) => {
                excerpt(text)
            }
            _ => return Ok(Err(unreadable(format!("{:?} is no dtype", excerpt(text))))),
        };
        Ok(Err(NpyError::UnsupportedDType(named)))
    }

    /// The text of a list or a tuple.
    fn brackets(&mut self) -> Result<&'a [u8], NpyError> {
        let (start, mut depth) = (self.position, 0_usize);
        loop {
            match self.peek() {
                Some(b'[' | b'(') => depth += 1,
                Some(b']' | b')') => depth -= 1,
                Some(b'\'' | b'"') => {
                    self.string()?;
                    continue;
                }
                Some(_) => {}
                None => return Err(self.unexpected()),
            }
            self.position += 1;
            if depth == 0 {
                return Ok(self.text.get(start..self.position).unwrap_or_default());
            }
        }
    }

    /// The shape, or the error that it is; and an outer error if it cannot be read at all.
    fn shape(&mut self) -> Result<Result<Vec<usize>, NpyError>, NpyError> {
        self.expect(b'(')?;
        let (start, mut sides, mut count) = (self.position - 1, Vec::new(), 0);
        let mut ends_with_comma = true;
        while !self.take(b')') {
            if !ends_with_comma {
                return Err(self.unexpected());
            }
            count += 1;
            if let Side::Length(length) = self.side()? {
                sides.push(length);
            }
            ends_with_comma = self.take(b',');
        }
        let text = self.text.get(start..self.position).unwrap_or_default();
        if count == 1 && !ends_with_comma {
            return Err(unreadable(format!("its shape is {}, no tuple", excerpt(text))));
        }
        if sides.len() < count {
            return Ok(Err(NpyError::Shape(excerpt(text))));
        }
        if count > DIMENSIONS_MAX {
            let reason = format!("{count} dimensions, more than {DIMENSIONS_MAX}");
            return Ok(Err(NpyError::TooLarge(reason)));
        }
        Ok(Ok(sides))
    }

    fn side(&mut self) -> Result<Side, NpyError> {
        if self.skip_word(b"True") || self.skip_word(b"False") {
            return Ok(Side::Invalid);
        }
        let is_negative = self.take(b'-');
        self.peek();
        let rest = self.text.get(self.position..).unwrap_or_default();
        let count = rest.iter().take_while(|it| it.is_ascii_digit()).count();
        let digits = rest.get(..count).unwrap_or_default();
        if digits.is_empty() || digits.starts_with(b"0") && count > 1 {
            return Err(self.unexpected());
        }
        self.position += count;
        // As Python 2 wrote it.
        let _ = self.skip_word(b"L");
        let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        Ok(match length {
            Some(length) if !is_negative || length == 0 => Side::Length(length),
            _ => Side::Invalid,
        })
    }
}

/// A text for a message.
fn excerpt(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    match text.char_indices().nth(QUOTED_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    fn tensor(dtype: &str, shape: &[usize], is_fortran: bool) -> Tensor {
        Tensor { dtype: DType::of_descr(dtype).unwrap(), shape: shape.to_vec(), is_fortran }
    }

    fn file(version: u8, text: &str, items: &[u8]) -> Vec<u8> {
        let mut file = [MAGIC.as_slice(), &[version, 0]].concat();
        match version {
            1 => file.extend_from_slice(&(text.len() as u16).to_le_bytes()),
            _ => file.extend_from_slice(&(text.len() as u32).to_le_bytes()),
        }
        [&file, text.as_bytes(), items].concat()
    }

    fn described(descr: &str, shape: &str) -> String {
        format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n")
    }

    fn error(text: &str, items: usize) -> String {
        split(&file(1, text, &vec![0; items])).unwrap_err().to_string()
    }

    #[test]
    fn headers_are_written_as_numpy_does() {
        let written = |tensor: &Tensor| {
            let mut out = b"x".to_vec();
            write_header(&mut out, tensor);
            String::from_utf8_lossy(out.get(11..).unwrap()).into_owned()
        };
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (64,), }";
        let header = written(&tensor("<f4", &[64], false));
        assert_eq!(header, format!("{text:117}\n"));
        let text = "{'descr': '|b1', 'fortran_order': True, 'shape': (2, 30), }";
        assert_eq!(written(&tensor("|b1", &[2, 30], true)), format!("{text:117}\n"));
        let text = "{'descr': '>c16', 'fortran_order': False, 'shape': (), }";
        assert_eq!(written(&tensor(">c16", &[], false)), format!("{text:117}\n"));
        // A header that would fit exactly gets a whole block of spaces.
        for sides in 0..DIMENSIONS_MAX {
            let header = written(&tensor("<i8", &vec![usize::MAX; sides], false));
            assert_eq!((header.len() + 10) % ALIGNMENT, 0, "{sides}");
            assert!(header.ends_with(" \n"), "{sides}");
        }
    }

    #[test]
    fn headers_round_trip() {
        for dtype in ["|b1", "<i2", ">u8", "<f2", ">f16", "<c8", "bfloat16"] {
            for shape in [&[][..], &[0], &[7], &[3, 0, 2], &[2, 3, 4], &[1; DIMENSIONS_MAX]] {
                for is_fortran in [false, true] {
                    let tensor = tensor(dtype, shape, is_fortran);
                    let mut file = Vec::new();
                    write_header(&mut file, &tensor);
                    let start = file.len();
                    assert_eq!((start % ALIGNMENT, header_bytes(&file)), (0, Ok(start)));
                    file.resize(start + tensor.bytes().unwrap(), 1);
                    let items = file.get(start..).unwrap();
                    assert_eq!(split(&file), Ok((tensor, items)));
                }
            }
        }
    }

    #[test]
    fn what_others_write_is_read() {
        let expected = tensor("<f8", &[2, 1], true);
        for text in [
            "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 1), }",
            "{'descr':'<f8','fortran_order':True,'shape':(2,1)}",
            "{\"shape\": (2, 1,), \"fortran_order\": True, \"descr\": \"<f8\"}  \n",
            "  {'shape': ( 2 ,\n\t1 ) ,'descr' : '<f8' , 'fortran_order' : True , } ",
            "{'descr': '<f8', 'fortran_order': True, 'shape': (2L, 1L)}",
        ] {
            for version in [1, 2] {
                assert_eq!(split(&file(version, text, &[0; 16])).unwrap().0, expected, "{text}");
            }
        }
        let native = split(&file(1, &described("'f8'", "(1,)"), &[0; 8])).unwrap().0;
        assert_eq!(native.dtype, DType::native(Kind::Float, 8));
    }

    #[test]
    fn the_length_must_be_that_of_the_items() {
        let claims = |items: u32, have: usize| {
            format!("the .npy claims {items} items of 8 bytes, but has {have} bytes")
        };
        assert_eq!(error(&described("'<f8'", "(2,)"), 15), claims(2, 15));
        assert_eq!(error(&described("'<f8'", "(2,)"), 17), claims(2, 17));
        assert_eq!(error(&described("'<f8'", "(0,)"), 1), claims(0, 1));
        let exceeds = "the .npy has an invalid shape: it exceeds the address space";
        for shape in ["(4294967296, 4294967296)", "(0, 4611686018427387904, 2)"] {
            assert_eq!(error(&described("'<f8'", shape), 0), exceeds);
        }
        let deep = format!("({})", "1,".repeat(DIMENSIONS_MAX + 1));
        let too_deep = "the .npy has an invalid shape: 65 dimensions, more than 64";
        assert_eq!(error(&described("'<f8'", &deep), 8), too_deep);
    }

    #[test]
    fn sides_must_be_lengths() {
        for shape in ["(-1,)", "(True,)", "(1, False)", "(18446744073709551616, 0)", "(-1, -1)"] {
            let expected = format!("the .npy claims the shape {shape}");
            assert_eq!(error(&described("'<f8'", shape), 8), expected);
        }
    }

    #[test]
    fn other_dtypes_are_named() {
        for (descr, name) in [
            ("'|O'", "object"),
            ("'<U2'", "<U2"),
            ("'|S5'", "|S5"),
            ("'|V8'", "|V8"),
            ("'<M8[ns]'", "datetime64[ns]"),
            ("'<m8[s]'", "timedelta64[s]"),
            ("[('a', '<i4'), ('b]', '<f8', (2,))]", "[('a', '<i4'), ('b]', '<f8', (2,))]"),
            ("('<f8', (1,))", "('<f8', (1,))"),
        ] {
            let expected =
                format!("an array of dtype {name} cannot be sent: only bool and numbers can");
            assert_eq!(error(&described(descr, "(1,)"), 8), expected);
        }
        assert_eq!(
            error(&described("'nonsense'", "(1,)"), 8),
            "no .npy that can be read: \"nonsense\" is no dtype"
        );
    }

    #[test]
    fn other_texts_are_no_headers() {
        let deep = format!("{{'descr': {}", "(".repeat(9_000));
        let shape = |text: &str| described("'<f8'", text);
        let descr = |text: &str| described(text, "(1,)");
        for text in [
            "",
            "{",
            "{}",
            "[1]",
            "{'descr': '<f8'}",
            "__import__('os').abort()",
            &deep,
            &shape("1"),
            &shape("(1)"),
            &shape("[1]"),
            &shape("(,)"),
            &shape("(1 2)"),
            &shape("(1,,)"),
            &shape("(01,)"),
            &shape("(1.0,)"),
            &shape("(1_0,)"),
            &shape("(+1,)"),
            &shape("(1x,)"),
            &shape("(((1,),),)"),
            &shape("(None,)"),
            &shape("(Truex,)"),
            &descr("'<f8"),
            &descr("'<\\x66"),
            &descr("<f8"),
            &descr("None"),
            &descr("[("),
            &descr("'<f8', 'descr': '<f8'"),
            &descr("'<f8', 'other': 1"),
            &descr("[)'"),
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)} x",
            "{'descr': '<f8' 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f8', 'fortran_order': None, 'shape': (1,)}",
            "{'descr': '<f8', 'fortran_order': FalseX, 'shape': (1,)}",
            "{,'descr': '<f8', 'fortran_order': False, 'shape': (1,)}",
        ] {
            let error = error(text, 8);
            assert!(error.starts_with("no .npy that can be read: "), "{text}: {error}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        let whole = file(1, &described("'<f8'", "(1,)"), &[]);
        for len in 0..whole.len() {
            let cut = whole.get(..len).unwrap();
            let error = split(cut).unwrap_err().to_string();
            assert!(error.starts_with("no .npy that can be read: "), "{error}");
        }
        for (version, reason) in [(3, "version 3.0"), (9, "version 9.0")] {
            let refused = split(&file(version, "{}", &[])).unwrap_err();
            assert_eq!(refused, unreadable(reason));
        }
        let fits = described("'<f8'", "(1,)");
        let fits = format!("{fits}{}", " ".repeat(TEXT_BYTES_MAX - fits.len()));
        assert!(split(&file(2, &fits, &[0; 8])).is_ok());
        let too_long = split(&file(2, &format!("{fits} "), &[0; 8])).unwrap_err();
        assert_eq!(too_long, unreadable("its header has 10001 bytes, more than 10000"));
    }
}
