//! Inference requests: a JSON object, and behind it the bytes of binary tensors in the order of the
//! inputs.
//!
//! Each length is checked against the body before anything is allocated for it: a tensor takes at
//! most four times the bytes that it has in the body.

use std::sync::Arc;

use super::datatype::Datatype;
use super::response::{InferenceReply, WantedOutput};
use super::{InferenceModel, InputForm, ModelInput};
use crate::arrays::{DIMENSIONS_MAX, DType, Tensor};
use crate::endpoint::tensors::{Leaves, push_item, write_lists};
use crate::endpoint::{CallParams, Refusal};
use crate::http1::Head;
use crate::json::{self, Reader, Text, ValueKind, write_string};
use crate::{Limits, MemoryBudget};

/// The header with the length of the JSON object, if something follows it.
const HEADER_LENGTH: &str = "Inference-Header-Content-Length";
const SIZE: &[u8] = b"binary_data_size";

/// Reads a request of a model: the params of the call, and how its result is replied.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read(
    model: &Arc<InferenceModel>,
    head: &Head<'_>,
    body: &[u8],
    limits: &Limits,
    budget: &MemoryBudget,
) -> Result<(CallParams, InferenceReply), Refusal> {
    read_split(model, head.header(HEADER_LENGTH), body, limits, budget)
}

/// [`read`] for a body whose JSON has this length; all of it without one.
pub(crate) fn read_split(
    model: &Arc<InferenceModel>,
    json_length: Option<&[u8]>,
    body: &[u8],
    limits: &Limits,
    budget: &MemoryBudget,
) -> Result<(CallParams, InferenceReply), Refusal> {
    let (text, mut tail) = split(json_length, body)?;
    json::validate(text, limits.nesting_max)
        .map_err(|_| Refusal::invalid("the request is no JSON object in UTF-8"))?;
    let members = Reader::new(text).members([&b"id"[..], b"inputs", b"outputs", b"parameters"]);
    let [id, inputs, outputs, parameters] =
        members.ok_or_else(|| Refusal::invalid("the request is no JSON object"))?;
    if id.is_some_and(|id| !id.starts_with(b"\"") || id.len() > limits.id_bytes_max) {
        let bytes_max = limits.id_bytes_max;
        let problem = format!("id: expected a string of at most {bytes_max} bytes");
        return Err(Refusal::invalid(problem));
    }
    let inputs = objects("inputs", inputs.unwrap_or(b"[]"))?;
    let parts = inputs.len().min(model.inputs.len());
    let mut params = CallParams::with_capacity(tail.len(), parts, budget)?;
    let mut given = vec![false; model.inputs.len()];
    for input in inputs {
        let input = Input::read(input, &mut tail)?;
        let place = model.inputs.iter().position(|it| it.name == input.name);
        let place = place.and_then(|at| Some((model.inputs.get(at)?, given.get_mut(at)?)));
        let Some((known, is_given)) = place else {
            return Err(input.refuse("the model has no such input"));
        };
        if std::mem::replace(is_given, true) {
            return Err(input.refuse("is given twice"));
        }
        params.begin_member(&input.name);
        input.write(known, &mut params)?;
    }
    params.end_members();
    if !tail.is_empty() {
        let problem = format!("{} bytes follow the tensors of the inputs", tail.len());
        return Err(Refusal::invalid(problem));
    }
    let is_binary = parameter(parameters, b"binary_data_output")?;
    let wanted = outputs.map(|outputs| wanted_outputs(outputs, limits)).transpose()?;
    let reply = InferenceReply {
        model: model.clone(),
        // Some clients send an empty one in place of none.
        id: id.filter(|id| *id != b"\"\"").map(<[u8]>::to_vec),
        wanted,
        is_binary: is_binary.unwrap_or(false),
    };
    Ok((params, reply))
}

