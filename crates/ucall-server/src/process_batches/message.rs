//! The bytes of a batch and of its results, between a server and the process that runs the batch.
//!
//! A directory comes first: its length, of a batch its [`BatchHead`], the number of calls, and what
//! each call has. The texts and the parts of all calls follow from the next multiple of
//! [`ALIGNMENT`], at the positions that the directory has. Parts of the same index that are arrays
//! of one shape and dtype lie one after another, so a process can read those of all calls as one
//! array.
//!
//! A process may write anything to its socket, so a message is checked before it is used. The texts
//! in it are JSON that this library wrote.

use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ucall_proto::arrays::{DIMENSIONS_MAX, DType, Tensor, npy};
use ucall_proto::{Part, Parts, ResultFormat, ResultPart, RpcError, part_references};

/// Arrays are read fastest from the start of a cache line.
pub(super) const ALIGNMENT: u64 = 64;
/// As good as no limit: 584 years.
const NANOS_MAX: u128 = u64::MAX as u128;

/// One call of a batch, as the server sends it.
#[derive(Clone, Debug)]
pub struct SentCall<'a> {
    /// The JSON text of its params.
    pub params: Option<&'a [u8]>,
    /// What the text refers to, beside it.
    pub parts: Option<&'a Parts>,
    /// How its result is to be written.
    pub results: ResultFormat,
    /// The caller, encoded by the server for the process; not read here.
    pub origin: Vec<u8>,
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
    /// The caller, as [`SentCall::origin`].
    pub origin: Vec<u8>,
}

/// What a batch is, besides its calls.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BatchHead {
    /// The index of its function.
    pub function: usize,
    /// How long it may run in its process, once that has begun it.
    pub timeout: Option<Duration>,
    /// Whether it may begin once more in another process.
    pub is_repeatable: bool,
}

/// A batch, as the process gets it.
#[derive(Clone, Debug)]
pub struct ReceivedBatch {
    /// What it is.
    pub head: BatchHead,
    /// Its calls.
    pub calls: Vec<ReceivedCall>,
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

/// The parts of a document, of which only those are placed that calls of the batch refer to.
struct Document<'a> {
    parts: &'a Parts,
    placed: Vec<Option<PlacedPart<'a>>>,
}

impl Document<'_> {
    fn is_of(&self, call: &SentCall<'_>) -> bool {
        call.parts.is_some_and(|parts| ptr::eq(parts, self.parts))
    }
}

