//! Inference responses: a JSON object, and behind it the bytes of binary tensors in the order of
//! the outputs.

use std::borrow::Cow;
use std::sync::Arc;

use ucall_buffer::Bytes;

use super::datatype::Datatype;
use super::{InferenceModel, VERSION};
use crate::endpoint::outputs::{Items, Output, OutputTensor, of_result};
use crate::endpoint::reply::Response;
use crate::endpoint::tensors::write_lists;
use crate::endpoint::{Refusal, error_response};
use crate::json::write_string;
use crate::rpc::{ResultPart, RpcError};

/// How the result of a call is replied.
#[derive(Debug)]
pub(crate) struct InferenceReply {
    pub(super) model: Arc<InferenceModel>,
    /// The text of the request's id.
    pub(super) id: Option<Vec<u8>>,
    /// All outputs if `None`.
    pub(super) wanted: Option<Vec<WantedOutput>>,
    /// Whether outputs are binary that the request says nothing else of.
    pub(super) is_binary: bool,
}

/// An output that a request asks for.
#[derive(Debug)]
pub(super) struct WantedOutput {
    pub(super) name: String,
    pub(super) is_binary: Option<bool>,
}

impl InferenceReply {
    /// The response to a call that has ended.
    pub(crate) fn response(
        &self,
        outcome: Result<&[u8], &RpcError>,
        parts: &[ResultPart],
        len_max: usize,
    ) -> Response {
        let response = match outcome {
            Ok(result) => self.outputs(result, parts, len_max),
            Err(error) => Err(Refusal { status: status_of(error.code), error: error.clone() }),
        };
        response.unwrap_or_else(|refusal| refused(&refusal).into())
    }

    fn outputs(
        &self,
        result: &[u8],
        parts: &[ResultPart],
        len_max: usize,
    ) -> Result<Response, Refusal> {
        let names: Vec<String> = self.model.outputs.iter().map(|it| it.name.clone()).collect();
        let items = if self.model.returns_items { Items::Each } else { Items::Guessed };
        let outputs = of_result(result, parts, &names, items);
        let chosen = self.chosen(&outputs)?;
        let mut text = br#"{"model_name":"#.to_vec();
        write_string(&mut text, &self.model.name);
        text.extend_from_slice(format!(",\"model_version\":\"{VERSION}\"").as_bytes());
        if let Some(id) = &self.id {
            text.extend_from_slice(b",\"id\":");
            text.extend_from_slice(id);
        }
        text.extend_from_slice(b",\"outputs\":[");
        let (mut tail, mut tail_bytes) = (Vec::<Bytes>::new(), 0);
        for (at, (output, is_binary)) in chosen.into_iter().enumerate() {
            if at > 0 {
                text.push(b',');
            }
            let failed = |problem: String| {
                let problem = format!("output {:?}: {problem}", output.name);
                Refusal::new(500, RpcError::INTERNAL_ERROR, problem)
            };
            let tensor = OutputTensor::of_value(output.value, parts, self.declared(output));
            let tensor = tensor.map_err(failed)?;
            write_description(&mut text, &output.name, &tensor);
            if is_binary {
                let size = tensor.items.len();
                let parameters = format!(",\"parameters\":{{\"binary_data_size\":{size}}}}}");
                text.extend_from_slice(parameters.as_bytes());
                tail_bytes += size;
                tail.push(tensor.items);
            } else {
                text.extend_from_slice(b",\"data\":");
                write_data(&mut text, &tensor, len_max).map_err(failed)?;
                text.push(b'}');
            }
            // A request may ask for an output many times, and each time it may be a copy.
            if text.len() + tail_bytes > len_max {
                return Err(too_large(len_max));
            }
        }
        text.extend_from_slice(b"]}");
        let length = text.len() + tail_bytes;
        if length > len_max {
            return Err(too_large(len_max));
        }
        let media = if tail.is_empty() { "json" } else { "octet-stream" };
        let mut head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/{media}\r\n");
        if !tail.is_empty() {
            head += &format!("Inference-Header-Content-Length: {}\r\n", text.len());
        }
        head += &format!("Content-Length: {length}\r\n\r\n");
        text.splice(..0, head.into_bytes());
        Ok(Response { text, tail })
    }

