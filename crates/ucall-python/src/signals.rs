//! Ctrl-C and SIGTERM, which only the main thread of the main interpreter can take.
//!
//! Both begin a drain; a second Ctrl-C ends the run at once. A plain function that runs on the
//! worker's thread is interrupted by the first one already: it alone could be what hangs.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use ucall_server::{Drain, Mailbox, Message};

/// Where the interpreter writes a byte when a signal has come, and an engine that waits reads it.
pub(crate) struct WakeupPipe {
    reader: UnixStream,
    writer: UnixStream,
}

impl WakeupPipe {
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
pub(crate) struct SignalHandlers<'py> {
    module: Bound<'py, PyAny>,
    wakeup_before: i32,
    /// The signals whose handlers were changed, and those handlers.
    before: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
}

impl<'py> SignalHandlers<'py> {
    /// Lets signals wake the engine, and Ctrl-C and SIGTERM drain the worker unless the program has
    /// handlers for them. `None` on any other thread than the main one.
    pub(crate) fn install(
        py: Python<'py>,
        wakeup_pipe: &WakeupPipe,
        mailbox: &Mailbox,
        is_in_function: Arc<AtomicBool>,
    ) -> PyResult<Option<Self>> {
        let module = py.import("signal")?.into_any();
        let wakeup_before = match set_wakeup(&module, wakeup_pipe.writer.as_raw_fd()) {
            Ok(before) => before,
            Err(error) if error.is_instance_of::<PyValueError>(py) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut handlers = Self { module, wakeup_before, before: Vec::new() };
        match handlers.replace_defaults(mailbox, is_in_function) {
            Ok(()) => Ok(Some(handlers)),
            Err(error) => handlers.restore().and(Err(error)),
        }
    }

    fn replace_defaults(
        &mut self,
        mailbox: &Mailbox,
        is_in_function: Arc<AtomicBool>,
    ) -> PyResult<()> {
        let term = mailbox.clone();
        self.replace("SIGTERM", "SIG_DFL", move || {
            term.send(Message::Drain(Drain::Refusing));
            Ok(())
        })?;
        let (int, pressed) = (mailbox.clone(), AtomicBool::new(false));
        self.replace("SIGINT", "default_int_handler", move || {
            let again = pressed.swap(true, Ordering::Relaxed);
            int.send(if again { Message::Stop } else { Message::Drain(Drain::Refusing) });
            match again || is_in_function.load(Ordering::Relaxed) {
                true => Err(PyKeyboardInterrupt::new_err(())),
                false => Ok(()),
            }
        })
    }

    /// Lets `action` handle a signal, if it is handled as the interpreter does it by itself.
    fn replace(
        &mut self,
        name: &str,
        default: &str,
        action: impl Fn() -> PyResult<()> + Send + Sync + 'static,
    ) -> PyResult<()> {
        let signal = self.module.getattr(name)?;
        let before = self.module.call_method1("getsignal", (&signal,))?;
        if !before.eq(self.module.getattr(default)?)? {
            return Ok(());
        }
        let handler = PyCFunction::new_closure(self.module.py(), None, None, move |_, _| action())?;
        self.module.call_method1("signal", (&signal, handler))?;
        self.before.push((signal, before));
        Ok(())
    }

    /// Puts everything back as it was.
    pub(crate) fn restore(self) -> PyResult<()> {
        for (signal, before) in self.before {
            self.module.call_method1("signal", (signal, before))?;
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
