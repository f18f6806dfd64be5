//! Whether the server at an address takes frames, as far as a client knows.
//!
//! | state       | event                                            | next        |
//! |-------------|--------------------------------------------------|-------------|
//! | `Unknown`   | a result in base64 was read as bytes             | `Wanted`    |
//! | `Unknown`   | a short call with binary params is sent as JSON  | `Wanted`    |
//! | `Unknown`   | a long call with binary params asks the server   | `Asking`    |
//! | `Wanted`    | any call asks the server                         | `Asking`    |
//! | `Asking`    | the server takes frames                          | `Yes`       |
//! | `Asking`    | it does not                                      | `No`        |
//! | `Asking`    | that is not known, as of a server that is full   | `Unknown`   |
//! | `Yes`       | the server refuses a frame                       | `Unknown`   |
//!
//! Only in `Yes` a call is a frame. While one call asks, the others are JSON.

use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    ucall._core,
    Undecided,
    PyException,
    "A request has parts, and it is not known yet whether the server takes frames."
);

create_exception!(
    ucall._core,
    FrameRefused,
    Undecided,
    "The server has refused a frame, and has run nothing of it."
);

const UNKNOWN: u8 = 0;
const WANTED: u8 = 1;
const ASKING: u8 = 2;
const YES: u8 = 3;
const NO: u8 = 4;

/// How a request is written now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// As JSON.
    Json,
    /// As a frame.
    Frame,
    /// As JSON; if it is long because of binary params, the server has to be asked first.
    Undecided,
    /// The server has to be asked first.
    Wanted,
    /// As a frame if it has binary params, which is written again for one of several servers.
    Provisional,
}

/// What is known of one address.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Debug, Default)]
pub(crate) struct FrameSupport {
    state: AtomicU8,
}

#[pymethods]
impl FrameSupport {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The state: `"unknown"`, `"wanted"`, `"asking"`, `"yes"` or `"no"`.
    #[getter]
    fn state(&self) -> &'static str {
        match self.state.load(Ordering::Relaxed) {
            UNKNOWN => "unknown",
            WANTED => "wanted",
            ASKING => "asking",
            YES => "yes",
            _ => "no",
        }
    }

    /// A call had binary params, or a result was read as bytes, so that frames would be of use.
    pub(super) fn want(&self) {
        self.change(UNKNOWN, WANTED);
    }

    /// Whether the caller is the one to ask the server. It must call `record`.
    fn ask(&self) -> bool {
        self.change(UNKNOWN, ASKING) || self.change(WANTED, ASKING)
    }

    /// The server was asked; `None` if that is still not known.
    #[pyo3(signature = (takes_frames))]
    fn record(&self, takes_frames: Option<bool>) {
        let state = match takes_frames {
            Some(true) => YES,
            Some(false) => NO,
            None => UNKNOWN,
        };
        self.change(ASKING, state);
    }

    /// The server has refused a frame, or has ended the connection instead of a reply to one.
    fn doubt(&self) {
        self.change(YES, UNKNOWN);
    }
}

impl FrameSupport {
    #[inline]
    pub(super) fn form(&self) -> Form {
        match self.state.load(Ordering::Relaxed) {
            UNKNOWN => Form::Undecided,
            WANTED => Form::Wanted,
            YES => Form::Frame,
            _ => Form::Json,
        }
    }

    fn change(&self, from: u8, to: u8) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        self.state.compare_exchange(from, to, success, failure).is_ok()
    }
}

/// The exception that makes a client ask the server again.
#[cold]
pub(super) fn frame_refused() -> PyErr {
    FrameRefused::new_err("the server has refused a frame")
}

/// The exception that makes a client ask the server.
#[cold]
pub(super) fn undecided() -> PyErr {
    Undecided::new_err("it is not known whether the server takes frames")
}