    /// The outputs to reply, each with whether it is binary.
    fn chosen<'o>(
        &self,
        outputs: &'o [Output<'o>],
    ) -> Result<Vec<(&'o Output<'o>, bool)>, Refusal> {
        let Some(wanted) = &self.wanted else {
            return Ok(outputs.iter().map(|output| (output, self.is_binary)).collect());
        };
        let find = |wanted: &WantedOutput| {
            let found = outputs.iter().find(|output| output.name == wanted.name);
            let is_binary = wanted.is_binary.unwrap_or(self.is_binary);
            found.map(|output| (output, is_binary)).ok_or_else(|| {
                Refusal::invalid(format!("the model has no output {:?}", wanted.name))
            })
        };
        wanted.iter().map(find).collect()
    }

    fn declared(&self, output: &Output<'_>) -> Option<Datatype> {
        self.model.outputs.iter().find(|it| it.name == output.name)?.datatype
    }
}

#[cold]
fn too_large(len_max: usize) -> Refusal {
    let problem = format!("the reply is larger than {len_max} bytes (max_reply_bytes)");
    Refusal::new(500, RpcError::INTERNAL_ERROR, problem)
}

fn write_description(text: &mut Vec<u8>, name: &str, tensor: &OutputTensor) {
    text.extend_from_slice(b"{\"name\":");
    write_string(text, name);
    let datatype = tensor.datatype.name().unwrap_or_default();
    let shape = format!(",\"datatype\":\"{datatype}\",\"shape\":{:?}", tensor.shape);
    text.extend(shape.bytes().filter(|&byte| byte != b' '));
}

/// Appends the items of a tensor as a flat list.
fn write_data(text: &mut Vec<u8>, tensor: &OutputTensor, len_max: usize) -> Result<(), String> {
    let Datatype::Items(dtype) = tensor.datatype else {
        return write_elements(text, &tensor.items);
    };
    let count = tensor.items.len() / usize::from(dtype.item_bytes).max(1);
    if !write_lists(text, dtype, &[count], &tensor.items, len_max) {
        return Err(match text.len() > len_max {
            true => format!("is larger than {len_max} bytes (max_reply_bytes)"),
            false => "JSON has no NaN and no infinity: ask for it as binary data".to_owned(),
        });
    }
    Ok(())
}

fn write_elements(text: &mut Vec<u8>, mut items: &[u8]) -> Result<(), String> {
    text.push(b'[');
    while let Some((length, rest)) = items.split_first_chunk::<4>() {
        let split = rest.split_at_checked(u32::from_le_bytes(*length) as usize);
        let (element, rest) = split.unwrap_or((rest, &[]));
        let element = std::str::from_utf8(element)
            .map_err(|_| "is no text in UTF-8: ask for it as binary data".to_owned())?;
        if !text.ends_with(b"[") {
            text.push(b',');
        }
        write_string(text, element);
        items = rest;
    }
    text.push(b']');
    Ok(())
}

/// The status of a response with the error of a call.
fn status_of(code: i64) -> u16 {
    match crate::endpoint::reply::status_of(code) {
        422 => 400,
        status => status,
    }
}

/// The response to a request that gets no result.
#[cold]
pub(crate) fn refused(refusal: &Refusal) -> Vec<u8> {
    let RpcError { message, data, .. } = &refusal.error;
    let mut text = message.to_string();
    if let Some(data) = data {
        // A text is what was expected; anything else is shown as it is.
        let quoted = crate::json::Text::of_quoted(data).map(|text| text.unescaped());
        let shown = quoted.unwrap_or(Cow::Borrowed(data));
        text += &format!(": {}", String::from_utf8_lossy(&shown));
    }
    let mut body = b"{\"error\":".to_vec();
    write_string(&mut body, &text);
    body.push(b'}');
    error_response(refusal.status, &body)
}
