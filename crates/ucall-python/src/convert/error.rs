//! Conversion errors: the fault and its position in the value.

use std::fmt::Write;

use pyo3::prelude::*;

use super::Convert;

/// The reason that a value could not be converted.
#[derive(Debug)]
pub(crate) enum ConversionFault {
    /// The value does not have the expected type.
    Value(Box<Mismatch>),
    /// The reply would exceed its limit.
    TooLarge,
    /// The interpreter raised.
    Raised(Box<PyErr>),
}

/// A fault and the path to it.
#[derive(Debug)]
pub(crate) struct Mismatch {
    /// The path, from the innermost step outwards.
    steps: Vec<PathStep>,
    message: String,
}

#[derive(Debug)]
enum PathStep {
    Key(String),
    Index(usize),
}

/// Keys are quoted up to this length.
const KEY_CHARACTERS_MAX: usize = 64;

impl ConversionFault {
    /// A fault of the value itself.
    #[cold]
    pub(crate) fn value(message: impl Into<String>) -> Self {
        Self::Value(Box::new(Mismatch { steps: Vec::new(), message: message.into() }))
    }

    /// Adds the index of the list item that has the fault.
    #[cold]
    pub(crate) fn at_index(mut self, index: usize) -> Self {
        if let Self::Value(mismatch) = &mut self {
            mismatch.steps.push(PathStep::Index(index));
        }
        self
    }

    /// Adds the key of the dict member that has the fault.
    #[cold]
    pub(crate) fn at_key(mut self, key: &[u8]) -> Self {
        if let Self::Value(mismatch) = &mut self {
            mismatch.steps.push(PathStep::Key(String::from_utf8_lossy(key).into_owned()));
        }
        self
    }

    /// What is wrong with a result or an item, called `root`; or what the interpreter raised.
    pub(crate) fn describe(self, root: &str) -> Result<String, Box<PyErr>> {
        match self {
            Self::Value(mismatch) => Ok(mismatch.describe(root)),
            Self::TooLarge => Ok(format!("{root}: larger than a reply may be (max_reply_bytes)")),
            Self::Raised(error) => Err(error),
        }
    }

    /// Replaces the message.
    #[cold]
    pub(super) fn with_message(mut self, message: impl FnOnce() -> String) -> Self {
        if let Self::Value(mismatch) = &mut self {
            mismatch.message = message();
        }
        self
    }

    /// Adds `None` to the expected types, for an optional parameter that takes `inner`.
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
