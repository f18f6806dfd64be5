//! Writes the result of a call as the body of a response.

use base64ct::{Base64, Encoding};
use memchr::memmem;
use ucall_buffer::Bytes;

use super::dtypes::{DTYPE, SHAPE, dtype_name};
use super::media::{IMAGES, ImageType, Media, image_type};
use crate::arrays::{Tensor, npy, safetensors};
use crate::endpoint::inference::Datatype;
use crate::endpoint::outputs::{Items, OutputTensor, of_result, part_index};
use crate::endpoint::reply::{Response, status_of};
use crate::endpoint::tensors::{row_major, row_major_bytes, write_lists};
use crate::endpoint::{Refusal, error_response};
use crate::http1::Head;
use crate::rpc::{ResultPart, RpcError};

/// How the result of a call is replied.
#[derive(Debug)]
pub(crate) struct BodyReply {
    /// What the caller accepts, the most wanted first.
    accepted: Vec<Media>,
}

/// A body of a response.
struct Body {
    media: &'static str,
    /// Further headers.
    headers: String,
    /// Its first bytes.
    text: Vec<u8>,
    /// The others.
    tail: Vec<Bytes>,
}

impl Body {
    fn new(media: &'static str, text: Vec<u8>, tail: Vec<Bytes>) -> Self {
        Self { media, headers: String::new(), text, tail }
    }
}

impl BodyReply {
    /// Of what a request accepts.
    ///
    /// # Errors
    /// Nothing of what there is.
    pub(super) fn accepted_by(head: &Head<'_>) -> Result<Self, Refusal> {
        let accepted = Media::accepted_by(head);
        match accepted.is_empty() {
            true => Err(not_acceptable()),
            false => Ok(Self { accepted }),
        }
    }

    /// The response to a call that has ended.
    pub(crate) fn response(
        &self,
        outcome: Result<&[u8], &RpcError>,
        parts: &[ResultPart],
        len_max: usize,
    ) -> Response {
        let body = match outcome {
            Ok(result) => self.body_of(result, parts, len_max),
            Err(error) => Err(Refusal { status: status_of(error.code), error: error.clone() }),
        };
        let body = match body {
            Ok(body) => body,
            Err(refusal) => return refused(&refusal).into(),
        };
        let length = body.text.len() + body.tail.iter().map(Bytes::len).sum::<usize>();
        if length > len_max {
            let problem = format!("The reply is larger than {len_max} bytes (max_reply_bytes)");
            return refused(&Refusal::new(500, RpcError::INTERNAL_ERROR, problem)).into();
        }
        let Body { media, headers, mut text, tail } = body;
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {media}\r\n{headers}Content-Length: {length}\r\n\r\n"
        );
        text.splice(..0, head.into_bytes());
        Response { text, tail }
    }

    /// The result in the first of the accepted forms that it has.
    fn body_of(
        &self,
        result: &[u8],
        parts: &[ResultPart],
        len_max: usize,
    ) -> Result<Body, Refusal> {
        let single = part_index(result, parts).and_then(|index| parts.get(index));
        for media in &self.accepted {
            let body = match media {
                Media::Json => return json_body(result, parts, len_max),
                Media::Npy => single.and_then(npy_body),
                Media::Octets => single.map(octets_body),
                Media::Safetensors => safetensors_body(result, parts),
                Media::Image(image) => single.and_then(|part| image_body(part, *image)),
                Media::Multipart => None,
            };
            if let Some(body) = body {
                return Ok(body);
            }
        }
        Err(not_acceptable())
    }
}

#[cold]
fn not_acceptable() -> Refusal {
    Refusal::new(
        406,
        RpcError::INVALID_REQUEST,
        "Accept names nothing that the result is: application/json is always one, \
         application/x-npy, application/octet-stream and application/safetensors of arrays, \
         image/* of images",
    )
}

fn npy_body(part: &ResultPart) -> Option<Body> {
    let mut header = Vec::new();
    npy::write_header(&mut header, part.tensor.as_ref()?);
    Some(Body::new("application/x-npy", header, vec![part.bytes.clone()]))
}

fn octets_body(part: &ResultPart) -> Body {
    let media = "application/octet-stream";
    let Some(tensor) = &part.tensor else {
        return Body::new(media, Vec::new(), vec![part.bytes.clone()]);
    };
    let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
    let dtype = dtype_name(tensor.dtype);
    let headers = format!("{DTYPE}: {dtype}\r\n{SHAPE}: {}\r\n", shape.join(","));
    let items = row_major_bytes(tensor, &part.bytes);
    Body { headers, ..Body::new(media, Vec::new(), vec![items]) }
}

