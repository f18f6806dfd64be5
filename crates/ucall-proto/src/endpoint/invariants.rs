//! What must hold for any bytes at all. The property tests and the fuzz targets call these.

use std::sync::Arc;

use super::body::ParamKinds;
use super::inference::{self, InferenceModel, InputForm, ModelInput};
use super::{CallParams, ParamKind, body};
use crate::http1::{HeadLimits, parse_head};
use crate::json;
use crate::{Limits, MemoryBudget};

/// A model with an input of each form, which is named by one letter.
fn model() -> Arc<InferenceModel> {
    use InputForm::{Array, Bytes, BytesList, List, Scalar, Text, Texts};
    let forms = [Array, Scalar, Text, Bytes, List, Texts, BytesList].into_iter().zip('a'..);
    Arc::new(InferenceModel {
        name: "m".to_owned(),
        method: "m".to_owned(),
        inputs: forms.map(|(form, name)| ModelInput { name: name.into(), form }).collect(),
        outputs: Vec::new(),
        returns_items: false,
        metadata: String::new(),
        config: String::new(),
    })
}

/// Reads a request of a model, with the length of its JSON as the header would have it. The params
/// are valid, and have no more bytes than the request can have described.
///
/// # Panics
/// If they are not.
pub fn check_inference(json_length: Option<&[u8]>, request: &[u8]) {
    let limits = Limits::default();
    if let Ok((params, reply)) =
        inference::read_split(&model(), json_length, request, &limits, &MemoryBudget::default())
    {
        check_params(params, request, &limits);
        let out = reply.response(Ok(b"[1,2]"), &[], limits.reply_bytes_max).into_text();
        assert!(out.starts_with(b"HTTP/1.1 "));
    }
}

/// Reads a whole request of a function: a head and its body. The params are valid.
///
/// # Panics
/// If they are not.
pub fn check_body(request: &[u8]) {
    struct Kinds;

    impl ParamKinds for Kinds {
        fn kind(&self, name: &str) -> ParamKind {
            match name {
                "text" => ParamKind::Text,
                "texts" => ParamKind::List { is_text: true },
                "list" => ParamKind::List { is_text: false },
                _ => ParamKind::Json,
            }
        }

        fn first(&self) -> Option<String> {
            Some("first".to_owned())
        }
    }

    let limits = Limits::default();
    let Ok(Some(head)) = parse_head(request, &HeadLimits::default()) else { return };
    let body = request.get(head.len()..).unwrap_or_default();
    if let Ok(read) = body::read(&head, body, &Kinds, &limits, &MemoryBudget::default()) {
        check_params(read.params, request, &limits);
    }
}

fn check_params(params: CallParams, request: &[u8], limits: &Limits) {
    let (text, parts) = params.finish();
    assert_eq!(json::validate(&text, limits.nesting_max + 1), Ok(()));
    assert!(text.starts_with(b"{") || text.starts_with(b"["));
    let parts = parts.as_ref();
    let parts = (0..).map_while(|at| parts?.get(at));
    let mut bytes = 0;
    for (at, part) in parts.enumerate() {
        let place = format!("{{\"$part\":{at}}}");
        assert!(memchr::memmem::find(&text, place.as_bytes()).is_some());
        if let Some(tensor) = part.tensor {
            assert_eq!(tensor.bytes(), Some(part.bytes.len()));
        }
        bytes += part.bytes.len();
    }
    // A digit and a comma of a list become eight bytes.
    assert!(bytes <= 4 * request.len() + 8);
}
