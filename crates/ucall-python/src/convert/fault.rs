//! What is wrong with a value, and where.

use std::fmt::Write;

use pyo3::prelude::*;

use super::Convert;

/// Why a value could not be converted.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It is not what it should be.
    Value(Box<Misfit>),
    /// The reply would grow past its limit.
    TooLarge,
    /// The interpreter raised.
    Raised(Box<PyErr>),
}

/// A value that does not fit, and the way to it.
#[derive(Debug)]
pub(crate) struct Misfit {
    /// From the innermost outwards.
    steps: Vec<Step>,
    what: String,
}

#[derive(Debug)]
enum Step {
    Key(String),
    Index(usize),
}

/// More of a key than this is not told back.
const KEY_CHARACTERS_MAX: usize = 64;

impl Fault {
    /// A value that is not what it should be.
    #[cold]
    pub(crate) fn value(what: impl Into<String>) -> Self {
        Self::Value(Box::new(Misfit { steps: Vec::new(), what: what.into() }))
    }

    /// The same, seen from the list that holds the value.
    #[cold]
    pub(crate) fn at_index(mut self, index: usize) -> Self {
        if let Self::Value(misfit) = &mut self {
            misfit.steps.push(Step::Index(index));
        }
        self
    }

    /// The same, seen from the dict that holds the value.
    #[cold]
    pub(crate) fn at_key(mut self, key: &[u8]) -> Self {
        if let Self::Value(misfit) = &mut self {
            misfit.steps.push(Step::Key(String::from_utf8_lossy(key).into_owned()));
        }
        self
    }

    /// The same, told in other words.
    #[cold]
    pub(super) fn instead(mut self, what: impl FnOnce() -> String) -> Self {
        if let Self::Value(misfit) = &mut self {
            misfit.what = what();
        }
        self
    }

    /// The same, seen from an optional parameter of what `inner` takes.
    #[cold]
    pub(super) fn or_none(mut self, inner: &Convert) -> Self {
        if let Self::Value(misfit) = &mut self
            && misfit.steps.is_empty()
            && let Some(got) = misfit.what.strip_prefix(&format!("expected {inner}"))
        {
            misfit.what = format!("expected {inner} | None{got}");
        }
        self
    }
}

impl Misfit {
    /// `params.user.tags[2]: expected str, got int`
    pub(crate) fn describe(&self, root: &str) -> String {
        let mut text = root.to_owned();
        for step in self.steps.iter().rev() {
            match step {
                Step::Index(index) => {
                    let _ = write!(text, "[{index}]");
                }
                Step::Key(key) => push_key(&mut text, key),
            }
        }
        let _ = write!(text, ": {}", self.what);
        text
    }
}

fn push_key(text: &mut String, key: &str) {
    let plain = |letter: char| letter.is_alphanumeric() || letter == '_';
    let shown: String = key.chars().take(KEY_CHARACTERS_MAX).collect();
    let is_name = !shown.is_empty() && shown.chars().all(plain);
    let _ = match (is_name, shown.len() == key.len()) {
        (true, true) => write!(text, ".{shown}"),
        (true, false) => write!(text, ".{shown}…"),
        (false, true) => write!(text, "[{shown:?}]"),
        (false, false) => write!(text, "[{shown:?}…]"),
    };
}

impl From<PyErr> for Fault {
    #[cold]
    fn from(error: PyErr) -> Self {
        Self::Raised(Box::new(error))
    }
}