fn image_body(part: &ResultPart, wanted: ImageType) -> Option<Body> {
    let media = image_type(&part.bytes).filter(|_| part.tensor.is_none())?;
    let is_wanted = match wanted {
        ImageType::Any => true,
        ImageType::Known(at) => IMAGES.get(at).is_some_and(|(name, _)| *name == media),
    };
    is_wanted.then(|| Body::new(media, Vec::new(), vec![part.bytes.clone()]))
}

fn safetensors_body(result: &[u8], parts: &[ResultPart]) -> Option<Body> {
    let outputs = of_result(result, parts, &[], Items::Guessed);
    let mut tensors = Vec::with_capacity(outputs.len());
    for output in &outputs {
        let tensor = OutputTensor::of_value(output.value, parts, None).ok()?;
        let Datatype::Items(dtype) = tensor.datatype else { return None };
        tensors.push((&*output.name, dtype, tensor));
    }
    // Larger items first, so that all are aligned.
    tensors.sort_by_key(|(_, dtype, _)| u8::MAX - dtype.item_bytes);
    let described: Vec<_> =
        tensors.iter().map(|(name, dtype, it)| (*name, *dtype, &it.shape[..])).collect();
    let header = safetensors::header(&described).filter(|_| !tensors.is_empty())?;
    let tail = tensors.into_iter().map(|(_, _, tensor)| tensor.items).collect();
    Some(Body::new("application/safetensors", header, tail))
}

/// The text of the result, with lists in place of arrays, and base64 in place of bytes.
fn json_body(result: &[u8], parts: &[ResultPart], len_max: usize) -> Result<Body, Refusal> {
    const PART: &[u8] = br#"{"$part":"#;
    const JSON: &str = "application/json";
    if parts.is_empty() {
        return Ok(Body::new(JSON, result.to_vec(), Vec::new()));
    }
    let mut text = Vec::with_capacity(result.len());
    let mut rest = result;
    // A quotation mark within a string follows a backslash, so this is no text.
    while let Some(at) = memmem::find(rest, PART) {
        let (before, after) = rest.split_at(at);
        text.extend_from_slice(before);
        let end = after.iter().position(|&byte| byte == b'}').map_or(after.len(), |at| at + 1);
        let (value, after) = after.split_at(end);
        rest = after;
        match part_index(value, parts).and_then(|index| parts.get(index)) {
            None => text.extend_from_slice(value),
            Some(ResultPart { tensor: None, bytes }) => write_base64(&mut text, bytes),
            Some(ResultPart { tensor: Some(tensor), bytes }) => {
                write_array(&mut text, tensor, bytes, len_max)?;
            }
        }
    }
    text.extend_from_slice(rest);
    Ok(Body::new(JSON, text, Vec::new()))
}

fn write_array(
    text: &mut Vec<u8>,
    tensor: &Tensor,
    bytes: &[u8],
    len_max: usize,
) -> Result<(), Refusal> {
    let items = row_major(tensor, bytes);
    if write_lists(text, tensor.dtype, &tensor.shape, &items, len_max) {
        return Ok(());
    }
    let problem = match text.len() > len_max {
        true => format!("The reply is larger than {len_max} bytes (max_reply_bytes)"),
        false => "JSON has no NaN, no infinity and no complex numbers: ask for another type, \
                  such as Accept: application/x-npy"
            .to_owned(),
    };
    Err(Refusal::new(500, RpcError::INTERNAL_ERROR, problem))
}

fn write_base64(text: &mut Vec<u8>, bytes: &[u8]) {
    text.push(b'"');
    let start = text.len();
    text.resize(start + Base64::encoded_len(bytes), 0);
    let room = text.get_mut(start..).unwrap_or_default();
    let is_encoded = Base64::encode(bytes, room).is_ok();
    debug_assert!(is_encoded, "there is room for all of it");
    text.push(b'"');
}

/// The response to a request that gets no result.
#[cold]
pub(crate) fn refused(refusal: &Refusal) -> Vec<u8> {
    let mut body = b"{\"error\":".to_vec();
    refusal.error.write(&mut body);
    body.push(b'}');
    error_response(refusal.status, &body)
}
