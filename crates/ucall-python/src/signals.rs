//! Ctrl-C and SIGTERM, which only the main thread of the main interpreter handles.
//!
//! Both start a drain; a second Ctrl-C ends the run at once. The first Ctrl-C also interrupts a
//! plain function that runs on the worker's thread, because that function may never return.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use ucall_server::{Drain, Mailbox, Message};

/// The pipe that the interpreter writes a byte to for each signal, and that wakes the engine.
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

    /// The end that becomes readable.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Reads all bytes.
    pub(crate) fn drain(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.reader).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}

/// The signal handlers of a process whose main thread runs a server.
pub(crate) struct SignalHandlers<'py> {
    module: Bound<'py, PyAny>,
    wakeup_before: i32,
    /// The signals whose handlers were replaced, and the previous handlers.
    before: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
}

impl<'py> SignalHandlers<'py> {
    /// Makes signals wake the engine, and Ctrl-C and SIGTERM drain the worker unless the program
    /// has handlers for them. `None` on another thread than the main one.
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
            term.send(Message::drain_with_idle_time(Drain::Refusing));
            Ok(())
        })?;
        let (int, pressed) = (mailbox.clone(), AtomicBool::new(false));
        self.replace("SIGINT", "default_int_handler", move || {
            let again = pressed.swap(true, Ordering::Relaxed);
            int.send(if again { Message::Stop } else { Message::drain(Drain::Refusing) });
            match again || is_in_function.load(Ordering::Relaxed) {
                true => Err(PyKeyboardInterrupt::new_err(())),
                false => Ok(()),
            }
        })
    }

    /// Replaces the handler of a signal by `action`, if it is the interpreter's default.
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

    /// Restores the previous handlers.
    pub(crate) fn restore(self) -> PyResult<()> {
        for (signal, before) in self.before {
            self.module.call_method1("signal", (signal, before))?;
        }
        set_wakeup(&self.module, self.wakeup_before).map(drop)
    }
}

/// Returns the previous descriptor, or -1.
fn set_wakeup(module: &Bound<'_, PyAny>, descriptor: i32) -> PyResult<i32> {
    let options = PyDict::new(module.py());
    options.set_item("warn_on_full_buffer", false)?;
    module.call_method("set_wakeup_fd", (descriptor,), Some(&options))?.extract()
}
