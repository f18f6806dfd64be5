//! Requests of a model, and their responses.

use std::sync::Arc;

use proptest::prelude::*;
use ucall_buffer::Bytes;

use super::datatype::Datatype;
use super::request::read_split;
use super::{InferenceModel, InferencePath, InputForm, ModelInput, ModelOutput};
use crate::arrays::{DType, Kind, Tensor};
use crate::rpc::{ResultPart, RpcError};
use crate::{Limits, MemoryBudget};

fn model() -> Arc<InferenceModel> {
    let input = |name: &str, form| ModelInput { name: name.to_owned(), form };
    let inputs = vec![
        input("array", InputForm::Array),
        input("number", InputForm::Scalar),
        input("text", InputForm::Text),
        input("bytes", InputForm::Bytes),
        input("list", InputForm::List),
        input("texts", InputForm::Texts),
        input("files", InputForm::BytesList),
    ];
    let fp32 = Datatype::named(b"FP32");
    let outputs = vec![ModelOutput { name: "score".to_owned(), datatype: fp32 }];
    Arc::new(InferenceModel {
        name: "m".to_owned(),
        method: "method".to_owned(),
        inputs,
        outputs,
        returns_items: false,
        metadata: String::new(),
        config: String::new(),
    })
}

type Part = (Vec<u8>, Option<Tensor>);

/// The text of the params, and the parts; or the problem.
fn read(text: &str, tail: &[u8]) -> Result<(String, Vec<Part>), String> {
    let body = [text.as_bytes(), tail].concat();
    let length = text.len().to_string();
    let length = (!tail.is_empty()).then_some(length.as_bytes());
    match read_split(&model(), length, &body, &Limits::default(), &MemoryBudget::default()) {
        Err(refusal) => {
            assert_eq!(refusal.status, 400);
            Err(refusal.error.message.into_owned())
        }
        Ok((params, _)) => {
            let (text, parts) = params.finish();
            let parts = parts.as_ref();
            let read = (0..).map_while(|at| parts?.get(at));
            let read = read.map(|part| (part.bytes.to_vec(), part.tensor.cloned())).collect();
            Ok((String::from_utf8(text).expect("UTF-8"), read))
        }
    }
}

