//! Bodies that are params, and results that are bodies.

use ucall_buffer::Bytes;

use super::ParamKind;
use super::request::{BodyRequest, ParamKinds, read};
use crate::arrays::{DType, Kind, Tensor, npy, safetensors};
use crate::endpoint::Refusal;
use crate::http1::{HeadLimits, parse_head};
use crate::rpc::{ResultPart, RpcError};
use crate::{Limits, MemoryBudget};

/// A function of an image, a text, texts and numbers.
struct Function;

impl ParamKinds for Function {
    fn kind(&self, name: &str) -> ParamKind {
        match name {
            "text" => ParamKind::Text,
            "texts" => ParamKind::List { is_text: true },
            "files" => ParamKind::List { is_text: false },
            _ => ParamKind::Json,
        }
    }

    fn first(&self) -> Option<String> {
        Some("image".to_owned())
    }
}

type Part = (Vec<u8>, Option<Tensor>);

fn request(target: &str, headers: &str, body: &[u8]) -> Result<BodyRequest, Refusal> {
    let text = format!("POST {target} HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
    let head = parse_head(text.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
    read(&head, body, &Function, &Limits::default(), &MemoryBudget::default())
}

/// The text of the params, and the parts; or the status.
fn params(target: &str, headers: &str, body: &[u8]) -> Result<(String, Vec<Part>), u16> {
    let BodyRequest { params, .. } =
        request(target, headers, body).map_err(|refusal| refusal.status)?;
    let (text, parts) = params.finish();
    let parts = parts.as_ref();
    let read = (0..).map_while(|at| parts?.get(at));
    let parts = read.map(|part| (part.bytes.to_vec(), part.tensor.cloned())).collect();
    Ok((String::from_utf8(text).expect("UTF-8"), parts))
}

fn json(target: &str, headers: &str, body: &str) -> Result<String, u16> {
    let (text, parts) = params(target, headers, body.as_bytes())?;
    assert!(parts.is_empty());
    Ok(text)
}

fn tensor(kind: Kind, item_bytes: u8, shape: &[usize]) -> Tensor {
    let dtype = DType { kind, item_bytes, is_big_endian: false };
    Tensor { dtype, shape: shape.to_vec(), is_fortran: false }
}

const JSON: &str = "Content-Type: application/json\r\n";

#[test]
fn json_and_the_query_are_params() {
    for (target, headers, body, text) in [
        ("/f", JSON, r#" {"a":1} "#, r#"{"a":1}"#),
        ("/f", JSON, "[1,2]", "[1,2]"),
        ("/f", "Content-Type: application/json; charset=utf-8\r\n", "{}", "{}"),
        ("/f", "Content-Type: application/ld+json\r\n", "{}", "{}"),
        ("/f", "", r#"{"a":1}"#, r#"{"a":1}"#),
        ("/f", "Content-Type: application/x-www-form-urlencoded\r\n", "[1]", "[1]"),
        ("/f", JSON, "", "{}"),
        ("/f", "", "", "{}"),
        ("/f?", "", "", "{}"),
        ("/f?a=1&text=1&b=x%20y+z&c", "", "", r#"{"a":1,"b":"x y z","c":"","text":"1"}"#),
        ("/f?texts=1&a=[1]&texts=2", "", "", r#"{"a":[1],"texts":["1","2"]}"#),
        ("/f?texts=1", "", "", r#"{"texts":["1"]}"#),
        ("/f?files=[1,2]", "", "", r#"{"files":[1,2]}"#),
        ("/f?x=1&x=2", "", "", r#"{"x":[1,2]}"#),
        ("/f?x=1", JSON, r#"{ "a":1 }"#, r#"{"x":1,"a":1}"#),
        ("/f?x=1", JSON, "{ }", r#"{"x":1}"#),
    ] {
        assert_eq!(json(target, headers, body).as_deref(), Ok(text), "{target} {body}");
    }
    let many = format!("/f?{}", "a=1&".repeat(1_024));
    assert!(json(&many, "", "").is_ok() && json(&format!("{many}a=1"), "", "") == Err(400));
}

#[test]
fn files_and_arrays_are_the_first_param() {
    let png = "Content-Type: image/png\r\n";
    let part = |bytes: &[u8], tensor| vec![(bytes.to_vec(), tensor)];
    assert_eq!(
        params("/f", png, b"\xffpng"),
        Ok((r#"[{"$part":0}]"#.into(), part(b"\xffpng", None)))
    );
    assert_eq!(
        params("/f?width=9", png, b"p"),
        Ok((r#"{"image":{"$part":0},"width":9}"#.into(), part(b"p", None)))
    );
    let octets = "Content-Type: application/octet-stream\r\n";
    assert_eq!(params("/f", octets, b"ab").unwrap().1, part(b"ab", None));
    let npy = "Content-Type: application/x-npy\r\n";
    assert_eq!(params("/f", npy, b"").unwrap().1, part(b"", None));
    let typed = |dtype: &str, shape: &str, body: &[u8]| {
        let headers = format!("{octets}Ucall-Dtype: {dtype}\r\n{shape}");
        params("/f", &headers, body).map(|(_, parts)| parts[0].1.clone().expect("a tensor"))
    };
    assert_eq!(typed("float32", "", &[0; 8]), Ok(tensor(Kind::Float, 4, &[2])));
    assert_eq!(
        typed("uint8", "ucall-shape: 2, 3\r\n", &[0; 6]),
        Ok(tensor(Kind::UInt, 1, &[2, 3]))
    );
    assert_eq!(typed("bool", "Ucall-Shape:\r\n", &[0]), Ok(tensor(Kind::Bool, 1, &[])));
    assert_eq!(typed("bfloat16", "", &[0; 2]), Ok(tensor(Kind::BFloat, 2, &[1])));
    assert_eq!(
        typed("complex128", "Ucall-Shape: 0,9\r\n", b""),
        Ok(tensor(Kind::Complex, 16, &[0, 9]))
    );
    for (dtype, shape) in [
        ("float32", "Ucall-Shape: 3\r\n"),
        ("float32", "Ucall-Shape: -2\r\n"),
        ("float32", "Ucall-Shape: +2\r\n"),
        ("float32", "Ucall-Shape: 2,\r\n"),
        ("uint8", "Ucall-Shape: 9223372036854775808,2\r\n"),
        ("uint8", "Ucall-Shape: 18446744073709551616\r\n"),
        ("float24", ""),
        ("<f4", ""),
        ("object", ""),
    ] {
        assert_eq!(typed(dtype, shape, &[0; 8]), Err(400), "{dtype} {shape}");
    }
    let sides = |count: usize| format!("Ucall-Shape: 8{}\r\n", ",1".repeat(count - 1));
    assert!(typed("uint8", &sides(64), &[0; 8]).is_ok());
    assert_eq!(typed("uint8", &sides(65), &[0; 8]), Err(400));
    assert_eq!(typed("float64", "", &[0; 9]), Err(400), "no whole items");
    assert_eq!(params("/f", &format!("{octets}Ucall-Shape: 2\r\n"), b"ab"), Err(400));
    assert_eq!(params("/f?image=1", png, b"p"), Err(400));
}

#[test]
fn arrays_and_fields_have_names() {
    let int = DType { kind: Kind::Int, item_bytes: 1, is_big_endian: false };
    let file =
        [safetensors::header(&[("b", int, &[2]), ("a", int, &[])]).unwrap(), b"xyz".to_vec()];
    let headers = "Content-Type: application/safetensors\r\n";
    let (text, parts) = params("/f?n=1", headers, &file.concat()).unwrap();
    assert_eq!(text, r#"{"b":{"$part":0},"a":{"$part":1},"n":1}"#);
    let expected = [
        (b"xy".to_vec(), Some(tensor(Kind::Int, 1, &[2]))),
        (b"z".to_vec(), Some(tensor(Kind::Int, 1, &[]))),
    ];
    assert_eq!(parts, expected);
    assert_eq!(params("/f", headers, b"\0\0\0\0\0\0\0\x80{}"), Err(400));

    let field = |head: &str, value: &str| {
        format!("--x\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    };
    let form = |fields: &[String]| {
        let body = fields.concat() + "--x--\r\n";
        params("/f?q=1", "Content-Type: multipart/form-data; boundary=x\r\n", body.as_bytes())
    };
    let (text, parts) = form(&[
        field("name=image; filename=a.png\r\nContent-Type: image/png", "png"),
        field("name=text", "12"),
        field("name=width", "12"),
        field("name=options\r\nContent-Type: application/json", r#"{"a":[1]}"#),
        field("name=files; filename=1", "1"),
        field("name=texts", "a"),
        field("name=other", "a b"),
    ])
    .unwrap();
    let expected = [
        r#"{"files":[{"$part":0}],"image":{"$part":1},"options":{"a":[1]},"other":"a b","#,
        r#""q":1,"text":"12","texts":["a"],"width":12}"#,
    ]
    .concat();
    assert_eq!(text, expected);
    assert_eq!(parts, [(b"1".to_vec(), None), (b"png".to_vec(), None)]);
    let (text, _) =
        form(&[field("name=files; filename=1", "1"), field("name=files; filename=2", "2")])
            .unwrap();
    assert_eq!(text, r#"{"files":[{"$part":0},{"$part":1}],"q":1}"#);
    assert_eq!(form(&[field("name=a\r\nContent-Type: application/json", "{")]), Err(400));
    assert_eq!(form(&vec![field("name=files", "1"); 1_025]), Err(400));
}

#[test]
fn wrong_requests_get_a_status() {
    for (target, headers, body, status) in [
        ("/f", JSON, "{", 400),
        ("/f", JSON, "1", 400),
        ("/f", JSON, "{}{}", 400),
        ("/f?a=1", JSON, "[1]", 400),
        ("/f?%2=1", "", "", 400),
        ("/f?%ff=1", "", "", 400),
        ("/f", "Content-Type: text/plain\r\n", "a", 415),
        ("/f", "", "a=1", 415),
        ("/f", "Content-Type: application/msgpack\r\n", "{}", 415),
        ("/f", "Content-Type: multipart/form-data\r\n", "{}", 400),
        ("/f", "Accept: text/html\r\n", "", 406),
    ] {
        assert_eq!(json(target, headers, body), Err(status), "{headers} {body}");
    }
    let deep = "[".repeat(129) + &"]".repeat(129);
    assert_eq!(json("/f", JSON, &deep), Err(400));
    assert!(json("/f", JSON, &deep[1..257]).is_ok());
}

/// The head and the body of the response to a caller that accepts this.
fn replied(accept: &str, result: &str, parts: &[ResultPart]) -> (String, Vec<u8>) {
    let headers = format!("Accept: {accept}\r\n");
    let BodyRequest { reply, .. } = request("/f", &headers, b"").expect("a request");
    let out = reply.response(Ok(result.as_bytes()), parts, 1 << 10).into_text();
    let at = memchr::memmem::find(&out, b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8(out[..at].to_vec()).expect("UTF-8");
    assert!(head.contains(&format!("Content-Length: {}\r\n", out.len() - at)), "{head}");
    (head, out[at..].to_vec())
}

fn parts() -> Vec<ResultPart> {
    let columns = Tensor { is_fortran: true, ..tensor(Kind::UInt, 1, &[2, 2]) };
    let part = |tensor, bytes| ResultPart { tensor, bytes: Bytes::from_static(bytes) };
    vec![part(Some(columns), &[1, 3, 2, 4]), part(None, b"\x89PNG\r\n\x1a\n")]
}

#[test]
fn results_are_what_their_callers_accept() {
    let both = r#"{"a":{"$part":0},"b":"{\"$part\":1}","c":[{"$part":1},{"$part":7}]}"#;
    let text = r#"{"a":[[1,2],[3,4]],"b":"{\"$part\":1}","c":["iVBORw0KGgo=",{"$part":7}]}"#;
    for accept in ["*/*", "application/json", "text/html, application/x-npy, */*;q=0.1"] {
        let (head, body) = replied(accept, both, &parts());
        assert!(head.contains("Content-Type: application/json\r\n"), "{head}");
        assert_eq!(String::from_utf8_lossy(&body), text);
    }
    let (array, image) = (r#"{"$part":0}"#, r#"{"$part":1}"#);
    let (head, body) = replied("application/x-npy, application/json;q=0.5", array, &parts());
    let (read, items) = npy::split(&body).expect("a file");
    assert!(head.contains("application/x-npy"), "{head}");
    assert_eq!((Some(read), items), (parts()[0].tensor.clone(), &[1, 3, 2, 4][..]));
    let (head, body) = replied("application/octet-stream", array, &parts());
    assert!(head.contains("Ucall-Dtype: uint8\r\nUcall-Shape: 2,2\r\n"), "{head}");
    assert_eq!(body, [1, 2, 3, 4]);
    let (head, body) = replied("application/octet-stream", image, &parts());
    assert!(!head.contains("Ucall-") && body.starts_with(b"\x89PNG"), "{head}");
    for accept in ["image/*", "image/png", "image/jpeg, image/png;q=0.5"] {
        let (head, body) = replied(accept, image, &parts());
        assert!(head.contains("Content-Type: image/png\r\n"), "{head}");
        assert_eq!(body, b"\x89PNG\r\n\x1a\n");
    }
    let (_, body) = replied("application/safetensors", r#"{"x":{"$part":0},"y":1.5}"#, &parts());
    let read = safetensors::read(&body, 2).expect("a file");
    let find = |name| read.iter().find(|it| it.name == name).expect("an array");
    let (x, y) = (find("x"), find("y"));
    assert_eq!((&body[x.range.clone()], &x.tensor.shape[..]), (&[1, 2, 3, 4][..], &[2, 2][..]));
    assert_eq!(body[y.range.clone()], 1.5_f64.to_le_bytes());
    assert!(y.range.start.is_multiple_of(8));
}

#[test]
fn results_that_are_not_accepted_get_406() {
    let (array, image) = (r#"{"$part":0}"#, r#"{"$part":1}"#);
    for (accept, result, status) in [
        ("application/x-npy", "1", 406),
        ("application/x-npy", image, 406),
        ("application/octet-stream", "[]", 406),
        ("image/jpeg", image, 406),
        ("image/png", array, 406),
        ("application/safetensors", r#"["a"]"#, 406),
        ("application/safetensors", "null", 406),
        ("application/safetensors", "1", 200),
        ("application/x-npy, */*;q=0.1", "1", 200),
    ] {
        let (head, _) = replied(accept, result, &parts());
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{accept} {result}: {head}");
    }
}

#[test]
fn results_that_json_does_not_have_get_an_error() {
    let nan = f32::NAN.to_le_bytes().to_vec();
    let part = ResultPart { tensor: Some(tensor(Kind::Float, 4, &[1])), bytes: nan.into() };
    let long = ResultPart {
        tensor: Some(tensor(Kind::Bool, 1, &[400])),
        bytes: Bytes::from_static(&[0; 400]),
    };
    let (array, text) = (r#"{"$part":0}"#, format!("\"{}\"", "a".repeat(1 << 10)));
    for (result, parts, reason) in [
        (array, vec![part], "no NaN"),
        (array, vec![long], "max_reply_bytes"),
        (&text, vec![], "max_reply_bytes"),
    ] {
        let (head, body) = replied("*/*", result, &parts);
        assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
        let body = String::from_utf8_lossy(&body);
        assert!(
            body.starts_with("{\"error\":{\"code\":-32603,") && body.contains(reason),
            "{body}"
        );
    }
}

#[test]
fn errors_of_calls_get_the_status_of_their_code() {
    let BodyRequest { reply, .. } = request("/f", "", b"").expect("a request");
    for (code, status) in [
        (RpcError::INVALID_REQUEST, 400),
        (RpcError::UNAUTHORIZED, 403),
        (RpcError::METHOD_NOT_FOUND, 404),
        (RpcError::INVALID_PARAMS, 422),
        (RpcError::INTERNAL_ERROR, 500),
        (RpcError::UPSTREAM_UNAVAILABLE, 502),
        (RpcError::DRAINING, 503),
        (RpcError::DEADLINE_PASSED, 504),
        (404, 404),
        (409, 409),
        (429, 429),
        (200, 500),
        (418, 500),
        (1, 500),
    ] {
        let out =
            reply.response(Err(&RpcError::new(code, "m").expected("d")), &[], 1 << 10).into_text();
        let text = String::from_utf8(out).expect("UTF-8");
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
        let body = format!(r#"{{"error":{{"code":{code},"message":"m","data":"d"}}}}"#);
        assert!(text.ends_with(&body), "{text}");
    }
}
