//! Writes the results of tools.

use ucall_proto::json::{Reader, ValueKind, write_string};
use ucall_proto::{RpcError, WHOLE_REPLY};

use super::{Tool, ToolForm};

/// The media type of an image whose bytes say it.
const ANY_IMAGE: &str = "image/*";

/// How the base64 of images in each format begins that this server writes.
const IMAGES: [(&[u8], &str); 7] = [
    (b"iVBORw0KGgo", "image/png"),
    (b"/9j/", "image/jpeg"),
    (b"UklGR", "image/webp"),
    (b"R0lGOD", "image/gif"),
    (b"SUkqA", "image/tiff"),
    (b"TU0AK", "image/tiff"),
    (b"Qk", "image/bmp"),
];

/// What a call of a tool is answered with.
pub(super) enum ToolOutcome {
    /// The text of a result is written.
    Result,
    Error(RpcError),
}

/// Appends the result of a tool to `out`, unless the call fails as a request.
pub(super) fn write_outcome(
    out: &mut Vec<u8>,
    outcome: Result<&[u8], RpcError>,
    tool: &Tool,
    is_newest: bool,
) -> ToolOutcome {
    match outcome {
        Ok(result) => match tool.check(result) {
            Ok(()) => write_result(out, result, tool, is_newest),
            Err(mismatch) => {
                let text = format!("The tool's result does not fit its schema: {mismatch}");
                write_failure(out, &RpcError::new(RpcError::INTERNAL_ERROR, text), is_newest);
            }
        },
        Err(error) => match error.code {
            WHOLE_REPLY => return write_whole_reply(out, error),
            RpcError::OVERLOADED | RpcError::DRAINING | RpcError::UNAUTHORIZED => {
                return ToolOutcome::Error(error);
            }
            _ => write_failure(out, &error, is_newest),
        },
    }
    ToolOutcome::Result
}

