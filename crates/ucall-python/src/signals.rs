//! Ctrl-C and SIGTERM, which only the main thread of the main interpreter can take.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use ucall_server::{Mailbox, Message};

/// Where the interpreter writes a byte when a signal has come, and an engine that waits reads it.
pub(crate) struct Wakeups {
    reader: UnixStream,
    writer: UnixStream,
}

impl Wakeups {
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Self { reader, writer })
    }

    /// What becomes readable.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Takes the bytes that have come.
    pub(crate) fn drain(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.reader).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}

/// The process's signals while a server on its main thread has them.
pub(crate) struct Taken<'py> {
    module: Bound<'py, PyAny>,
    wakeup_before: i32,
    /// What SIGTERM did, if that was changed.
    sigterm_before: Option<Bound<'py, PyAny>>,
}

impl<'py> Taken<'py> {
    /// Lets signals wake the engine, and SIGTERM stop the worker unless the program has a handler
    /// for it. `None` on any other thread than the main one.
    pub(crate) fn by(
        py: Python<'py>,
        wakeups: &Wakeups,
        mailbox: Mailbox,
    ) -> PyResult<Option<Self>> {
        let module = py.import("signal")?.into_any();
        let wakeup_before = match set_wakeup(&module, wakeups.writer.as_raw_fd()) {
            Ok(before) => before,
            Err(error) if error.is_instance_of::<PyValueError>(py) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut taken = Self { module, wakeup_before, sigterm_before: None };
        match taken.take_sigterm(mailbox) {
            Ok(()) => Ok(Some(taken)),
            Err(error) => taken.give_back().and(Err(error)),
        }
    }

    fn take_sigterm(&mut self, mailbox: Mailbox) -> PyResult<()> {
        let sigterm = self.module.getattr("SIGTERM")?;
        let before = self.module.call_method1("getsignal", (&sigterm,))?;
        if !before.eq(self.module.getattr("SIG_DFL")?)? {
            return Ok(());
        }
        let stop = PyCFunction::new_closure(self.module.py(), None, None, move |_, _| {
            mailbox.send(Message::Stop);
        })?;
        self.module.call_method1("signal", (sigterm, stop))?;
        self.sigterm_before = Some(before);
        Ok(())
    }

    /// Puts everything back as it was.
    pub(crate) fn give_back(self) -> PyResult<()> {
        if let Some(before) = self.sigterm_before {
            self.module.call_method1("signal", (self.module.getattr("SIGTERM")?, before))?;
        }
        set_wakeup(&self.module, self.wakeup_before).map(drop)
    }
}

/// Returns the descriptor that was there before, or -1.
fn set_wakeup(module: &Bound<'_, PyAny>, descriptor: i32) -> PyResult<i32> {
    let options = PyDict::new(module.py());
    options.set_item("warn_on_full_buffer", false)?;
    module.call_method("set_wakeup_fd", (descriptor,), Some(&options))?.extract()
}
