//! Reads a body, and the query, as the params of a function.

use super::ParamKind;
use super::dtypes::{DTYPE, SHAPE, dtype_named};
use super::media::Media;
use super::multipart::{self, Field};
use super::response::BodyReply;
use crate::arrays::{DIMENSIONS_MAX, Tensor, safetensors};
use crate::endpoint::{CallParams, Refusal, percent_decoded};
use crate::http1::Head;
use crate::json::{self, Reader, ValueKind, write_string};
use crate::rpc::RpcError;
use crate::{Limits, MemoryBudget};

/// What a function's params are, as far as a body has to know.
pub(crate) trait ParamKinds {
    /// What the param of a name takes.
    fn kind(&self, name: &str) -> ParamKind;

    /// The name of the first param; `None` if the function has none, or they are not known.
    fn first(&self) -> Option<String>;
}

/// A request for a call.
#[derive(Debug)]
pub(crate) struct BodyRequest {
    pub(crate) params: CallParams,
    pub(crate) reply: BodyReply,
}

/// Reads a request.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read(
    head: &Head<'_>,
    body: &[u8],
    kinds: &dyn ParamKinds,
    limits: &Limits,
    budget: &MemoryBudget,
) -> Result<BodyRequest, Refusal> {
    let parts_max = limits.parts_max;
    let reply = BodyReply::accepted_by(head)?;
    let query = read_query(head.path_and_query().1, parts_max)?;
    let mut params = CallParams::with_capacity(body.len(), 1, budget)?;
    match media_of(head, body)? {
        None => write_fields(&query, kinds, &mut params)?,
        Some(Media::Json) => write_json(body, &query, kinds, &mut params, limits)?,
        Some(Media::Safetensors) => {
            let problem = |problem| Refusal::invalid(format!("the safetensors: {problem}"));
            for it in safetensors::read(body, parts_max).map_err(problem)? {
                params.begin_member(&it.name);
                params.write_part(body.get(it.range).unwrap_or_default(), Some(it.tensor))?;
            }
            write_fields(&query, kinds, &mut params)?;
        }
        Some(Media::Multipart) => {
            let content_type = head.header("Content-Type").unwrap_or_default();
            let mut fields = query;
            fields.extend(
                multipart::read(content_type, body, parts_max)?.into_iter().map(Given::from),
            );
            write_fields(&fields, kinds, &mut params)?;
        }
        Some(media @ (Media::Npy | Media::Octets | Media::Image(_))) => {
            let tensor = if media == Media::Octets { read_tensor(head, body)? } else { None };
            write_single(body, tensor, &query, kinds, &mut params)?;
        }
    }
    Ok(BodyRequest { params, reply })
}

/// What a body is; `None` if there is none. JSON needs no type, as curl sends another one.
fn media_of(head: &Head<'_>, body: &[u8]) -> Result<Option<Media>, Refusal> {
    const FORM: &[u8] = b"application/x-www-form-urlencoded";
    let content_type = head.header("Content-Type").unwrap_or_default();
    let name = super::media::without_parameters(content_type);
    let is_unstated = name.is_empty() || name.eq_ignore_ascii_case(FORM);
    if let Some(media) = Media::named(content_type) {
        let is_empty_json = media == Media::Json && body.trim_ascii().is_empty();
        return Ok(Some(media).filter(|_| !is_empty_json));
    }
    match body.trim_ascii_start().first() {
        None if is_unstated => Ok(None),
        Some(b'{' | b'[') if is_unstated => Ok(Some(Media::Json)),
        _ => {
            let problem = "expected a body of application/json, application/x-npy, \
                application/octet-stream, application/safetensors, image/* or multipart/form-data";
            Err(Refusal { status: 415, ..Refusal::invalid(problem) })
        }
    }
}

/// A value of the query or of a form.
struct Given<'a> {
    name: String,
    value: Value<'a>,
}

