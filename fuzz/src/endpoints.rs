//! Calls by HTTP requests that are no JSON-RPC: tensors of the Open Inference Protocol, and bodies
//! of functions, forms and safetensors among them.

use ucall_proto::endpoint::invariants::{check_body, check_inference};

/// Reads the input as an inference request, its JSON up to each of its last braces, and as a
/// request with a head.
///
/// # Panics
/// If params of an invalid form come of it.
pub fn run(input: &[u8]) {
    check_inference(None, input);
    let braces = input.iter().enumerate().rev().filter(|(_, byte)| **byte == b'}');
    for (at, _) in braces.take(4) {
        check_inference(Some((at + 1).to_string().as_bytes()), input);
    }
    check_body(input);
}
