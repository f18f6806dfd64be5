//! What is kept of a registered function: how its params are named, converted and passed.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::convert::Convert;

/// A registered function.
#[derive(Debug)]
pub(crate) struct Procedure {
    /// As it is called, for the log.
    pub(crate) name: String,
    pub(crate) callable: Py<PyAny>,
    /// `None` when the callable does not tell (some builtins): it is called as the params are.
    pub(crate) signature: Option<Signature>,
}

/// How a function takes its arguments.
///
/// Positional parameters come first, keyword-only ones behind them: that is the order of the
/// slots, and so of the arguments. Missing ones are filled from the defaults, so that all the
/// positional ones go by position, and the names of the others never change.
#[derive(Debug, Default)]
pub(crate) struct Signature {
    pub(crate) params: Vec<Param>,
    /// How many of them go by position.
    pub(crate) positional: usize,
    /// What `*args` takes.
    pub(crate) rest: Option<Convert>,
    /// What `**kwargs` takes.
    pub(crate) extra: Option<Convert>,
    /// The names of the keyword-only ones, in order; `None` when there are none.
    pub(crate) names: Option<Py<PyTuple>>,
}

/// One named parameter.
#[derive(Debug)]
pub(crate) struct Param {
    pub(crate) name: String,
    /// Whether it may be given by name.
    pub(crate) by_name: bool,
    pub(crate) convert: Convert,
    pub(crate) default: Option<Py<PyAny>>,
}

/// A parameter as `python/ucall/_signature.py` describes it: name, kind, what it takes, whether it
/// has a default, and that.
type Description<'py> = (String, u8, Bound<'py, PyAny>, bool, Py<PyAny>);

/// The values of `inspect.Parameter.kind`.
mod kind {
    pub(super) const POSITIONAL_ONLY: u8 = 0;
    pub(super) const POSITIONAL_OR_KEYWORD: u8 = 1;
    pub(super) const VAR_POSITIONAL: u8 = 2;
    pub(super) const KEYWORD_ONLY: u8 = 3;
    pub(super) const VAR_KEYWORD: u8 = 4;
}

impl Signature {
    /// Reads a description of all parameters, in the order of the signature.
    pub(crate) fn of_description(description: &Bound<'_, PyList>) -> PyResult<Self> {
        let mut signature = Self::default();
        for param in description {
            signature.add(param.extract::<Description<'_>>()?)?;
        }
        signature.names = signature.keyword_names(description.py())?;
        Ok(signature)
    }

    fn add(&mut self, (name, kind, takes, optional, default): Description<'_>) -> PyResult<()> {
        let convert = Convert::of_description(&takes)?;
        match kind {
            kind::VAR_POSITIONAL => self.rest = Some(convert),
            kind::VAR_KEYWORD => self.extra = Some(convert),
            kind::POSITIONAL_ONLY | kind::POSITIONAL_OR_KEYWORD | kind::KEYWORD_ONLY => {
                self.positional += usize::from(kind != kind::KEYWORD_ONLY);
                let by_name = kind != kind::POSITIONAL_ONLY;
                let default = optional.then_some(default);
                self.params.push(Param { name, by_name, convert, default });
            }
            _ => return Err(PyValueError::new_err(format!("{kind} is no kind of parameter"))),
        }
        Ok(())
    }

    fn keyword_names(&self, py: Python<'_>) -> PyResult<Option<Py<PyTuple>>> {
        let names = self.params.iter().skip(self.positional).map(|param| &param.name);
        if names.len() == 0 {
            return Ok(None);
        }
        Ok(Some(PyTuple::new(py, names)?.unbind()))
    }
}