enum Value<'a> {
    /// A text, which is JSON if the param takes no text.
    Text(Vec<u8>),
    Json(&'a [u8]),
    File(&'a [u8]),
}

impl<'a> From<Field<'a>> for Given<'a> {
    fn from(field: Field<'a>) -> Self {
        let value = match Media::named(field.content_type) {
            Some(Media::Json) => Value::Json(field.bytes),
            Some(_) => Value::File(field.bytes),
            None if field.is_file => Value::File(field.bytes),
            None => Value::Text(field.bytes.to_vec()),
        };
        Self { name: field.name, value }
    }
}

fn read_query(query: &[u8], max: usize) -> Result<Vec<Given<'static>>, Refusal> {
    let invalid = || Refusal::invalid("the query must read like: name=value&other=value");
    let mut given = Vec::new();
    for pair in query.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()) {
        if given.len() == max {
            return Err(Refusal::invalid(format!("the query has more than {max} values")));
        }
        let mut halves = pair.splitn(2, |&byte| byte == b'=');
        let mut half = || {
            let text: Vec<u8> = halves.next().unwrap_or_default().to_vec();
            let spaced: Vec<u8> =
                text.into_iter().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
            percent_decoded(&spaced).ok_or_else(invalid)
        };
        let name = String::from_utf8(half()?).map_err(|_| invalid())?;
        given.push(Given { name, value: Value::Text(half()?) });
    }
    Ok(given)
}