fn input(name: &str, datatype: &str, shape: &str, rest: &str) -> String {
    format!(r#"{{"name":"{name}","datatype":"{datatype}","shape":{shape},{rest}}}"#)
}

fn request(inputs: &[String]) -> String {
    format!(r#"{{"inputs":[{}]}}"#, inputs.join(","))
}

fn one(name: &str, datatype: &str, shape: &str, data: &str) -> Result<(String, Vec<Part>), String> {
    read(&request(&[input(name, datatype, shape, &format!("\"data\":{data}"))]), b"")
}

/// [`one`] with the data as bytes.
fn binary(
    name: &str,
    datatype: &str,
    shape: &str,
    data: &[u8],
) -> Result<(String, Vec<Part>), String> {
    let size = format!(r#""parameters":{{"binary_data_size":{}}}"#, data.len());
    read(&request(&[input(name, datatype, shape, &size)]), data)
}

fn tensor(kind: Kind, item_bytes: u8, shape: &[usize]) -> Option<Tensor> {
    let dtype = DType { kind, item_bytes, is_big_endian: false };
    Some(Tensor { dtype, shape: shape.to_vec(), is_fortran: false })
}

#[test]
fn paths_name_models_and_what_is_asked_of_them() {
    use InferencePath::{Infer, Model, ModelConfig, ModelReady, Server};
    let name = || "m".to_owned();
    for (path, read) in [
        ("/v2", Some(Server)),
        ("/v2/models/m", Some(Model(name()))),
        ("/v2/models/m/versions/1", Some(Model(name()))),
        ("/v2/models/m/ready", Some(ModelReady(name()))),
        ("/v2/models/m/config", Some(ModelConfig(name()))),
        ("/v2/models/m/versions/1/ready", Some(ModelReady(name()))),
        ("/v2/models/m/infer", Some(Infer(name()))),
        ("/v2/models/m/versions/1/infer", Some(Infer(name()))),
        ("/v2/models/a%2Fb%20c/infer", Some(Infer("a/b c".to_owned()))),
        ("/v2/models/%ff/infer", None),
        ("/v2/models/%2/infer", None),
        ("/v2/models", None),
        ("/v2/models/m/versions/2/infer", None),
        ("/v2/models/m/versions", None),
        ("/v2/models/m/generate", None),
        ("/v2/models/m/infer/", None),
        ("/v2/", None),
        ("/v2x", None),
        ("/v2/repository/index", None),
    ] {
        assert_eq!(InferencePath::read(path.as_bytes()), read, "{path}");
    }
}

#[test]
fn inputs_become_params_of_their_forms() {
    let (text, parts) = one("array", "INT16", "[1,2]", "[[1,-2]]").expect("an array");
    assert_eq!(text, r#"{"array":{"$part":0}}"#);
    assert_eq!(parts, [(vec![1, 0, 0xfe, 0xff], tensor(Kind::Int, 2, &[1, 2]))]);
    for (name, datatype, shape, data, expected) in [
        ("number", "FP64", "[1]", "[2.5]", "2.5"),
        ("number", "BOOL", "[]", "[true]", "true"),
        ("number", "UINT64", "[1,1]", "[[18446744073709551615]]", "18446744073709551615"),
        ("list", "INT8", "[2,2]", "[1,2,3,4]", "[[1,2],[3,4]]"),
        ("list", "FP32", "[0]", "[]", "[]"),
        ("text", "BYTES", "[1]", r#"["a\"\u00e9"]"#, "\"a\\\"\u{e9}\""),
        ("texts", "BYTES", "[2]", r#"["a","b"]"#, r#"["a","b"]"#),
    ] {
        let (text, parts) = one(name, datatype, shape, data).expect(name);
        assert_eq!((text, parts.len()), (format!("{{\"{name}\":{expected}}}"), 0));
    }
    let (text, parts) = one("files", "BYTES", "[2]", r#"["a",""]"#).expect("a list");
    assert_eq!(text, r#"{"files":[{"$part":0},{"$part":1}]}"#);
    assert_eq!(parts, [(b"a".to_vec(), None), (Vec::new(), None)]);
    assert_eq!(read(r#"{"inputs":[]}"#, b""), Ok(("{}".to_owned(), vec![])));
    assert_eq!(read("{}", b""), Ok(("{}".to_owned(), vec![])));
}

#[test]
fn binary_tensors_follow_in_the_order_of_the_inputs() {
    let size = |size| format!(r#""parameters":{{"binary_data_size":{size}}}"#);
    let text = request(&[
        input("bytes", "BYTES", "[1]", &size(6)),
        input("number", "INT8", "[1]", "\"data\":[7]"),
        input("array", "FP16", "[2]", &size(4)),
        input("text", "BYTES", "[1]", &size(5)),
    ]);
    let (text, parts) = read(&text, b"\x02\0\0\0\xff\xfeabcd\x01\0\0\0x").expect("a request");
    assert_eq!(text, r#"{"bytes":{"$part":0},"number":7,"array":{"$part":1},"text":"x"}"#);
    let half = tensor(Kind::Float, 2, &[2]);
    assert_eq!(parts, [(vec![0xff, 0xfe], None), (b"abcd".to_vec(), half)]);
    let bfloat = binary("array", "BF16", "[0,9]", b"").expect("no items");
    assert_eq!(bfloat.1, [(vec![], tensor(Kind::BFloat, 2, &[0, 9]))]);
}

#[test]
fn lengths_that_lie_are_refused() {
    assert!(binary("array", "INT8", "[3]", b"abc").is_ok());
    for (shape, data) in [
        ("[3]", &b"ab"[..]),
        ("[2]", b"abc"),
        ("[9223372036854775807]", b"ab"),
        ("[9223372036854775808]", b"ab"),
        ("[4294967296,4294967296,4294967296]", b"ab"),
        ("[-1]", b"ab"),
        ("[2.0]", b"ab"),
        ("[\"2\"]", b"ab"),
        ("2", b"ab"),
        (&format!("[{}1]", "1,".repeat(64)), b"a"),
    ] {
        assert!(binary("array", "INT8", shape, data).is_err(), "{shape}");
    }
    assert!(binary("array", "INT8", &format!("[{}1]", "1,".repeat(63)), b"a").is_ok());
    assert!(binary("array", "INT64", "[2305843009213693952]", b"").is_err(), "2^64 bytes");
    for size in ["4", "18446744073709551616", "-1", "1.0", "\"3\"", "null"] {
        let size = format!(r#""parameters":{{"binary_data_size":{size}}}"#);
        assert!(read(&request(&[input("array", "INT8", "[3]", &size)]), b"abc").is_err(), "{size}");
    }
    // Bytes that belong to no input.
    assert!(read(&request(&[input("array", "INT8", "[1]", "\"data\":[1]")]), b"a").is_err());
    for data in [&b"\x03\0\0\0ab"[..], b"\xff\xff\xff\xffab", b"\x01\0\0", b"\x01\0\0\0ab", b""] {
        assert!(binary("bytes", "BYTES", "[1]", data).is_err(), "{data:?}");
    }
    assert!(binary("files", "BYTES", "[1]", b"\0\0\0\0\0\0\0\0").is_err(), "two items");
    for length in ["-1", "+1", "1 ", "", "a", "18446744073709551616", "3"] {
        let read = read_split(
            &model(),
            Some(length.as_bytes()),
            b"{}",
            &Limits::default(),
            &MemoryBudget::default(),
        );
        assert!(read.is_err(), "{length}");
    }
}

#[test]
fn wrong_requests_are_refused_with_the_reason() {
    for (refused, reason) in [
        (read("[]", b""), "no JSON object"),
        (read("{", b""), "no JSON object"),
        (read(r#"{"id":1}"#, b""), "id: expected a string"),
        (read(r#"{"inputs":{}}"#, b""), "expected a list of objects"),
        (read(r#"{"inputs":[1]}"#, b""), "expected a list of objects"),
        (read(r#"{"inputs":[{}]}"#, b""), "expected names"),
        (read(r#"{"parameters":[]}"#, b""), "parameters: expected an object"),
        (read(r#"{"parameters":{"binary_data_output":1}}"#, b""), "expected a bool"),
        (read(r#"{"outputs":[{}]}"#, b""), "outputs: expected names"),
        (
            read(r#"{"outputs":[{"name":"a","parameters":{"classification":3}}]}"#, b""),
            "only binary_data",
        ),
        (one("other", "INT8", "[1]", "[1]"), "no such input"),
        (one("array", "FP8", "[1]", "[1]"), "datatype"),
        (one("array", "BYTES", "[1]", "[\"a\"]"), "expected numbers"),
        (one("text", "INT8", "[1]", "[1]"), "expected BYTES"),
        (one("array", "INT8", "[2]", "[1]"), "expected 2 items"),
        (one("array", "INT8", "[2]", "[1,2,3]"), "expected 2 items"),
        (one("array", "INT8", "[1]", "[128]"), "expected items of INT8"),
        (one("array", "FP16", "[1]", "[1]"), "sent as binary data"),
        (one("array", "INT8", "[1]", "1"), "expected a list"),
        (one("number", "INT8", "[2]", "[1,2]"), "expected one item"),
        (one("list", "INT8", "[]", "[1]"), "a dimension at least"),
        (one("list", "INT8", "[9999999999,0]", "[]"), "expected an item"),
        (binary("list", "FP32", "[1]", &f32::NAN.to_le_bytes()), "no NaN"),
        (binary("text", "BYTES", "[1]", b"\x01\0\0\0\xff"), "expected UTF-8"),
        (
            read(&request(&[input("array", "INT8", "[1]", r#""parameters":{"a":1}"#)]), b""),
            "expected data",
        ),
        (
            read(&request(&vec![input("array", "INT8", "[1]", "\"data\":[1]"); 2]), b""),
            "given twice",
        ),
    ] {
        let problem = refused.expect_err(reason);
        assert!(problem.contains(reason), "{problem}: {reason}");
    }
}

/// The head and the body of a response.
fn replied(request: &str, result: &str, parts: &[ResultPart]) -> (String, Vec<u8>) {
    let (_, reply) = read_split(
        &model(),
        None,
        request.as_bytes(),
        &Limits::default(),
        &MemoryBudget::default(),
    )
    .expect("a request");
    let out = reply.response(Ok(result.as_bytes()), parts, 1 << 10).into_text();
    split(&out)
}

fn split(response: &[u8]) -> (String, Vec<u8>) {
    let at = memchr::memmem::find(response, b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8(response[..at].to_vec()).expect("UTF-8");
    let length = format!("Content-Length: {}\r\n", response.len() - at);
    assert!(head.contains(&length), "{head}");
    (head, response[at..].to_vec())
}

fn array_part() -> ResultPart {
    ResultPart { tensor: tensor(Kind::Int, 2, &[1, 2]), bytes: Bytes::from_static(&[1, 0, 2, 0]) }
}

#[test]
fn outputs_are_json_or_binary_as_requests_ask() {
    let (head, body) = replied(r#"{"id":"\u0061"}"#, r#"{"$part":0}"#, &[array_part()]);
    assert!(head.contains("Content-Type: application/json\r\n"), "{head}");
    let expected = [
        r#"{"model_name":"m","model_version":"1","id":"\u0061","outputs":"#,
        r#"[{"name":"score","datatype":"INT16","shape":[1,2],"data":[1,2]}]}"#,
    ]
    .concat();
    assert_eq!(String::from_utf8_lossy(&body), expected);
    let binary = r#"{"parameters":{"binary_data_output":true}}"#;
    let result = r#"{"a":{"$part":0},"b":"\u00e9","score":1}"#;
    let (head, body) = replied(binary, result, &[array_part()]);
    let output = |name: &str, datatype: &str, shape: &str, size: usize| {
        format!(r#"{{"name":"{name}","datatype":"{datatype}","shape":{shape},"#)
            + &format!(r#""parameters":{{"binary_data_size":{size}}}}}"#)
    };
    let outputs = [
        output("a", "INT16", "[1,2]", 4),
        output("b", "BYTES", "[1]", 6),
        output("score", "FP32", "[1]", 4),
    ];
    let text =
        format!(r#"{{"model_name":"m","model_version":"1","outputs":[{}]}}"#, outputs.join(","));
    assert!(head.contains("application/octet-stream"), "{head}");
    assert!(head.contains(&format!("Inference-Header-Content-Length: {}\r\n", text.len())));
    let tail = [&[1, 0, 2, 0, 2, 0, 0, 0, 0xc3, 0xa9][..], &1_f32.to_le_bytes()].concat();
    assert_eq!(body, [text.as_bytes(), &tail].concat());
    let (_, body) = replied(r#"{"id":""}"#, "1", &[]);
    assert!(!String::from_utf8_lossy(&body).contains("\"id\""), "no id");
    // The request's order, without the others, each as it asks.
    let chosen = [
        r#"{"parameters":{"binary_data_output":true},"outputs":[{"name":"b","#,
        r#""parameters":{"binary_data":false}},{"name":"a"}]}"#,
    ];
    let (_, body) = replied(&chosen.concat(), result, &[array_part()]);
    let body = String::from_utf8_lossy(&body);
    assert!(body.contains("\"data\":[\"\u{e9}\"]},{\"name\":\"a\""), "{body}");
    assert!(!body.contains("score"), "{body}");
}

#[test]
fn results_that_are_no_tensors_get_an_error() {
    let bytes = ResultPart { tensor: None, bytes: Bytes::from_static(b"\xff") };
    let complex =
        ResultPart { tensor: tensor(Kind::Complex, 8, &[0]), bytes: Bytes::from_static(b"") };
    let parts = [bytes, complex];
    for (request, result, status, reason) in [
        ("{}", "{\"a\":null}", 500, "has null"),
        ("{}", "[1,\"a\"]", 500, "several types"),
        ("{}", "{\"$part\":0}", 500, "no text in UTF-8"),
        ("{}", "{\"$part\":1}", 500, "is complex"),
        (r#"{"outputs":[{"name":"b"}]}"#, "1", 400, "has no output"),
        ("{}", &format!("[{}1]", "1,".repeat(1000)), 500, "max_reply_bytes"),
        // The second one is too much already, so the others are not made.
        (
            &[
                r#"{"parameters":{"binary_data_output":true},"#,
                r#""outputs":[{"name":"a"},{"name":"a"},{"name":"b"}]}"#,
            ]
            .concat(),
            &format!(r#"{{"a":[{}1],"b":null}}"#, "1,".repeat(100)),
            500,
            "max_reply_bytes",
        ),
    ] {
        let (head, body) = replied(request, result, &parts);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        let body = String::from_utf8_lossy(&body);
        assert!(body.starts_with("{\"error\":\"") && body.contains(reason), "{body}");
    }
    assert!(replied("{}", "null", &[]).1.ends_with(b"\"outputs\":[]}"));
}

#[test]
fn errors_of_calls_get_a_status() {
    let (_, reply) =
        read_split(&model(), None, b"{}", &Limits::default(), &MemoryBudget::default())
            .expect("a request");
    for (code, status) in [
        (RpcError::INVALID_PARAMS, 400),
        (RpcError::METHOD_NOT_FOUND, 404),
        (RpcError::OVERLOADED, 503),
        (RpcError::DEADLINE_PASSED, 504),
        (RpcError::INTERNAL_ERROR, 500),
        (404, 404),
        (7, 500),
    ] {
        let error = RpcError::new(code, "It \"failed\"").expected("x");
        let out = reply.response(Err(&error), &[], 1 << 10).into_text();
        let (head, body) = split(&out);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert_eq!(head.contains("Retry-After: 1\r\n"), status == 503);
        assert_eq!(body, br#"{"error":"It \"failed\": x"}"#);
    }
}

proptest! {
    #[test]
    fn any_request_is_read_or_refused(
        text in "\\PC{0,80}",
        inputs in prop::collection::vec((0..8_usize, 0..14_usize, 0..4_u64, 0..20_u64), 0..4),
        tail: Vec<u8>,
    ) {
        let names = ["array", "number", "text", "bytes", "list", "texts", "files", "x"];
        let datatypes = ["BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32",
            "UINT64", "FP16", "FP32", "FP64", "BF16", "BYTES"];
        let inputs: Vec<_> = inputs.iter().map(|&(name, datatype, side, size)| {
            let size = format!(r#""parameters":{{"binary_data_size":{size}}}"#);
            input(names[name], datatypes[datatype], &format!("[{side}]"), &size)
        }).collect();
        let _ = read(&text, &tail);
        if let Ok((text, parts)) = read(&request(&inputs), &tail) {
            prop_assert!(crate::json::validate(text.as_bytes(), 8).is_ok());
            let parts: usize = parts.iter().map(|(bytes, _)| bytes.len()).sum();
            prop_assert!(parts <= tail.len());
        }
    }

    #[test]
    fn binary_items_are_the_same_as_those_of_json(items: Vec<f64>) {
        let json: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
        prop_assume!(items.iter().all(|item| item.is_finite()));
        let shape = format!("[{}]", items.len());
        let bytes: Vec<u8> = items.iter().flat_map(|item| item.to_le_bytes()).collect();
        let data = format!("[{}]", json.join(","));
        let read = binary("array", "FP64", &shape, &bytes);
        prop_assert_eq!(one("array", "FP64", &shape, &data), read);
    }
}