/// The JSON object, and what follows it.
fn split<'a>(json_length: Option<&[u8]>, body: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Refusal> {
    let Some(length) = json_length else { return Ok((body, &[])) };
    let is_number = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
    let length = std::str::from_utf8(length).ok().filter(|_| is_number);
    let split = length.and_then(|length| body.split_at_checked(length.parse().ok()?));
    split.ok_or_else(|| {
        let problem = format!("{HEADER_LENGTH}: expected at most the body's {} bytes", body.len());
        Refusal::invalid(problem)
    })
}

/// The objects of a list.
fn objects<'a>(name: &str, list: &'a [u8]) -> Result<Vec<&'a [u8]>, Refusal> {
    let invalid = || Refusal::invalid(format!("{name}: expected a list of objects"));
    let mut reader = Reader::new(list);
    if reader.kind() != ValueKind::Array {
        return Err(invalid());
    }
    let mut objects = Vec::new();
    reader.enter();
    while reader.next_item() {
        if reader.kind() != ValueKind::Object {
            return Err(invalid());
        }
        objects.push(reader.skip());
    }
    Ok(objects)
}

/// The bool of a parameter.
fn parameter(parameters: Option<&[u8]>, name: &[u8]) -> Result<Option<bool>, Refusal> {
    let Some(parameters) = parameters else { return Ok(None) };
    let members = Reader::new(parameters).members([name]);
    let [value] = members.ok_or_else(|| Refusal::invalid("parameters: expected an object"))?;
    match value {
        None => Ok(None),
        Some(b"true") => Ok(Some(true)),
        Some(b"false") => Ok(Some(false)),
        Some(_) => {
            let name = String::from_utf8_lossy(name);
            Err(Refusal::invalid(format!("{name}: expected a bool")))
        }
    }
}

/// The outputs that a request asks for.
fn wanted_outputs(list: &[u8], limits: &Limits) -> Result<Vec<WantedOutput>, Refusal> {
    let objects = objects("outputs", list)?;
    if objects.len() > limits.batch_calls_max {
        return Err(Refusal::invalid("outputs: expected fewer"));
    }
    let read = |object: &[u8]| {
        let members = Reader::new(object).members([&b"name"[..], b"parameters"]);
        let [name, parameters] = members.unwrap_or_default();
        let name = text_of(name).ok_or_else(|| Refusal::invalid("outputs: expected names"))?;
        if has_any(parameters, &[b"classification", b"shared_memory_region"]) {
            let problem = format!("outputs: {name}: only binary_data may be asked for");
            return Err(Refusal::invalid(problem));
        }
        Ok(WantedOutput { name, is_binary: parameter(parameters, b"binary_data")? })
    };
    objects.into_iter().map(read).collect()
}

/// Whether an object has a member of these names.
fn has_any(object: Option<&[u8]>, names: &[&[u8]]) -> bool {
    let has = |name: &&[u8]| {
        let members = object.and_then(|object| Reader::new(object).members([*name]));
        matches!(members, Some([Some(_)]))
    };
    names.iter().any(has)
}

fn text_of(value: Option<&[u8]>) -> Option<String> {
    let text = value.and_then(Text::of_quoted)?.unescaped().into_owned();
    String::from_utf8(text).ok()
}

/// An input of a request.
struct Input<'a> {
    name: String,
    datatype: Datatype,
    shape: Vec<usize>,
    /// How many items that is.
    count: usize,
    data: Data<'a>,
}

