//! The bytes of a batch and of its results, between a server and the process that runs the batch.
//!
//! A directory comes first: its length, the number of calls, and what each call has. The texts and
//! the parts of all calls follow from the next multiple of [`ALIGNMENT`], at the positions that the
//! directory has. Parts of the same index that are arrays of one shape and dtype lie one after
//! another, so a process can read those of all calls as one array.
//!
//! A process may write anything to its socket, so a message is checked before it is used. The texts
//! in it are JSON that this library wrote.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use ucall_proto::arrays::{DIMENSIONS_MAX, DType, Tensor, npy};
use ucall_proto::{Parts, ResultFormat, ResultPart, RpcError};

/// Arrays are read fastest from the start of a cache line.
pub(super) const ALIGNMENT: u64 = 64;

/// One call of a batch, as the server sends it.
#[derive(Clone, Copy, Debug)]
pub struct SentCall<'a> {
    /// The JSON text of its params.
    pub params: Option<&'a [u8]>,
    /// What the text refers to, beside it.
    pub parts: Option<&'a Parts>,
    /// How its result is to be written.
    pub results: ResultFormat,
}

/// One call of a batch, as the process gets it.
#[derive(Clone, Debug)]
pub struct ReceivedCall {
    /// The JSON text of its params.
    pub params: Option<Bytes>,
    /// What the text refers to, beside it.
    pub parts: Option<Arc<Parts>>,
    /// How its result is to be written.
    pub results: ResultFormat,
}

/// The result of one call: its JSON text, and what that refers to.
#[derive(Clone, Debug)]
pub struct CallResult {
    /// The JSON text.
    pub text: Bytes,
    /// The parts that it refers to.
    pub parts: Vec<ResultPart>,
}

/// A message that its reader cannot have got from this library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidMessage;

/// A message that is ready to be copied: pieces, each with its position.
#[derive(Debug, Default)]
pub struct Encoded<'a> {
    directory: Vec<u8>,
    body: Vec<(u64, &'a [u8])>,
    body_bytes: u64,
}

/// What a part is and where it lies.
struct PlacedPart<'a> {
    at: u64,
    bytes: &'a [u8],
    tensor: Option<Tensor>,
}

impl<'a> Encoded<'a> {
    /// A batch. With `splits_arrays` each part that is a `.npy` file is sent as the items of its
    /// array: for functions whose params take arrays, and no bytes.
    pub fn batch(calls: &[SentCall<'a>], splits_arrays: bool) -> Self {
        let mut encoded = Self::default();
        encoded.start(calls.len());
        let texts: Vec<u64> =
            calls.iter().map(|call| encoded.place(call.params.unwrap_or_default(), 1)).collect();
        let placed = encoded.place_columns(calls, splits_arrays);
        for ((call, text_at), parts) in calls.iter().zip(texts).zip(placed) {
            encoded.put(&[format_code(call.results), u8::from(call.params.is_some())]);
            encoded.put_range(text_at, call.params.unwrap_or_default());
            encoded.put(&[u8::from(call.parts.is_some())]);
            encoded.put_parts(&parts);
        }
        encoded.end()
    }

    /// The results of a batch, in the order of its calls.
    pub fn results(results: &'a [Result<CallResult, RpcError>]) -> Self {
        let mut encoded = Self::default();
        encoded.start(results.len());
        for result in results {
            match result {
                Ok(result) => {
                    encoded.put(&[1]);
                    let at = encoded.place(&result.text, 1);
                    encoded.put_range(at, &result.text);
                    let place = |part: &'a ResultPart| PlacedPart {
                        at: encoded.place(&part.bytes, ALIGNMENT),
                        bytes: &part.bytes,
                        tensor: part.tensor.clone(),
                    };
                    let parts: Vec<_> = result.parts.iter().map(place).collect();
                    encoded.put_parts(&parts);
                }
                Err(error) => {
                    encoded.put(&[0]);
                    encoded.put(&error.code.to_le_bytes());
                    encoded.put_text(error.message.as_bytes());
                    encoded.put(&[u8::from(error.data.is_some())]);
                    encoded.put_text(error.data.as_deref().unwrap_or_default());
                }
            }
        }
        encoded.end()
    }

    /// A text alone.
    pub fn text(text: &'a [u8]) -> Self {
        Self { directory: text.to_vec(), ..Self::default() }
    }