/// Writes the values of a query and of a form as members, those of one name as a list.
fn write_fields(
    given: &[Given<'_>],
    kinds: &dyn ParamKinds,
    params: &mut CallParams,
) -> Result<(), Refusal> {
    write_members(given, kinds, params)?;
    params.end_members();
    Ok(())
}

fn write_members(
    given: &[Given<'_>],
    kinds: &dyn ParamKinds,
    params: &mut CallParams,
) -> Result<(), Refusal> {
    // In the order of their names, so that those of one name are found at once.
    let mut order: Vec<&Given<'_>> = given.iter().collect();
    order.sort_by(|a, b| a.name.cmp(&b.name));
    for same in order.chunk_by(|a, b| a.name == b.name) {
        let Some(first) = same.first() else { continue };
        let (is_list, is_text) = match kinds.kind(&first.name) {
            ParamKind::Text => (false, true),
            ParamKind::List { is_text } => (true, is_text),
            ParamKind::Json => (false, false),
        };
        // A list may come as one value, too.
        let is_whole = matches!(&same, [Given { value: Value::Text(text), .. }]
            if text.starts_with(b"["))
            || matches!(&same, [Given { value: Value::Json(_), .. }]);
        params.begin_member(&first.name);
        if (!is_list || is_whole) && same.len() == 1 {
            write_value(first, is_text && !is_list, params)?;
            continue;
        }
        params.text.push(b'[');
        for (at, one) in same.iter().enumerate() {
            if at > 0 {
                params.text.push(b',');
            }
            write_value(one, is_text, params)?;
        }
        params.text.push(b']');
    }
    Ok(())
}

fn write_value(given: &Given<'_>, is_text: bool, params: &mut CallParams) -> Result<(), Refusal> {
    /// A field has no more levels than params.
    const NESTING_MAX: usize = 64;
    let text = match &given.value {
        Value::File(bytes) if is_text => bytes,
        Value::File(bytes) => {
            return params.write_part(bytes, None);
        }
        Value::Json(text) => *text,
        Value::Text(text) => text,
    };
    let is_json = !matches!(given.value, Value::Text(_) | Value::File(_)) || !is_text;
    if is_json && json::validate(text, NESTING_MAX).is_ok() {
        params.text.extend_from_slice(text);
    } else if matches!(given.value, Value::Json(_)) {
        return Err(Refusal::invalid(format!("{}: expected JSON", given.name)));
    } else {
        let text = std::str::from_utf8(text)
            .map_err(|_| Refusal::invalid(format!("{}: expected UTF-8", given.name)))?;
        write_string(&mut params.text, text);
    }
    Ok(())
}

/// Writes params of JSON, with those of the query among them.
fn write_json(
    body: &[u8],
    query: &[Given<'_>],
    kinds: &dyn ParamKinds,
    params: &mut CallParams,
    limits: &Limits,
) -> Result<(), Refusal> {
    json::validate(body, limits.nesting_max)
        .map_err(|fault| Refusal { status: 400, error: RpcError::parse(fault, limits) })?;
    let text = body.trim_ascii();
    match Reader::new(text).kind() {
        ValueKind::Object if query.is_empty() => params.text.extend_from_slice(text),
        ValueKind::Object => {
            let inner = text.strip_prefix(b"{").and_then(|text| text.strip_suffix(b"}"));
            let inner = inner.unwrap_or_default().trim_ascii();
            write_members(query, kinds, params)?;
            if !inner.is_empty() {
                params.text.push(b',');
                params.text.extend_from_slice(inner);
            }
            params.text.push(b'}');
        }
        ValueKind::Array if query.is_empty() => params.text.extend_from_slice(text),
        ValueKind::Array => {
            let problem = "params in the query go with an object, which has their names";
            return Err(Refusal::invalid(problem));
        }
        _ => {
            let problem = "expected an object of params, or an array of them by position";
            return Err(Refusal::invalid(problem));
        }
    }
    Ok(())
}

/// Writes a file as the first param.
fn write_single(
    body: &[u8],
    tensor: Option<Tensor>,
    query: &[Given<'_>],
    kinds: &dyn ParamKinds,
    params: &mut CallParams,
) -> Result<(), Refusal> {
    if query.is_empty() {
        params.text.push(b'[');
        params.write_part(body, tensor)?;
        params.text.push(b']');
        return Ok(());
    }
    let name = kinds.first().ok_or_else(|| {
        Refusal::invalid("params in the query need a function whose params have names")
    })?;
    if query.iter().any(|given| given.name == name) {
        return Err(Refusal::invalid(format!("{name}: is the body, and in the query")));
    }
    params.begin_member(&name);
    params.write_part(body, tensor)?;
    write_fields(query, kinds, params)
}

/// The array that headers describe; `None` without them.
fn read_tensor(head: &Head<'_>, body: &[u8]) -> Result<Option<Tensor>, Refusal> {
    let Some(dtype) = head.header(DTYPE) else {
        return match head.header(SHAPE) {
            None => Ok(None),
            Some(_) => Err(Refusal::invalid(format!("{SHAPE}: expected {DTYPE}, too"))),
        };
    };
    let dtype = dtype_named(dtype).ok_or_else(|| {
        Refusal::invalid(format!("{DTYPE}: expected a name of NumPy, such as float32"))
    })?;
    let shape = match head.header(SHAPE) {
        None => vec![body.len() / usize::from(dtype.item_bytes).max(1)],
        Some(text) => read_shape(text).ok_or_else(|| {
            Refusal::invalid(format!("{SHAPE}: expected at most {DIMENSIONS_MAX} numbers: 2,3"))
        })?,
    };
    let tensor = Tensor { dtype, shape, is_fortran: false };
    if tensor.bytes() != Some(body.len()) {
        let problem = format!("{SHAPE}: the body has {} bytes", body.len());
        return Err(Refusal::invalid(problem));
    }
    Ok(Some(tensor))
}

fn read_shape(text: &[u8]) -> Option<Vec<usize>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let sides = text.split(|&byte| byte == b',').map(|side| {
        let digits = side.trim_ascii();
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
    });
    sides
        .take(DIMENSIONS_MAX + 1)
        .collect::<Option<Vec<_>>>()
        .filter(|it| it.len() <= DIMENSIONS_MAX)
}
