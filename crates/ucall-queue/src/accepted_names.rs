//! The names of classes and functions that a side accepts in messages.
//!
//! Each side announces its list on each link, and again when it changes. A put checks the names of
//! its message against the list of the peer. Names that every side accepts are on no list.
//!
//! The body of the frame is text: an entry a line, which is a name, or a prefix of names and `*`.
#![forbid(unsafe_code)]

use hashbrown::HashSet;

use crate::frame::{Header, Kind, ProtocolError};

/// Bytes of a list. A longer one is announced as [`AcceptedNames::Unknown`].
pub(crate) const NAMES_BYTES_MAX: usize = 32 * 1024;

/// Of the number of the frame: the list is complete.
const IS_LIST: u64 = 1;

/// The names that a side accepts in messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AcceptedNames {
    /// Only the side itself can decide.
    #[default]
    Unknown,
    /// These names, such as `app.Job`, and those under a prefix, such as `app*`.
    Listed(HashSet<Box<str>>),
}

impl AcceptedNames {
    /// Whether a message with this name may be sent.
    pub fn may_accept(&self, name: &str) -> bool {
        let Self::Listed(names) = self else { return true };
        let dots = name.match_indices('.').map(|(at, _)| at);
        let is_under = |end| {
            let prefix = name.get(..end).unwrap_or_default();
            names.contains(format!("{prefix}*").as_str())
        };
        names.contains(name) || dots.chain([name.len()]).any(is_under)
    }

    pub(crate) fn write(&self, output: &mut Vec<u8>) {
        let text = match self {
            Self::Listed(names) => names.iter().map(|name| &**name).collect::<Vec<_>>().join("\n"),
            Self::Unknown => String::new(),
        };
        let is_list = *self != Self::Unknown && text.len() <= NAMES_BYTES_MAX;
        let text = if is_list { text } else { String::new() };
        let number = if is_list { IS_LIST } else { 0 };
        output.extend(Header::control(Kind::Accepts, number, text.len()).write());
        output.extend(text.as_bytes());
    }

    pub(crate) fn read(header: &Header, body: &[u8]) -> Result<Self, ProtocolError> {
        if header.sequence != IS_LIST {
            return Ok(Self::Unknown);
        }
        let text = str::from_utf8(body).map_err(|_| ProtocolError::Malformed)?;
        Ok(Self::Listed(text.lines().map(Into::into).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str]) -> AcceptedNames {
        AcceptedNames::Listed(names.iter().map(|&name| name.into()).collect())
    }

    fn round_trip(names: &AcceptedNames) -> AcceptedNames {
        let mut written = Vec::new();
        names.write(&mut written);
        let (head, body) = written.split_first_chunk().unwrap();
        AcceptedNames::read(&Header::read(head).unwrap(), body).unwrap()
    }

    #[test]
    fn lists_round_trip() {
        for names in [listed(&[]), listed(&["app.Job", "lib*"]), AcceptedNames::Unknown] {
            assert_eq!(round_trip(&names), names);
        }
    }

    #[test]
    fn a_list_is_bounded() {
        let fits = "x".repeat(NAMES_BYTES_MAX);
        assert_eq!(round_trip(&listed(&[&fits])), listed(&[&fits]));
        let too_long = "x".repeat(NAMES_BYTES_MAX + 1);
        assert_eq!(round_trip(&listed(&[&too_long])), AcceptedNames::Unknown);
    }

    #[test]
    fn a_prefix_ends_at_a_dot() {
        let names = listed(&["app.Job", "lib*"]);
        for name in ["app.Job", "lib.User", "lib.sub.User", "lib"] {
            assert!(names.may_accept(name), "{name}");
        }
        for name in ["app.Jobs", "app", "app.Job.Inner", "library.User", ""] {
            assert!(!names.may_accept(name), "{name}");
        }
        assert!(AcceptedNames::Unknown.may_accept("app.Job"));
    }
}