    /// Its length.
    pub fn len(&self) -> u64 {
        match self.body_bytes {
            0 => self.directory.len() as u64,
            _ => self.body_at() + self.body_bytes,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its pieces in order, each with its position.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let at = self.body_at();
        let body = self.body.iter().map(move |(start, bytes)| (at + start, *bytes));
        std::iter::once((0, &self.directory[..])).chain(body)
    }

    fn body_at(&self) -> u64 {
        (self.directory.len() as u64).next_multiple_of(ALIGNMENT)
    }

    /// Leaves room for the length of the directory.
    fn start(&mut self, calls: usize) {
        self.put(&[0; 8]);
        self.put_number(calls as u64);
    }

    fn end(mut self) -> Self {
        let len = (self.directory.len() as u64).to_le_bytes();
        if let Some(start) = self.directory.first_chunk_mut() {
            *start = len;
        }
        self
    }

    /// Adds bytes to the body; returns their position there.
    fn place(&mut self, bytes: &'a [u8], alignment: u64) -> u64 {
        if bytes.is_empty() {
            return 0;
        }
        let at = self.body_bytes.next_multiple_of(alignment);
        self.body_bytes = at + bytes.len() as u64;
        self.body.push((at, bytes));
        at
    }

    /// Places the first parts of all calls, then the second ones, and so on.
    fn place_columns(
        &mut self,
        calls: &[SentCall<'a>],
        splits_arrays: bool,
    ) -> Vec<Vec<PlacedPart<'a>>> {
        let count = |call: &SentCall<'_>| call.parts.map_or(0, Parts::count);
        let mut placed: Vec<Vec<PlacedPart<'a>>> = Vec::new();
        placed.resize_with(calls.len(), Vec::new);
        for column in 0..calls.iter().map(count).max().unwrap_or(0) {
            let mut last: Option<Tensor> = None;
            for (call, placed) in calls.iter().zip(&mut placed) {
                let Some(part) = call.parts.and_then(|parts| parts.get(column)) else { continue };
                let (tensor, bytes) = match part.tensor {
                    None if splits_arrays => match npy::split(part.bytes) {
                        Ok((tensor, items)) => (Some(tensor), items),
                        Err(_) => (None, part.bytes),
                    },
                    tensor => (tensor.cloned(), part.bytes),
                };
                let continues = tensor.is_some() && tensor == last;
                let at = self.place(bytes, if continues { 1 } else { ALIGNMENT });
                placed.push(PlacedPart { at, bytes, tensor: tensor.clone() });
                last = tensor;
            }
        }
        placed
    }

    fn put(&mut self, bytes: &[u8]) {
        self.directory.extend_from_slice(bytes);
    }

    fn put_number(&mut self, number: u64) {
        self.put(&number.to_le_bytes());
    }

    fn put_range(&mut self, at: u64, bytes: &[u8]) {
        self.put_number(at);
        self.put_number(bytes.len() as u64);
    }

    fn put_text(&mut self, text: &[u8]) {
        self.put_number(text.len() as u64);
        self.put(text);
    }

    fn put_parts(&mut self, parts: &[PlacedPart<'_>]) {
        self.put_number(parts.len() as u64);
        for part in parts {
            self.put_range(part.at, part.bytes);
            let Some(tensor) = &part.tensor else {
                self.put_text(b"");
                continue;
            };
            self.put_text(tensor.dtype.to_string().as_bytes());
            self.put(&[u8::from(tensor.is_fortran)]);
            self.put_number(tensor.shape.len() as u64);
            tensor.shape.iter().for_each(|side| self.put_number(*side as u64));
        }
    }
}

/// Reads a batch. Its parts are in the memory of the message.
///
/// # Errors
/// It is none.
pub fn read_batch(message: &Bytes) -> Result<Vec<ReceivedCall>, InvalidMessage> {
    let (mut reader, count) = MessageReader::new(message)?;
    let call = |_| {
        let results = read_format(reader.byte()?)?;
        let has_params = reader.byte()? == 1;
        let text = reader.range()?;
        let has_parts = reader.byte()? == 1;
        let parts = reader.parts()?;
        Ok(ReceivedCall {
            params: has_params.then(|| reader.body.slice(text)),
            parts: has_parts.then(|| Arc::new(Parts::new(reader.body.clone(), parts))),
            results,
        })
    };
    (0..count).map(call).collect()
}

/// Reads the results of a batch. Their bytes are in the memory of the message.
///
/// # Errors
/// It is none.
pub fn read_results(message: &Bytes) -> Result<Vec<Result<CallResult, RpcError>>, InvalidMessage> {
    let (mut reader, count) = MessageReader::new(message)?;
    let result = |_| {
        if reader.byte()? == 0 {
            return Ok(Err(reader.error()?));
        }
        let text = reader.range()?;
        let parts = reader.parts()?.into_iter();
        let part = |(range, tensor)| ResultPart { tensor, bytes: reader.body.slice(range) };
        let parts = parts.map(part).collect();
        Ok(Ok(CallResult { text: reader.body.slice(text), parts }))
    };
    (0..count).map(result).collect()
}

fn format_code(format: ResultFormat) -> u8 {
    match format {
        ResultFormat::Json => 0,
        ResultFormat::Parts => 1,
        ResultFormat::Lists => 2,
    }
}

fn read_format(code: u8) -> Result<ResultFormat, InvalidMessage> {
    match code {
        0 => Ok(ResultFormat::Json),
        1 => Ok(ResultFormat::Parts),
        2 => Ok(ResultFormat::Lists),
        _ => Err(InvalidMessage),
    }
}

/// Where a part is in the body, and what it is.
type ReadPart = (Range<usize>, Option<Tensor>);

/// Reads the directory of a message.
struct MessageReader<'a> {
    directory: &'a [u8],
    body: Bytes,
}

impl<'a> MessageReader<'a> {
    /// The reader, and the number of calls. Each call has at least a byte in the directory.
    fn new(message: &'a Bytes) -> Result<(Self, usize), InvalidMessage> {
        let start = message.first_chunk().ok_or(InvalidMessage)?;
        let len = usize::try_from(u64::from_le_bytes(*start)).map_err(|_| InvalidMessage)?;
        let directory = message.get(start.len()..len).ok_or(InvalidMessage)?;
        let body_at = len.next_multiple_of(ALIGNMENT as usize).min(message.len());
        let mut reader = Self { directory, body: message.slice(body_at..) };
        let count = reader.number()?;
        match count <= reader.directory.len() {
            true => Ok((reader, count)),
            false => Err(InvalidMessage),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], InvalidMessage> {
        let (taken, rest) = self.directory.split_at_checked(len).ok_or(InvalidMessage)?;
        self.directory = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, InvalidMessage> {
        self.take(1)?.first().copied().ok_or(InvalidMessage)
    }

    fn eight(&mut self) -> Result<[u8; 8], InvalidMessage> {
        self.take(8)?.try_into().map_err(|_| InvalidMessage)
    }

    fn number(&mut self) -> Result<usize, InvalidMessage> {
        usize::try_from(u64::from_le_bytes(self.eight()?)).map_err(|_| InvalidMessage)
    }

    fn text(&mut self) -> Result<&'a [u8], InvalidMessage> {
        let len = self.number()?;
        self.take(len)
    }

    /// A range within the body.
    fn range(&mut self) -> Result<Range<usize>, InvalidMessage> {
        let (at, len) = (self.number()?, self.number()?);
        let end = at.checked_add(len).filter(|end| *end <= self.body.len());
        Ok(at..end.ok_or(InvalidMessage)?)
    }

    fn parts(&mut self) -> Result<Vec<ReadPart>, InvalidMessage> {
        let count = self.number()?;
        let mut parts = Vec::new();
        for _ in 0..count {
            let range = self.range()?;
            let tensor = match self.text()? {
                b"" => None,
                dtype => Some(self.tensor(dtype, range.len())?),
            };
            parts.push((range, tensor));
        }
        Ok(parts)
    }

    fn tensor(&mut self, dtype: &[u8], len: usize) -> Result<Tensor, InvalidMessage> {
        let dtype = std::str::from_utf8(dtype).ok().and_then(DType::of_descr);
        let dtype = dtype.ok_or(InvalidMessage)?;
        let is_fortran = self.byte()? == 1;
        let dimensions = self.number()?;
        if dimensions > DIMENSIONS_MAX {
            return Err(InvalidMessage);
        }
        let shape = (0..dimensions).map(|_| self.number()).collect::<Result<_, _>>()?;
        let tensor = Tensor { dtype, shape, is_fortran };
        match tensor.bytes() == Some(len) {
            true => Ok(tensor),
            false => Err(InvalidMessage),
        }
    }

    fn error(&mut self) -> Result<RpcError, InvalidMessage> {
        let code = i64::from_le_bytes(self.eight()?);
        let message = std::str::from_utf8(self.text()?).map_err(|_| InvalidMessage)?;
        let (has_data, data) = (self.byte()? == 1, self.text()?);
        let error = RpcError::new(code, message.to_owned());
        Ok(RpcError { data: has_data.then(|| data.to_vec()), ..error })
    }
}

#[cfg(test)]
mod tests {
    use ucall_proto::arrays::Kind;

