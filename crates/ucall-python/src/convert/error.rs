//! What is wrong with a value, and where.

use std::fmt::Write;

use pyo3::prelude::*;

use super::Convert;

/// Why a value could not be converted.
#[derive(Debug)]
pub(crate) enum ConversionFault {
    /// It is not what it should be.
    Value(Box<Mismatch>),
    /// The reply would grow past its limit.
    TooLarge,
    /// The interpreter raised.
    Raised(Box<PyErr>),
}

/// A value that does not fit, and the way to it.
#[derive(Debug)]
pub(crate) struct Mismatch {
    /// From the innermost outwards.
    steps: Vec<PathStep>,
    message: String,
}

#[derive(Debug)]
enum PathStep {
    Key(String),
    Index(usize),
}

/// More of a key than this is not told back.
const KEY_CHARACTERS_MAX: usize = 64;

impl ConversionFault {
    /// A value that is not what it should be.
    #[cold]
    pub(crate) fn value(message: impl Into<String>) -> Self {
        Self::Value(Box::new(Mismatch { steps: Vec::new(), message: message.into() }))
    }

    /// The same, seen from the list that holds the value.
    #[cold]
    pub(crate) fn at_index(mut self, index: usize) -> Self {
        if let Self::Value(mismatch) = &mut self {
            mismatch.steps.push(PathStep::Index(index));
        }
        self
    }

    /// The same, seen from the dict that holds the value.
    #[cold]
    pub(crate) fn at_key(mut self, key: &[u8]) -> Self {
        if let Self::Value(mismatch) = &mut self {
            mismatch.steps.push(PathStep::Key(String::from_utf8_lossy(key).into_owned()));
        }
        self
    }

    /// The same, told in other words.
    #[cold]
    pub(super) fn with_message(mut self, message: impl FnOnce() -> String) -> Self {
        if let Self::Value(mismatch) = &mut self {
            mismatch.message = message();
        }
        self
    }

    /// The same, seen from an optional parameter of what `inner` takes.
    #[cold]
    pub(super) fn or_none(mut self, inner: &Convert) -> Self {
        if let Self::Value(mismatch) = &mut self
            && mismatch.steps.is_empty()
            && let Some(got) = mismatch.message.strip_prefix(&format!("expected {inner}"))
        {
            mismatch.message = format!("expected {inner} | None{got}");
        }
        self
    }
}

impl Mismatch {
    /// `params.user.tags[2]: expected str, got int`
    pub(crate) fn describe(&self, root: &str) -> String {
        let mut text = root.to_owned();
        for step in self.steps.iter().rev() {
            match step {
                PathStep::Index(index) => {
                    let _ = write!(text, "[{index}]");
                }
                PathStep::Key(key) => push_key(&mut text, key),
            }
        }
        let _ = write!(text, ": {}", self.message);
        text
    }
}

fn push_key(text: &mut String, key: &str) {
    let plain = |letter: char| letter.is_alphanumeric() || letter == '_';
    let excerpt: String = key.chars().take(KEY_CHARACTERS_MAX).collect();
    let is_name = !excerpt.is_empty() && excerpt.chars().all(plain);
    let _ = match (is_name, excerpt.len() == key.len()) {
        (true, true) => write!(text, ".{excerpt}"),
        (true, false) => write!(text, ".{excerpt}…"),
        (false, true) => write!(text, "[{excerpt:?}]"),
        (false, false) => write!(text, "[{excerpt:?}…]"),
    };
}

impl From<PyErr> for ConversionFault {
    #[cold]
    fn from(error: PyErr) -> Self {
        Self::Raised(Box::new(error))
    }
}
