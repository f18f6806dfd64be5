//! Conversion errors: the fault and its position in the value.

use std::fmt::Write;

use pyo3::prelude::*;

use super::Convert;

/// The reason that a value could not be converted.
#[derive(Debug)]
pub(crate) enum ConversionFault {
    /// The value does not have the expected type.
    Value(Box<Mismatches>),
    /// The reply would exceed its limit.
    TooLarge,
    /// The interpreter raised.
    Raised(Box<PyErr>),
}

/// The faults of a value, in order: at least one.
#[derive(Debug)]
pub(crate) struct Mismatches {
    first: Mismatch,
    others: Vec<Mismatch>,
}

/// A fault and the path to it.
#[derive(Debug)]
struct Mismatch {
    /// The path, from the innermost step outwards.
    steps: Vec<PathStep>,
    message: String,
}

#[derive(Debug)]
enum PathStep {
    Key(String),
    Index(usize),
}

/// An error lists at most this many faults.
pub(super) const FAULTS_MAX: usize = 20;

/// The faults after the first one are listed up to this length, so that the error fits a datagram.
const LIST_BYTES_MAX: usize = 1_000;

/// Keys are quoted up to this length.
const KEY_CHARACTERS_MAX: usize = 64;

impl ConversionFault {
    /// A fault of the value itself.
    #[cold]
    pub(crate) fn value(message: impl Into<String>) -> Self {
        let first = Mismatch { steps: Vec::new(), message: message.into() };
        Self::Value(Box::new(Mismatches { first, others: Vec::new() }))
    }

    /// Adds the index of the list item that has the fault.
    #[cold]
    pub(crate) fn at_index(mut self, index: usize) -> Self {
        if let Self::Value(mismatches) = &mut self {
            mismatches.for_each(|mismatch| mismatch.steps.push(PathStep::Index(index)));
        }
        self
    }

    /// Adds the key of the dict member that has the fault.
    #[cold]
    pub(crate) fn at_key(mut self, key: &[u8]) -> Self {
        if let Self::Value(mismatches) = &mut self {
            let key = String::from_utf8_lossy(key);
            mismatches.for_each(|mismatch| mismatch.steps.push(PathStep::Key(key.to_string())));
        }
        self
    }

    /// What is wrong with a result or an item, called `root`; or what the interpreter raised.
    pub(crate) fn describe(self, root: &str) -> Result<String, Box<PyErr>> {
        match self {
            Self::Value(mismatches) => Ok(mismatches.describe(root)),
            Self::TooLarge => Ok(format!("{root}: larger than a reply may be (max_reply_bytes)")),
            Self::Raised(error) => Err(error),
        }
    }

    /// Replaces the message.
    #[cold]
    pub(super) fn with_message(mut self, message: impl FnOnce() -> String) -> Self {
        if let Self::Value(mismatches) = &mut self {
            mismatches.first.message = message();
        }
        self
    }

    /// Adds `None` to the expected types, for an optional parameter that takes `inner`.
    #[cold]
    pub(super) fn or_none(mut self, inner: &Convert) -> Self {
        if let Self::Value(mismatches) = &mut self
            && let mismatch = &mut mismatches.first
            && mismatch.steps.is_empty()
            && let Some(got) = mismatch.message.strip_prefix(&format!("expected {inner}"))
        {
            mismatch.message = format!("expected {inner} | None{got}");
        }
        self
    }
}

impl Mismatches {
    /// A line for each fault, and a last one if there are more than are listed.
    pub(crate) fn describe(&self, root: &str) -> String {
        let mut text = self.first.describe(root);
        for (index, mismatch) in self.others.iter().enumerate() {
            let line = mismatch.describe(root);
            if index + 1 == FAULTS_MAX || text.len() + line.len() > LIST_BYTES_MAX {
                text.push_str("\nand more");
                break;
            }
            text.push('\n');
            text.push_str(&line);
        }
        text
    }

    /// Adds later faults.
    pub(super) fn append(&mut self, later: Self) {
        self.others.push(later.first);
        self.others.extend(later.others);
    }

    /// Whether there are more faults than an error lists.
    pub(super) fn are_too_many(&self) -> bool {
        self.others.len() >= FAULTS_MAX
    }

    fn for_each(&mut self, change: impl FnMut(&mut Mismatch)) {
        std::iter::once(&mut self.first).chain(&mut self.others).for_each(change);
    }
}

impl Mismatch {
    /// `params.user.tags[2]: expected str, got int`
    fn describe(&self, root: &str) -> String {
        let mut text = root.to_owned();
        for step in self.steps.iter().rev() {
            match step {
                PathStep::Index(index) => {
                    let _ = write!(text, "[{index}]");
                }
                PathStep::Key(key) => push_key(&mut text, key),
            }
        }
        // A decoder's own message may have several lines.
        let _ = write!(text, ": {}", self.message.replace('\n', " "));
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