impl<'a> Encoded<'a> {
    /// A batch. With `splits_arrays` each part that is a `.npy` file is sent as the items of its
    /// array: for functions whose params take arrays, not bytes.
    pub fn batch(head: BatchHead, calls: &[SentCall<'a>], splits_arrays: bool) -> Self {
        let mut encoded = Self::default();
        encoded.start();
        encoded.put_number(head.function as u64);
        encoded.put_number(head.timeout.map_or(0, |it| it.as_nanos().clamp(1, NANOS_MAX) as u64));
        encoded.put(&[u8::from(head.is_repeatable)]);
        encoded.put_number(calls.len() as u64);
        let documents = encoded.place_documents(calls, splits_arrays);
        encoded.put_number(documents.len() as u64);
        documents.iter().for_each(|document| encoded.put_parts(&document.placed));
        for call in calls {
            let params = call.params.unwrap_or_default();
            let at = encoded.place(params, 1);
            encoded.put(&[format_code(call.results), u8::from(call.params.is_some())]);
            encoded.put_range(at, params);
            let document = documents.iter().position(|document| document.is_of(call));
            encoded.put_number(document.map_or(0, |index| index as u64 + 1));
            encoded.put_text(&call.origin);
        }
        encoded.end()
    }

    /// The results of a batch, in the order of its calls.
    pub fn results(results: &'a [Result<CallResult, RpcError>]) -> Self {
        let mut encoded = Self::default();
        encoded.start();
        encoded.put_number(results.len() as u64);
        for result in results {
            match result {
                Ok(result) => {
                    encoded.put(&[1]);
                    let at = encoded.place(&result.text, 1);
                    encoded.put_range(at, &result.text);
                    let place = |part: &'a ResultPart| {
                        let at = encoded.place(&part.bytes, ALIGNMENT);
                        Some(PlacedPart { at, bytes: &part.bytes, tensor: part.tensor.clone() })
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

    /// A message that was received.
    pub fn received(message: &'a [u8]) -> Self {
        Self { directory: Vec::new(), body: vec![(0, message)], body_bytes: message.len() as u64 }
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
    fn start(&mut self) {
        self.put(&[0; 8]);
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

    /// Places the parts that each call refers to first, then those that it refers to next, and so
    /// on. Calls of one document share its parts.
    fn place_documents(
        &mut self,
        calls: &[SentCall<'a>],
        splits_arrays: bool,
    ) -> Vec<Document<'a>> {
        let mut documents: Vec<Document<'a>> = Vec::new();
        let mut wanted = Vec::with_capacity(calls.len());
        for call in calls {
            let Some(parts) = call.parts else { continue };
            let known = documents.iter().position(|document| document.is_of(call));
            let document = known.unwrap_or_else(|| {
                documents.push(Document { parts, placed: Vec::new() });
                documents.len() - 1
            });
            let text = call.params.unwrap_or_default();
            wanted.push((document, part_references(text).collect::<Vec<_>>()));
        }
        for column in 0..wanted.iter().map(|(_, indices)| indices.len()).max().unwrap_or(0) {
            let mut last = None;
            for (document, indices) in &wanted {
                if let (Some(document), Some(&index)) =
                    (documents.get_mut(*document), indices.get(column))
                {
                    self.place_part(document, index, splits_arrays, &mut last);
                }
            }
        }
        documents
    }

    /// Places a part, unless that was done, behind that of the tensor `last` if it is such a one.
    fn place_part(
        &mut self,
        document: &mut Document<'a>,
        index: usize,
        splits_arrays: bool,
        last: &mut Option<Tensor>,
    ) {
        let Some(part) = document.parts.get(index) else { return };
        if document.placed.len() <= index {
            document.placed.resize_with(index + 1, || None);
        }
        let Some(placed @ None) = document.placed.get_mut(index) else { return };
        let (tensor, bytes) = split(part, splits_arrays);
        let continues = tensor.is_some() && tensor == *last;
        let at = self.place(bytes, if continues { 1 } else { ALIGNMENT });
        *placed = Some(PlacedPart { at, bytes, tensor: tensor.clone() });
        *last = tensor;
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

    fn put_parts(&mut self, parts: &[Option<PlacedPart<'_>>]) {
        self.put_number(parts.len() as u64);
        for part in parts {
            self.put(&[u8::from(part.is_some())]);
            let Some(part) = part else { continue };
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

/// Reads what a batch is, and the number of its calls.
///
/// # Errors
/// It is none.
pub fn read_batch_head(message: &Bytes) -> Result<(BatchHead, usize), InvalidMessage> {
    MessageReader::new(message)?.head()
}

/// Reads a batch. Its parts are in the memory of the message.
///
/// # Errors
/// It is none.
pub fn read_batch(message: &Bytes) -> Result<ReceivedBatch, InvalidMessage> {
    let mut reader = MessageReader::new(message)?;
    let (head, count) = reader.head()?;
    let mut documents = Vec::new();
    for _ in 0..reader.count()? {
        let parts = reader.parts()?;
        documents.push(Arc::new(Parts::new(reader.body.clone(), parts).of_batch()));
    }
    let call = |_| {
        let results = read_format(reader.byte()?)?;
        let has_params = reader.byte()? == 1;
        let text = reader.range()?;
        let parts = match reader.number()? {
            0 => None,
            number => Some(documents.get(number - 1).ok_or(InvalidMessage)?.clone()),
        };
        let params = has_params.then(|| reader.body.slice(text));
        Ok(ReceivedCall { params, parts, results, origin: reader.text()?.to_vec() })
    };
    let calls = (0..count).map(call).collect::<Result<_, _>>()?;
    Ok(ReceivedBatch { head, calls })
}

/// Reads the results of a batch. Their bytes are in the memory of the message.
///
/// # Errors
/// It is none.
pub fn read_results(message: &Bytes) -> Result<Vec<Result<CallResult, RpcError>>, InvalidMessage> {
    let mut reader = MessageReader::new(message)?;
    let count = reader.count()?;
    let result = |_| {
        if reader.byte()? == 0 {
            return Ok(Err(reader.error()?));
        }
        let text = reader.range()?;
        let parts = reader.parts()?.into_iter();
        let part = |(range, tensor): ReadPart| match range.start <= reader.body.len() {
            true => Ok(ResultPart { tensor, bytes: reader.body.slice(range) }),
            false => Err(InvalidMessage),
        };
        let parts = parts.map(part).collect::<Result<_, _>>()?;
        Ok(Ok(CallResult { text: reader.body.slice(text), parts }))
    };
    (0..count).map(result).collect()
}

/// What a part is and its bytes: those of its items, if it is a `.npy` that is to be split.
fn split(part: Part<'_>, splits_arrays: bool) -> (Option<Tensor>, &[u8]) {
    match part.tensor {
        None if splits_arrays => match npy::split(part.bytes) {
            Ok((tensor, items)) => (Some(tensor), items),
            Err(_) => (None, part.bytes),
        },
        tensor => (tensor.cloned(), part.bytes),
    }
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
    fn new(message: &'a Bytes) -> Result<Self, InvalidMessage> {
        let start = message.first_chunk().ok_or(InvalidMessage)?;
        let len = usize::try_from(u64::from_le_bytes(*start)).map_err(|_| InvalidMessage)?;
        let directory = message.get(start.len()..len).ok_or(InvalidMessage)?;
        let body_at = len.next_multiple_of(ALIGNMENT as usize).min(message.len());
        Ok(Self { directory, body: message.slice(body_at..) })
    }

    fn head(&mut self) -> Result<(BatchHead, usize), InvalidMessage> {
        let function = self.number()?;
        let timeout = Some(u64::from_le_bytes(self.eight()?)).filter(|nanos| *nanos > 0);
        let timeout = timeout.map(Duration::from_nanos);
        let is_repeatable = self.byte()? == 1;
        Ok((BatchHead { function, timeout, is_repeatable }, self.count()?))
    }

    /// The number of calls, each of which has at least a byte in the directory.
    fn count(&mut self) -> Result<usize, InvalidMessage> {
        self.number().and_then(|count| match count <= self.directory.len() {
            true => Ok(count),
            false => Err(InvalidMessage),
        })
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
            if self.byte()? == 0 {
                // No call refers to it, so it is not there.
                parts.push((usize::MAX..usize::MAX, None));
                continue;
            }
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
#[path = "message_tests.rs"]
mod tests;