fn begin(out: &mut Vec<u8>, is_newest: bool) {
    out.extend_from_slice(if is_newest { br#"{"resultType":"complete","# } else { b"{" });
}

fn write_result(out: &mut Vec<u8>, result: &[u8], tool: &Tool, is_newest: bool) {
    match &tool.form {
        ToolForm::Whole => return write_whole_result(out, result, is_newest),
        _ => begin(out, is_newest),
    }
    match &tool.form {
        ToolForm::Value => {
            out.extend_from_slice(br#""structuredContent":{"result":"#);
            out.extend_from_slice(result);
            out.extend_from_slice(b"},");
        }
        ToolForm::Object => {
            out.extend_from_slice(br#""structuredContent":"#);
            out.extend_from_slice(result);
            out.push(b',');
        }
        _ => {}
    }
    out.extend_from_slice(br#""content":["#);
    match &tool.form {
        ToolForm::Image(media) if media == ANY_IMAGE => {
            write_media(out, "image", image_type(result), result);
        }
        ToolForm::Image(media) => write_media(out, "image", media, result),
        ToolForm::Audio(media) => write_media(out, "audio", media, result),
        ToolForm::Blob(media) => {
            out.extend_from_slice(br#"{"type":"resource","resource":{"uri":"#);
            write_string(out, &format!("tool://{}/result", tool.name));
            write_member(out, "mimeType", media);
            out.extend_from_slice(br#","blob":"#);
            out.extend_from_slice(result);
            out.extend_from_slice(b"}}");
        }
        ToolForm::Text if result == b"null" => {}
        _ => write_text(out, result),
    }
    out.extend_from_slice(b"]}");
}

/// A text block: a string as it is, or the JSON of anything else as a string.
fn write_text(out: &mut Vec<u8>, result: &[u8]) {
    out.extend_from_slice(br#"{"type":"text","text":"#);
    if result.starts_with(b"\"") {
        out.extend_from_slice(result);
    } else {
        write_string(out, &String::from_utf8_lossy(result));
    }
    out.push(b'}');
}

/// The media type of an image, by the first bytes of its base64 string.
fn image_type(result: &[u8]) -> &'static str {
    let base64 = result.strip_prefix(b"\"").unwrap_or(result);
    let found = IMAGES.iter().find(|(begin, _)| base64.starts_with(begin));
    found.map_or("application/octet-stream", |(_, media)| media)
}

fn write_media(out: &mut Vec<u8>, kind: &str, media: &str, result: &[u8]) {
    out.extend_from_slice(format!(r#"{{"type":"{kind}","data":"#).as_bytes());
    out.extend_from_slice(result);
    write_member(out, "mimeType", media);
    out.push(b'}');
}

fn write_member(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(format!(r#","{name}":"#).as_bytes());
    write_string(out, value);
}

/// The members of an object, which may say themselves which type of result it is.
fn write_whole_result(out: &mut Vec<u8>, result: &[u8], is_newest: bool) {
    let has_type = Reader::new(result).members([b"resultType"]);
    match has_type {
        Some([None]) if is_newest => {
            let members = result.get(1..).unwrap_or_default();
            begin(out, true);
            if members == b"}" {
                out.pop();
            }
            out.extend_from_slice(members);
        }
        Some(_) => out.extend_from_slice(result),
        None => {
            let text = "The tool returned no object, as its annotation says";
            write_failure(out, &RpcError::new(RpcError::INTERNAL_ERROR, text), is_newest);
        }
    }
}

/// A result that says what failed, so that a model can mend its call.
fn write_failure(out: &mut Vec<u8>, error: &RpcError, is_newest: bool) {
    let mut text = error.message.to_string();
    if let Some(data) = &error.data {
        text.push_str(": ");
        let mut reader = Reader::new(data);
        match reader.kind() {
            ValueKind::String => {
                text.push_str(&String::from_utf8_lossy(&reader.string().unescaped()));
            }
            _ => text.push_str(&String::from_utf8_lossy(data)),
        }
    }
    begin(out, is_newest);
    out.extend_from_slice(br#""content":[{"type":"text","text":"#);
    write_string(out, &text);
    out.extend_from_slice(br#"}],"isError":true}"#);
}

/// A reply that the function has given as a whole.
fn write_whole_reply(out: &mut Vec<u8>, error: RpcError) -> ToolOutcome {
    let data = error.data.as_deref().unwrap_or_default();
    let members = match data.is_empty() {
        true => None,
        false => Reader::new(data).members([b"result", b"error"]),
    };
    match members.unwrap_or_default() {
        [Some(result), _] => {
            out.extend_from_slice(result);
            ToolOutcome::Result
        }
        [_, Some(error)] => ToolOutcome::Error(RpcError::of_object(error)),
        _ => ToolOutcome::Error(RpcError::new(RpcError::INTERNAL_ERROR, "Internal error")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(form: ToolForm) -> Tool {
        Tool { name: "t".into(), method: "m".into(), form, schema: None, headers: Vec::new() }
    }

    fn written(form: ToolForm, result: &str, is_newest: bool) -> String {
        let mut out = Vec::new();
        let outcome = write_outcome(&mut out, Ok(result.as_bytes()), &tool(form), is_newest);
        assert!(matches!(outcome, ToolOutcome::Result));
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    #[test]
    fn each_form_has_its_content() {
        let media = || "image/png".to_owned();
        for (form, result, expected) in [
            (ToolForm::Text, r#""a\"b""#, r#"{"content":[{"type":"text","text":"a\"b"}]}"#),
            (ToolForm::Text, "[1]", r#"{"content":[{"type":"text","text":"[1]"}]}"#),
            (ToolForm::Text, "null", r#"{"content":[]}"#),
            (
                ToolForm::Value,
                "3",
                r#"{"structuredContent":{"result":3},"content":[{"type":"text","text":"3"}]}"#,
            ),
            (
                ToolForm::Object,
                r#"{"a":1}"#,
                r#"{"structuredContent":{"a":1},"content":[{"type":"text","text":"{\"a\":1}"}]}"#,
            ),
            (
                ToolForm::Image(media()),
                r#""aa==""#,
                r#"{"content":[{"type":"image","data":"aa==","mimeType":"image/png"}]}"#,
            ),
            (
                ToolForm::Audio(media()),
                r#""aa==""#,
                r#"{"content":[{"type":"audio","data":"aa==","mimeType":"image/png"}]}"#,
            ),
            (
                ToolForm::Blob(media()),
                r#""aa==""#,
                concat!(
                    r#"{"content":[{"type":"resource","resource":{"uri":"tool://t/result","#,
                    r#""mimeType":"image/png","blob":"aa=="}}]}"#
                ),
            ),
            (ToolForm::Whole, r#"{"content":[]}"#, r#"{"content":[]}"#),
        ] {
            assert_eq!(written(form.clone(), result, false), expected, "{form:?}");
            let newest = expected.replacen('{', r#"{"resultType":"complete","#, 1);
            assert_eq!(written(form.clone(), result, true), newest, "{form:?}");
        }
    }

    #[test]
    fn a_whole_result_keeps_its_type_and_must_be_an_object() {
        assert_eq!(written(ToolForm::Whole, "{}", true), r#"{"resultType":"complete"}"#);
        let required = r#"{"resultType":"input_required","inputRequests":{}}"#;
        assert_eq!(written(ToolForm::Whole, required, true), required);
        assert!(written(ToolForm::Whole, "[]", true).contains(r#""isError":true"#));
    }

    #[test]
    fn a_failure_names_what_was_expected_and_a_refusal_stays_an_error() {
        let failed = |error: RpcError| {
            let mut out = Vec::new();
            let outcome = write_outcome(&mut out, Err(error), &tool(ToolForm::Text), false);
            (String::from_utf8(out).expect("JSON is UTF-8"), outcome)
        };
        let wrong = RpcError::new(RpcError::INVALID_PARAMS, "Invalid params").expected("an int");
        assert_eq!(
            failed(wrong).0,
            r#"{"content":[{"type":"text","text":"Invalid params: an int"}],"isError":true}"#
        );
        for code in [RpcError::OVERLOADED, RpcError::DRAINING, RpcError::UNAUTHORIZED] {
            let (text, outcome) = failed(RpcError::new(code, "no"));
            assert!(
                text.is_empty() && matches!(outcome, ToolOutcome::Error(it) if it.code == code)
            );
        }
        let mut whole = RpcError::new(WHOLE_REPLY, "");
        whole.data = Some(br#"{"result":{"resultType":"input_required"}}"#.to_vec());
        assert_eq!(failed(whole.clone()).0, r#"{"resultType":"input_required"}"#);
        whole.data = Some(br#"{"error":{"code":-32021,"message":"m","data":{"a":1}}}"#.to_vec());
        let ToolOutcome::Error(error) = failed(whole).1 else { panic!("it is an error") };
        assert_eq!((error.code, &*error.message), (-32021, "m"));
        assert_eq!(error.data.as_deref(), Some(&br#"{"a":1}"#[..]));
    }
}
