//! The server as a protected resource of OAuth 2.0: its metadata (RFC 9728) and its challenges.
//!
//! A client without a token gets a 401 that names the metadata, and finds there which server issues
//! tokens for which resource. The worker answers both without its handler, because anybody may ask.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use ucall_proto::RpcError;
use ucall_proto::http1::{CallPaths, Head};
use ucall_proto::json::write_string;

use crate::mcp;

/// Where the metadata of a resource without a path is; that of others adds their path.
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// What a server tells clients that have no token for it.
#[derive(Debug)]
pub struct ProtectedResource {
    /// The origin and the path of its address, if the program names it. Otherwise it is the address
    /// that the client has used.
    address: Option<(String, String)>,
    authorization_servers: Vec<String>,
    /// The scopes that every request needs.
    scopes: Vec<String>,
    /// The scopes that any request may need.
    supported: Mutex<BTreeSet<String>>,
    /// The paths of the resources of a server, if it does not name one: its calls, and MCP.
    paths: Vec<String>,
}

/// Scopes that the caller of a procedure needs and does not have.
#[derive(Clone, Debug)]
pub struct MissingScopes {
    /// All that the procedure needs.
    pub required: Arc<[String]>,
    /// The reply to the call. It names those that are missing.
    pub error: RpcError,
}

impl MissingScopes {
    /// A call of a procedure that needs `required`. There are some that `has` denies.
    pub fn find(required: &Arc<[String]>, has: impl Fn(&str) -> bool) -> Option<Self> {
        let missing: Vec<&String> = required.iter().filter(|scope| !has(scope)).collect();
        if missing.is_empty() {
            return None;
        }
        let mut data = br#"{"missing_scopes":"#.to_vec();
        write_list(&mut data, missing.into_iter());
        data.push(b'}');
        let mut error = RpcError::new(RpcError::UNAUTHORIZED, "Insufficient scope");
        error.data = Some(data);
        Some(Self { required: required.clone(), error })
    }
}

impl ProtectedResource {
    /// A resource with this `https` or `http` address, if that is known, and these servers that
    /// issue tokens. `scopes` are those that every request needs, and calls are at `call_paths`.
    pub fn new(
        address: Option<&str>,
        authorization_servers: Vec<String>,
        scopes: Vec<String>,
        call_paths: &CallPaths,
    ) -> Self {
        let bases = call_paths.bases();
        let paths = bases.flat_map(|base| [base.to_owned(), format!("{base}{}", mcp::PATH)]);
        let paths = paths.collect();
        let address = address.map(|address| {
            let authority = address.find("://").map_or(0, |at| at + "://".len());
            let rest = address.get(authority..).unwrap_or_default();
            let path = rest.find(['/', '?']).map_or(address.len(), |at| authority + at);
            let (origin, path) = address.split_at(path);
            (origin.to_owned(), path.to_owned())
        });
        let supported = Mutex::new(scopes.iter().cloned().collect());
        Self { address, authorization_servers, scopes, supported, paths }
    }

    /// Adds scopes that a procedure needs to the metadata.
    pub fn add_scopes(&self, scopes: &[String]) {
        let mut supported = self.supported.lock().unwrap_or_else(PoisonError::into_inner);
        supported.extend(scopes.iter().cloned());
    }

    /// The paths of the metadata.
    pub(crate) fn paths(&self) -> BTreeSet<String> {
        let own = self.address.as_ref().map(|(_, path)| metadata_path(path));
        self.paths.iter().map(|path| metadata_path(path)).chain(own).collect()
    }

    /// The `WWW-Authenticate` of a 401, or of a 403 because a procedure needs more scopes.
    pub(crate) fn challenge(
        &self,
        head: &Head<'_>,
        origin: Option<&str>,
        scopes: Option<&[String]>,
    ) -> String {
        let error = match scopes {
            Some(_) => Some("insufficient_scope"),
            // RFC 6750, section 3: a request without a token gets no error code.
            None => head.header("Authorization").map(|_| "invalid_token"),
        };
        let needed: BTreeSet<&String> =
            self.scopes.iter().chain(scopes.unwrap_or_default()).collect();
        let needed: Vec<&str> = needed.into_iter().map(String::as_str).collect();
        let metadata = self.metadata(head, origin);
        let parameters = [
            ("error", error.map(str::to_owned)),
            ("scope", (!needed.is_empty()).then(|| needed.join(" "))),
            ("resource_metadata", metadata),
        ];
        let parameters = parameters.iter().filter_map(|(name, value)| {
            let value = value.as_ref()?;
            Some(format!("{name}=\"{value}\""))
        });
        let parameters: Vec<String> = parameters.collect();
        match &parameters[..] {
            [] => "Bearer".to_owned(),
            parameters => format!("Bearer {}", parameters.join(", ")),
        }
    }

    /// The address of the metadata for the path of a request.
    fn metadata(&self, head: &Head<'_>, origin: Option<&str>) -> Option<String> {
        if let Some((origin, path)) = &self.address {
            return Some(format!("{origin}{}", metadata_path(path)));
        }
        let (path, _) = head.path_and_query();
        let path = self.paths.iter().find(|it| it.as_bytes() == path).or(self.paths.first())?;
        Some(format!("{}{}", origin?, metadata_path(path)))
    }

    /// The response of one of [`ProtectedResource::paths`].
    pub(crate) fn response(&self, head: Option<&Head<'_>>, origin: Option<&str>) -> Vec<u8> {
        let path = head.map(|head| head.path_and_query().0).unwrap_or_default();
        let path = path.strip_prefix(WELL_KNOWN.as_bytes()).unwrap_or_default();
        let resource = match (&self.address, origin) {
            (Some((origin, path)), _) => format!("{origin}{path}"),
            (None, Some(origin)) => format!("{origin}{}", String::from_utf8_lossy(path)),
            (None, None) => {
                return response(
                    "400 Bad Request",
                    "text/plain; charset=utf-8",
                    "expected a Host\n",
                );
            }
        };
        let supported = self.supported.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = br#"{"resource":"#.to_vec();
        write_string(&mut text, &resource);
        text.extend_from_slice(br#","authorization_servers":"#);
        write_list(&mut text, self.authorization_servers.iter());
        if !supported.is_empty() {
            text.extend_from_slice(br#","scopes_supported":"#);
            write_list(&mut text, supported.iter());
        }
        text.extend_from_slice(br#","bearer_methods_supported":["header"]}"#);
        response("200 OK", "application/json", &String::from_utf8_lossy(&text))
    }
}

/// RFC 9728, section 3.1: a path that is `/` alone is left out.
fn metadata_path(path: &str) -> String {
    format!("{WELL_KNOWN}{}", if path == "/" { "" } else { path })
}

fn write_list<'a>(text: &mut Vec<u8>, items: impl Iterator<Item = &'a String>) {
    text.push(b'[');
    for (at, item) in items.enumerate() {
        if at > 0 {
            text.push(b',');
        }
        write_string(text, item);
    }
    text.push(b']');
}

/// It depends on headers that a cache may not compare.
fn response(status: &str, content_type: &str, text: &str) -> Vec<u8> {
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nContent-Type: {content_type}\r\n\
         Cache-Control: no-store\r\n\r\n{text}"
    )
    .into_bytes()
}
