//! Errors of the default loader.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use ucall_pickle::Error;

/// The reason why a pickle is refused.
pub(super) enum Refused {
    /// An invalid operation, or a passed limit.
    Pickle(Error),
    /// Invalid arguments or state.
    Because(String),
    /// An exception of Python code.
    Raised(PyErr),
}

impl Refused {
    /// Converts it to `RefusedError`, except for exceptions that end the program, such as
    /// `KeyboardInterrupt`.
    #[cold]
    pub(super) fn into_error(self, py: Python<'_>) -> PyErr {
        let ends_the_program = self.ends_the_program(py);
        let (text, cause) = match self {
            Self::Raised(error) if ends_the_program => return error,
            Self::Pickle(error) => (error.to_string(), None),
            Self::Because(text) => (text, None),
            Self::Raised(error) => {
                let text =
                    error.value(py).str().map_or_else(|_| String::new(), |it| it.to_string());
                (text, Some(error))
            }
        };
        match refused_error(py, &format!("refused: {text}")) {
            Ok(error) | Err(error) => {
                error.set_cause(py, cause);
                error
            }
        }
    }

    pub(super) fn ends_the_program(&self, py: Python<'_>) -> bool {
        matches!(self, Self::Raised(error) if !error.is_instance_of::<PyException>(py))
    }
}

fn refused_error(py: Python<'_>, text: &str) -> PyResult<PyErr> {
    let class = py.import("ucall.queue.errors")?.getattr("RefusedError")?;
    Ok(PyErr::from_value(class.call1((py.None(), text))?))
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Pickle(error)
    }
}

impl From<PyErr> for Refused {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

/// Refuses a pickle with this message.
#[cold]
pub(super) fn because(text: impl Into<String>) -> Refused {
    Refused::Because(text.into())
}