/// The items of an input.
enum Data<'a> {
    /// As JSON.
    List(&'a [u8]),
    /// As bytes.
    Binary(&'a [u8]),
}

impl<'a> Input<'a> {
    /// Reads an input, and takes its bytes from the tail.
    fn read(object: &'a [u8], tail: &mut &'a [u8]) -> Result<Self, Refusal> {
        let names = [&b"name"[..], b"datatype", b"shape", b"data", b"parameters"];
        let [name, datatype, shape, data, parameters] =
            Reader::new(object).members(names).unwrap_or_default();
        let name = text_of(name).ok_or_else(|| Refusal::invalid("inputs: expected names"))?;
        let invalid = |problem: String| Refusal::invalid(format!("input {name:?}: {problem}"));
        let datatype = text_of(datatype).and_then(|it| Datatype::named(it.as_bytes()));
        let datatype = datatype.ok_or_else(|| {
            invalid(
                "datatype: expected BOOL, INT8 to INT64, UINT8 to UINT64, FP16 to FP64, BF16 \
                     or BYTES"
                    .to_owned(),
            )
        })?;
        let shape = shape.and_then(read_shape).ok_or_else(|| {
            invalid(format!("shape: expected at most {DIMENSIONS_MAX} numbers, none negative"))
        })?;
        let count = shape.iter().try_fold(1_usize, |count, &side| count.checked_mul(side));
        let count = count.ok_or_else(|| invalid("shape: is too large".to_owned()))?;
        let [size] = match parameters.map(|it| Reader::new(it).members([SIZE])) {
            None => [None],
            Some(members) => {
                members.ok_or_else(|| invalid("parameters: expected an object".to_owned()))?
            }
        };
        if has_any(parameters, &[b"shared_memory_region"]) {
            return Err(invalid("shared memory is not supported".to_owned()));
        }
        let data = match (size, data) {
            (Some(size), None) => {
                let number = Reader::new(size).kind() == ValueKind::Number;
                let size = number.then(|| Reader::new(size).number().as_i64()).flatten();
                let size = size.and_then(|size| usize::try_from(size).ok());
                let split = size.and_then(|size| tail.split_at_checked(size));
                let (bytes, rest) = split.ok_or_else(|| {
                    let left = tail.len();
                    invalid(format!("binary_data_size: expected at most the {left} bytes left"))
                })?;
                *tail = rest;
                Data::Binary(bytes)
            }
            (None, Some(list)) => Data::List(list),
            _ => return Err(invalid("expected data, or binary_data_size".to_owned())),
        };
        Ok(Self { name, datatype, shape, count, data })
    }

    fn refuse(&self, problem: &str) -> Refusal {
        Refusal::invalid(format!("input {:?}: {problem}", self.name))
    }

    /// Writes the value of the param.
    fn write(self, known: &ModelInput, params: &mut CallParams) -> Result<(), Refusal> {
        use InputForm::{Array, Bytes, BytesList, List, Scalar, Text, Texts};
        if self.count != 1 && matches!(known.form, Scalar | Text | Bytes) {
            return Err(self.refuse(&format!("expected one item, got {}", self.count)));
        }
        match (known.form, self.datatype) {
            (Array | Scalar | List, Datatype::Items(dtype)) => {
                self.write_numbers(dtype, known.form, params)
            }
            (Text | Texts | Bytes | BytesList, Datatype::Bytes) => {
                self.write_elements(known.form, params)
            }
            (_, Datatype::Bytes) => Err(self.refuse("datatype: expected numbers, got BYTES")),
            (_, Datatype::Items(_)) => Err(self.refuse("datatype: expected BYTES")),
        }
    }

    fn write_numbers(
        self,
        dtype: DType,
        form: InputForm,
        params: &mut CallParams,
    ) -> Result<(), Refusal> {
        let owned;
        let items = match self.data {
            Data::Binary(bytes) => {
                let wanted = self.count.checked_mul(usize::from(dtype.item_bytes));
                if wanted != Some(bytes.len()) {
                    let problem = format!("binary_data_size: the shape has {} items", self.count);
                    return Err(self.refuse(&problem));
                }
                bytes
            }
            Data::List(list) => {
                owned = self.numbers_of(list, dtype)?;
                &owned
            }
        };
        let shape = if form == InputForm::Scalar { &[][..] } else { &self.shape };
        if form == InputForm::Array {
            let tensor = Tensor { dtype, shape: shape.to_vec(), is_fortran: false };
            params.write_part(items, Some(tensor))?;
        } else if form == InputForm::List && self.shape.is_empty() {
            return Err(self.refuse("shape: expected a dimension at least"));
        } else if self.count == 0 && self.shape.len() > 1 {
            // Lists of empty lists may be as many as the shape says, without a byte for each.
            return Err(self.refuse("expected an item at least"));
        } else if !write_lists(&mut params.text, dtype, shape, items, usize::MAX) {
            return Err(self.refuse("JSON has no infinity and no NaN, which a list here becomes"));
        }
        Ok(())
    }

    /// The bytes of items in JSON.
    fn numbers_of(&self, list: &[u8], dtype: DType) -> Result<Vec<u8>, Refusal> {
        if !self.datatype.has_json() {
            return Err(self.refuse("data: FP16 and BF16 are sent as binary data"));
        }
        let most = self.count.min(list.len() / 2 + 1);
        let mut items = Vec::with_capacity(most * usize::from(dtype.item_bytes));
        self.read_leaves(list, |leaf| {
            if push_item(&mut items, dtype, leaf) {
                return Ok(());
            }
            let name = self.datatype.name().unwrap_or_default();
            Err(self.refuse(&format!("data: expected items of {name}")))
        })?;
        Ok(items)
    }

    /// Reads the texts of items in JSON, as many as the shape says.
    fn read_leaves(
        &self,
        list: &[u8],
        mut read: impl FnMut(&[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let leaves = Leaves::of(list).ok_or_else(|| self.refuse("data: expected a list"))?;
        let mut count = 0;
        for leaf in leaves.take(self.count.saturating_add(1)) {
            read(leaf)?;
            count += 1;
        }
        if count != self.count {
            let problem = format!("data: expected {} items, as the shape has", self.count);
            return Err(self.refuse(&problem));
        }
        Ok(())
    }

    fn write_elements(self, form: InputForm, params: &mut CallParams) -> Result<(), Refusal> {
        let is_list = matches!(form, InputForm::Texts | InputForm::BytesList);
        let is_text = matches!(form, InputForm::Text | InputForm::Texts);
        if is_list {
            params.text.push(b'[');
        }
        let mut separator = false;
        let mut write = |element: &[u8]| {
            if std::mem::replace(&mut separator, true) {
                params.text.push(b',');
            }
            if !is_text {
                return params.write_part(element, None);
            }
            let text = std::str::from_utf8(element);
            let text =
                text.map_err(|_| self.refuse("expected UTF-8, as the function takes text"))?;
            write_string(&mut params.text, text);
            Ok(())
        };
        match self.data {
            Data::Binary(bytes) => self.read_elements(bytes, write)?,
            Data::List(list) => self.read_leaves(list, |leaf| {
                let text = Text::of_quoted(leaf);
                let text = text.ok_or_else(|| self.refuse("data: expected strings"))?;
                write(&text.unescaped())
            })?,
        }
        if is_list {
            params.text.push(b']');
        }
        Ok(())
    }

    /// Reads the items of BYTES, each behind its length.
    fn read_elements(
        &self,
        mut bytes: &[u8],
        mut read: impl FnMut(&[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut count = 0;
        while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
            let split = rest.split_at_checked(u32::from_le_bytes(*length) as usize);
            let Some((element, rest)) = split.filter(|_| count < self.count) else { break };
            read(element)?;
            count += 1;
            bytes = rest;
        }
        if !bytes.is_empty() || count != self.count {
            let problem = format!("expected {} items of BYTES, each behind its length", self.count);
            return Err(self.refuse(&problem));
        }
        Ok(())
    }
}

/// Dimensions; `None` if there are too many, or one is none.
fn read_shape(value: &[u8]) -> Option<Vec<usize>> {
    let mut reader = Reader::new(value);
    if reader.kind() != ValueKind::Array {
        return None;
    }
    let mut shape = Vec::new();
    reader.enter();
    while reader.next_item() {
        if reader.kind() != ValueKind::Number || shape.len() == DIMENSIONS_MAX {
            return None;
        }
        shape.push(usize::try_from(reader.number().as_i64()?).ok()?);
    }
    Some(shape)
}