    use super::*;

    fn whole(encoded: &Encoded<'_>) -> Bytes {
        let mut bytes = vec![0; encoded.len() as usize];
        for (at, piece) in encoded.pieces() {
            bytes[at as usize..][..piece.len()].copy_from_slice(piece);
        }
        bytes.into()
    }

    fn tensor(shape: &[usize]) -> Tensor {
        let dtype = DType::native(Kind::Float, 4);
        Tensor { dtype, shape: shape.to_vec(), is_fortran: false }
    }

    /// A part that is a `.npy`.
    fn file(items: &[u8], shape: &[usize]) -> Parts {
        let mut file = Vec::new();
        npy::write_header(&mut file, &tensor(shape));
        file.extend_from_slice(items);
        let all = 0..file.len();
        Parts::new(file, vec![(all, None)])
    }

    fn call<'a>(params: &'a [u8], parts: &'a Parts) -> SentCall<'a> {
        SentCall { params: Some(params), parts: Some(parts), results: ResultFormat::Parts }
    }

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let parts = file(&[7; 12], &[3]);
        let none = SentCall { params: None, parts: None, results: ResultFormat::Json };
        let calls = [call(b"[1]", &parts), none, call(b"", &parts)];
        let read = read_batch(&whole(&Encoded::batch(&calls, false))).unwrap();
        assert_eq!(read.len(), 3);
        assert_eq!(read[0].params.as_deref(), Some(&b"[1]"[..]));
        assert_eq!(read[0].results, ResultFormat::Parts);
        let part = read[0].parts.as_ref().unwrap().get(0).unwrap();
        assert_eq!((part.bytes, part.tensor), (parts.get(0).unwrap().bytes, None));
        assert!(read[1].params.is_none() && read[1].parts.is_none());
        assert_eq!(read[2].params.as_deref(), Some(&b""[..]));
    }

