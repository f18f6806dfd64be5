//! The functions of a server as models of the Open Inference Protocol.
//!
//! Calls of models come to [`Dispatch`](crate::dispatch::Dispatch) as those of their functions do:
//! `endpoint` of ucall-proto reads their tensors. What is asked besides is answered here, without
//! the handler.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::sync::Arc;
use ucall_proto::http1::{Head, Method};
use ucall_proto::{InferenceModel, InferencePath};

pub(crate) const LIVE: &str = "/v2/health/live";
pub(crate) const READY: &str = "/v2/health/ready";
/// The paths of all else.
pub(crate) const PATHS: [&str; 2] = ["/v2", "/v2/models/*"];

/// Whether a path is the root of the protocol, or below it.
pub(crate) fn is_inference_path(path: &[u8]) -> bool {
    path.strip_prefix(b"/v2").is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
}

/// The models of a server.
#[derive(Debug)]
pub(crate) struct InferenceTable {
    /// The metadata of the server, as JSON text.
    server: String,
    models: HashMap<Box<str>, Arc<InferenceModel>, FixedState>,
}

impl InferenceTable {
    pub(crate) fn new(server: &str, models: Vec<InferenceModel>) -> Self {
        let named = models.into_iter().map(|model| (model.name.as_str().into(), Arc::new(model)));
        Self { server: server.to_owned(), models: named.collect() }
    }

    pub(crate) fn model(&self, name: &str) -> Option<&Arc<InferenceModel>> {
        self.models.get(name)
    }

    /// The response to a request that calls no model. `problem` is why the server takes no calls,
    /// if it does not.
    pub(crate) fn response(&self, head: &Head<'_>, problem: Option<&str>) -> Vec<u8> {
        let path = InferencePath::read(head.path_and_query().0);
        let model = |name: &str| {
            self.model(name).ok_or_else(|| refused("404 Not Found", &format!("no model {name:?}")))
        };
        let answered = match path {
            None => Err(refused("404 Not Found", "no such path of the protocol, or version")),
            Some(InferencePath::Infer(_)) => Err(not_allowed("POST")),
            _ if head.method() == Method::Post => Err(not_allowed("GET")),
            Some(InferencePath::Server) => Ok(self.server.clone()),
            Some(InferencePath::Model(name)) => model(&name).map(|model| model.metadata.clone()),
            Some(InferencePath::ModelConfig(name)) => model(&name).map(|it| it.config.clone()),
            Some(InferencePath::ModelReady(name)) => model(&name).and_then(|model| match problem {
                None => Ok(format!("{{\"name\":{:?},\"ready\":true}}", model.name)),
                Some(problem) => Err(not_ready(problem)),
            }),
        };
        match answered {
            Ok(body) => response("200 OK", "", &body),
            Err(response) => response,
        }
    }
}

/// The response of `/v2/health/live`.
pub(crate) fn liveness() -> Vec<u8> {
    response("200 OK", "", r#"{"live":true}"#)
}

/// The response of `/v2/health/ready`. `problem` is why the server is not ready, if it is not.
pub fn inference_readiness(problem: Option<&str>) -> Vec<u8> {
    match problem {
        None => response("200 OK", "", r#"{"ready":true}"#),
        Some(problem) => not_ready(problem),
    }
}

fn not_ready(problem: &str) -> Vec<u8> {
    refused("503 Service Unavailable", &format!("not ready: {problem}"))
}

fn not_allowed(allow: &str) -> Vec<u8> {
    let body = error(&format!("requests of this path are sent with {allow}"));
    response("405 Method Not Allowed", &format!("Allow: {allow}, OPTIONS\r\n"), &body)
}

fn refused(status: &str, problem: &str) -> Vec<u8> {
    response(status, "", &error(problem))
}

fn error(problem: &str) -> String {
    let mut body = b"{\"error\":".to_vec();
    ucall_proto::json::write_string(&mut body, problem);
    body.push(b'}');
    String::from_utf8_lossy(&body).into_owned()
}

#[cold]
fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n\
         {headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucall_proto::http1::{HeadLimits, parse_head};

    fn answer(method: &str, path: &str, problem: Option<&str>) -> String {
        let model = InferenceModel {
            name: "m".to_owned(),
            method: "m".to_owned(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            returns_items: false,
            metadata: "metadata".to_owned(),
            config: "config".to_owned(),
        };
        let table = InferenceTable::new("server", vec![model]);
        let text = format!("{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = parse_head(text.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
        String::from_utf8(table.response(&head, problem)).unwrap()
    }

    #[test]
    fn each_path_has_its_answer() {
        for (method, path, problem, status, body) in [
            ("GET", "/v2", None, 200, "server"),
            ("GET", "/v2/models/m", None, 200, "metadata"),
            ("GET", "/v2/models/m/config", None, 200, "config"),
            ("GET", "/v2/models/m/ready", None, 200, r#"{"name":"m","ready":true}"#),
            ("GET", "/v2/models/m/ready", Some("drain"), 503, r#"{"error":"not ready: drain"}"#),
            ("GET", "/v2/models/m", Some("drain"), 200, "metadata"),
            ("GET", "/v2/models/x", None, 404, r#"{"error":"no model \"x\""}"#),
            ("GET", "/v2/models/x/ready", None, 404, r#"{"error":"no model \"x\""}"#),
            ("POST", "/v2/models/m", None, 405, "sent with GET"),
            ("GET", "/v2/models/m/infer", None, 405, "sent with POST"),
            ("GET", "/v2/models/m/versions/9", None, 404, "or version"),
        ] {
            let response = answer(method, path, problem);
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {response}");
            assert!(response.contains(body), "{path}: {response}");
        }
    }
}
