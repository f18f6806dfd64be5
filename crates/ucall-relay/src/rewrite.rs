//! What a relay changes in a call: the name of its method, and params that it adds.

use std::borrow::Cow;

use ucall_proto::RpcError;
use ucall_proto::json::{Reader, Text, ValueKind, write_string};

/// The changes of one relay; by default none.
#[derive(Clone, Debug, Default)]
pub struct Rewrite {
    /// The names of callers, and those of upstreams.
    renames: Vec<(String, String)>,
    /// The text of the params that are added, as members of an object without its braces.
    members: Vec<u8>,
    /// Their names.
    names: Vec<Vec<u8>>,
}

impl Rewrite {
    /// Renames methods: `("a", "b")` one, `("a.*", "b.*")` all that begin with `a.`. Adds the
    /// members of `params`, the text of a JSON object, to params by name.
    ///
    /// # Errors
    /// The option, and what was expected.
    pub fn new(renames: Vec<(String, String)>, params: &str) -> Result<Self, String> {
        for (from, to) in &renames {
            let is_pattern = |name: &str| name.ends_with('*');
            let is_name = |name: &str| !name.trim_end_matches('*').contains('*');
            let is_valid = is_name(from) && is_name(to) && is_pattern(from) == is_pattern(to);
            if !is_valid || to.is_empty() || is_reserved(to.as_bytes()) {
                let expected = "rename: expected names such as 'a': 'b' or 'a.*': 'b.*'";
                return Err(format!("{expected}, got {from:?}: {to:?}"));
            }
        }
        let mut reader = Reader::new(params.as_bytes());
        reader.enter();
        let mut names = Vec::new();
        while let Some(name) = reader.next_key() {
            names.push(name.unescaped().into_owned());
            reader.skip();
        }
        let members = params.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let members = members.unwrap_or_default().as_bytes().to_vec();
        Ok(Self { renames, members, names })
    }

    /// The name of a method for upstreams, as within quotes.
    ///
    /// # Errors
    /// The name would be one of the upstream's own methods, which are not relayed.
    pub(crate) fn method<'a>(&self, method: Text<'a>) -> Result<Cow<'a, [u8]>, RpcError> {
        if self.renames.is_empty() {
            return Ok(Cow::Borrowed(method.raw()));
        }
        let name = method.unescaped();
        let Some((to, rest)) = self.find(&name) else { return Ok(Cow::Borrowed(method.raw())) };
        let renamed = [to.as_bytes(), rest].concat();
        if is_reserved(&renamed) || renamed.is_empty() {
            return Err(RpcError::new(RpcError::METHOD_NOT_FOUND, "Method not found"));
        }
        let mut quoted = Vec::new();
        write_string(&mut quoted, &String::from_utf8_lossy(&renamed));
        Ok(Cow::Owned(quoted[1..quoted.len() - 1].to_vec()))
    }

    /// The new name, and the part of `name` that stays after it. The longest beginning counts.
    fn find<'a>(&self, name: &'a [u8]) -> Option<(&str, &'a [u8])> {
        let matches = self.renames.iter().filter_map(|(from, to)| match from.strip_suffix('*') {
            None => (name == from.as_bytes()).then_some((usize::MAX, to.as_str(), &b""[..])),
            Some(prefix) => {
                let rest = name.strip_prefix(prefix.as_bytes())?;
                Some((prefix.len(), to.trim_end_matches('*'), rest))
            }
        });
        let (_, to, rest) = matches.max_by_key(|(len, ..)| *len)?;
        Some((to, rest))
    }

    /// The params for upstreams.
    ///
    /// # Errors
    /// The params are by position, or have a name that the relay sets.
    pub(crate) fn params<'a>(
        &self,
        params: Option<&'a [u8]>,
    ) -> Result<Option<Cow<'a, [u8]>>, RpcError> {
        if self.names.is_empty() {
            return Ok(params.map(Cow::Borrowed));
        }
        let params = params.unwrap_or(b"{}");
        let mut reader = Reader::new(params);
        if reader.kind() != ValueKind::Object {
            return Err(invalid_params("expected params by name"));
        }
        reader.enter();
        let mut is_empty = true;
        while let Some(name) = reader.next_key() {
            reader.skip();
            is_empty = false;
            // Two members with one name would leave the choice to the upstream.
            if let Some(name) = self.names.iter().find(|it| **it == *name.unescaped()) {
                let name = String::from_utf8_lossy(name);
                return Err(invalid_params(&format!("{name}: unexpected, the server sets it")));
            }
        }
        let open = if is_empty { b"{" } else { &params[..params.len() - 1] };
        let comma: &[u8] = if is_empty { b"" } else { b"," };
        Ok(Some(Cow::Owned([open, comma, &self.members, b"}"].concat())))
    }
}

/// Whether a method belongs to a server itself, or to the protocol.
fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(b"rpc.") || name.starts_with(b"$/")
}

fn invalid_params(expected: &str) -> RpcError {
    RpcError::new(RpcError::INVALID_PARAMS, "Invalid params").expected(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(renames: &[(&str, &str)], text: &str) -> Result<String, i64> {
        let renames = renames.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned()));
        let rewrite = Rewrite::new(renames.collect(), "{}").expect("they are valid");
        let quoted = format!("\"{text}\"");
        let renamed = rewrite.method(Reader::new(quoted.as_bytes()).string());
        renamed.map(|name| String::from_utf8_lossy(&name).into_owned()).map_err(|error| error.code)
    }

    #[test]
    fn methods_are_renamed_by_name_or_beginning() {
        let renames = [("a", "b"), ("m.*", "*"), ("m.n.*", "x.*"), ("m.n.o", "\"")];
        for (name, expected) in [
            ("a", "b"),
            ("\\u0061", "b"),
            ("ab", "ab"),
            ("\\u0062", "\\u0062"),
            ("m.add", "add"),
            ("m.n.add", "x.add"),
            ("m.n.o", "\\\""),
        ] {
            assert_eq!(renamed(&renames, name), Ok(expected.to_owned()), "{name}");
        }
        for name in ["m.rpc.discover", "m.$/cancelRequest", "m.", "m.\\u0072pc.discover"] {
            assert_eq!(renamed(&renames, name), Err(RpcError::METHOD_NOT_FOUND), "{name}");
        }
        for (from, to) in [("a", ""), ("a", "b*"), ("a*", "b"), ("*a", "b"), ("a", "rpc.b")] {
            let renames = vec![(from.to_owned(), to.to_owned())];
            assert!(Rewrite::new(renames, "{}").is_err(), "{from} {to}");
        }
    }

    #[test]
    fn params_are_added_to_those_by_name() {
        let rewrite = Rewrite::new(Vec::new(), r#"{"t":"a","u":{"v":{}}}"#).expect("it is valid");
        for (params, expected) in [
            (None, r#"{"t":"a","u":{"v":{}}}"#),
            (Some("{ }"), r#"{"t":"a","u":{"v":{}}}"#),
            (Some(r#"{"x": {"t":1} }"#), r#"{"x": {"t":1} ,"t":"a","u":{"v":{}}}"#),
        ] {
            let found = rewrite.params(params.map(str::as_bytes)).expect("it is valid");
            assert_eq!(String::from_utf8_lossy(&found.expect("it has params")), expected);
        }
        for params in ["[]", r#"{"t":1}"#, r#"{"a":1,"\u0074":1}"#] {
            let error = rewrite.params(Some(params.as_bytes())).expect_err(params);
            assert_eq!(error.code, RpcError::INVALID_PARAMS);
        }
    }
}