    #[test]
    fn arrays_of_one_shape_lie_one_after_another() {
        let rows: Vec<Parts> = (0..3).map(|row| file(&[row; 12], &[3])).collect();
        let other = file(&[9; 16], &[4]);
        let calls: Vec<_> = rows.iter().chain([&other]).map(|parts| call(b"[]", parts)).collect();
        let read = read_batch(&whole(&Encoded::batch(&calls, true))).unwrap();
        let part = |index: usize| read[index].parts.as_ref().unwrap().get(0).unwrap();
        let start = part(0).bytes.as_ptr() as usize;
        for row in 0..3 {
            assert_eq!(part(row).bytes.as_ptr() as usize, start + 12 * row);
            assert_eq!(part(row).bytes, [row as u8; 12]);
            assert_eq!(part(row).tensor, Some(&tensor(&[3])));
        }
        assert_eq!(part(3).bytes, [9; 16]);
        assert_eq!((part(3).bytes.as_ptr() as usize - start) % ALIGNMENT as usize, 0);
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let part = ResultPart { tensor: Some(tensor(&[2])), bytes: Bytes::from_static(&[3; 8]) };
        let bytes = ResultPart { tensor: None, bytes: Bytes::from_static(b"abc") };
        let text = Bytes::from_static(br#"[{"$part":0},{"$part":1}]"#);
        let results = [
            Ok(CallResult { text: text.clone(), parts: vec![part, bytes] }),
            Err(RpcError::new(-32602, "Invalid params").expected("int")),
            Err(RpcError::new(5, "no")),
        ];
        let read = read_results(&whole(&Encoded::results(&results))).unwrap();
        let first = read[0].as_ref().unwrap();
        assert_eq!(first.text, text);
        assert_eq!(first.parts[0].tensor, Some(tensor(&[2])));
        assert_eq!(
            (&first.parts[0].bytes[..], &first.parts[1].bytes[..]),
            (&[3; 8][..], &b"abc"[..])
        );
        assert_eq!(read[1].as_ref().unwrap_err().data.as_deref(), Some(&b"\"int\""[..]));
        let last = read[2].as_ref().unwrap_err();
        assert_eq!((last.code, &last.message[..], &last.data), (5, "no", &None));
    }

    /// A process may write anything, so no cut and no changed byte may panic or read elsewhere.
    #[test]
    fn a_changed_message_is_refused_or_read_within_its_bytes() {
        let rows: Vec<Parts> = (0..2).map(|row| file(&[row; 12], &[3])).collect();
        let calls: Vec<_> = rows.iter().map(|parts| call(b"[1]", parts)).collect();
        let batch = whole(&Encoded::batch(&calls, true));
        let text = Bytes::from_static(b"[1]");
        let results = [Ok(CallResult { text, parts: Vec::new() }), Err(RpcError::new(1, "no"))];
        let results = whole(&Encoded::results(&results));
        for message in [batch, results] {
            for len in 0..message.len() {
                let _ = (read_batch(&message.slice(..len)), read_results(&message.slice(..len)));
                for byte in [0, 1, 0x7f, 0xff] {
                    let mut changed = message.to_vec();
                    changed[len] = byte;
                    let changed = Bytes::from(changed);
                    let _ = (read_batch(&changed), read_results(&changed));
                }
            }
            assert!(read_batch(&message.slice(..20)).is_err());
            assert!(read_results(&message.slice(..20)).is_err());
        }
    }
}
