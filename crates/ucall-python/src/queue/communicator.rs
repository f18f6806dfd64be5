//! The core of `ucall.queue.core.Communicator`.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyTimeoutError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple, PyType};
#[cfg(target_os = "linux")]
use ucall_engine::EngineKind;
use ucall_queue::{
    AcceptedNames, ConnectionState, Encoding, Endpoint, Event, Failure, FullPolicy, Handle,
    Identity, Login, Outgoing, PutError, Role, Settings, TakeResult,
};

use super::detach::detached;
use super::errors::{failed, or_none, reject_forked, uuid};
use super::incoming::Reader;
use super::link::QueueLink;
use super::log::QueueLog;
use super::message::Message;
use super::pinned_buffers;
use super::receipt::Receipt;
use super::security::{TlsRole, security};
use super::sent_names::{is_accepted_here, sent_names};
use super::settings;
use super::waiting::{deadline_after, wait_checking_signals};
use super::watched_futures::WatchedFutures;
use crate::engine;
use crate::ffi;

/// Bytes up to this length are copied; longer ones are sent from the object's memory.
const COPIED_BYTES_MAX: usize = 8 * 1024;
/// Memory that may change is copied up to this length, so that a program may use it again.
const COPIED_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// The number of ids that are cached as objects.
const CACHED_IDS_MAX: usize = 4096;

/// The future type, `dump`, `load`, the loader of plain objects, and the accepted names.
type Codec = (Py<PyType>, Py<PyAny>, Py<PyAny>, Option<Py<PyAny>>, Option<Vec<String>>);
/// The kind of an event, its peer if that is known, and its reason if it has one.
type EventItem = (&'static str, Option<Py<PyAny>>, Option<String>);
/// Finished futures, and events of sessions and connections.
type Changes = (Vec<Py<Receipt>>, Vec<EventItem>);

/// A communicator's thread, its outbox and its inbox.
#[pyclass(frozen, subclass, module = "ucall._core", name = "QueueCore")]
pub(crate) struct QueueCore {
    handle: Arc<Handle>,
    reader: Reader,
    /// Returns the chunks and the out-of-band buffers of an object.
    dump: Py<PyAny>,
    /// Whether `bytes` and `str` are sent unchanged.
    is_plain: bool,
    future_type: Py<PyType>,
    blocks: bool,
    is_server: bool,
    watched: WatchedFutures,
    /// Whether the reader of the pipe of `_set_wake_pipe` waits for a byte.
    is_armed: Arc<AtomicBool>,
    ids: Mutex<HashMap<Identity, Py<PyAny>>>,
}

#[pymethods]
impl QueueCore {
    /// Starts the communicator. A server listens when this returns.
    ///
    /// Args:
    ///     id: A uuid.UUID.
    ///     is_server: Whether it listens, rather than connects.
    ///     location: ``(host, port)``, a path, ``(path, "shared")`` for shared memory beside it, or
    ///         None when links are opened by `_open_link`.
    ///     options: By the names of `ConnectionOptions`.
    ///     engine: "auto", "posix" or "uring".
    ///     codec: ``(future type, dump, load, load of plain bytes and str or None, names)``; for
    ///         the names see `_announce`.
    ///     tls: What `ucall.queue.core.options.tls_settings` returns; None for plaintext.
    ///     broker: ``(topic, user or None, password or None)``, if an MQTT broker listens at
    ///         ``location``.
    #[new]
    #[pyo3(signature = (
        id, is_server, location, options, engine, codec, tls = None, broker = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "a constructor, whose arguments have names")]
    fn new(
        py: Python<'_>,
        id: &Bound<'_, PyAny>,
        is_server: bool,
        location: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
        engine: &str,
        codec: Codec,
        tls: Option<&Bound<'_, PyAny>>,
        broker: Option<(String, Option<String>, Option<String>)>,
    ) -> PyResult<Self> {
        let (future_type, dump, load, load_plain, names) = codec;
        let options = settings::options(options)?;
        let blocks = options.full == FullPolicy::Block;
        let tls_role = match (&broker, is_server) {
            // Both sides are clients of the broker.
            (Some(_), _) => TlsRole::ToBroker,
            (None, true) => TlsRole::AsServer,
            (None, false) => TlsRole::ToServer,
        };
        let settings = Settings {
            identity: settings::identity(id)?,
            is_server,
            endpoint: endpoint(location)?,
            options,
            accepted: accepted_names(names),
            security: tls.map(|tls| security(tls, tls_role)).transpose()?,
            broker: broker.map(|(topic, user, password)| Login { topic, user, password }),
            #[cfg(target_os = "linux")]
            uring: match engine::choose(py, engine)? {
                EngineKind::Uring(features) => Some(features),
                EngineKind::Posix => None,
            },
        };
        // SAFETY: starting a thread and binding a socket access no Python object.
        let handle = unsafe { detached(py, || ucall_queue::start(settings)) }
            .map_err(|error| engine::failure(py, error))?;
        Ok(Self {
            handle,
            is_plain: load_plain.is_none(),
            reader: Reader { load, load_plain },
            dump,
            future_type,
            blocks,
            is_server,
            watched: WatchedFutures::default(),
            is_armed: Arc::default(),
            ids: Mutex::default(),
        })
    }

    /// Enqueues an object for these peers, or for all. Waits only with ``full="block"``.
    ///
    /// Arrays and buffers of up to 64 KiB are copied. Do not change longer ones until the future is
    /// done: they are sent from where they are.
    ///
    /// Args:
    ///     copy: Copies longer ones, too.
    ///
    /// Raises:
    ///     ucall.queue.FullError: The queue is full.
    ///     ucall.queue.RefusedError: A peer does not allow a class or a function in it.
    ///     ValueError: It is longer than ``message_size``.
    #[pyo3(signature = (data, *peers, copy = false))]
    fn put<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        peers: &Bound<'py, PyTuple>,
        copy: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.enqueue(py, data, peers, copy, self.blocks)
    }

    /// Like `put`, but raises `FullError` instead of waiting.
    #[pyo3(signature = (data, *peers, copy = false))]
    fn _put_nowait<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        peers: &Bound<'py, PyTuple>,
        copy: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.enqueue(py, data, peers, copy, false)
    }

    /// Waits for the next message, of these peers if there are any.
    ///
    /// An exception of ``load`` has the sender as its ``peer``, and the message, without its data,
    /// as its ``queue_message``. The next call returns the next message.
    ///
    /// Raises:
    ///     ucall.queue.RefusedError: The message contains an object that is not allowed.
    ///     ConnectionError: None will come any more: this side has closed, or the server has.
    ///     TimeoutError: None came within ``timeout`` seconds.
    #[pyo3(signature = (*peers, timeout = None))]
    fn get(
        &self,
        py: Python<'_>,
        peers: &Bound<'_, PyTuple>,
        timeout: Option<f64>,
    ) -> PyResult<Message> {
        pinned_buffers::release_pending(py);
        reject_forked(&self.handle)?;
        let peers = identities(peers)?;
        let inbox = &self.handle.inbox;
        let mut taken = inbox.take(&peers);
        if matches!(taken, TakeResult::Empty) {
            let deadline = deadline_after(timeout)?;
            let found =
                wait_checking_signals(py, deadline, |until| match inbox.wait(&peers, until) {
                    TakeResult::Empty => None,
                    found => Some(found),
                })?;
            taken = found.unwrap_or(TakeResult::Empty);
        }
        match taken {
            TakeResult::Message(message) => {
                let peer = self.id_object(py, message.peer)?;
                Message::read(py, &self.reader, &self.handle, peer, message)
            }
            TakeResult::Empty => Err(PyTimeoutError::new_err("no message came in time")),
            TakeResult::Closed(peer, failure) => {
                let peer = self.handle.failed_id(peer, &failure);
                Err(PyErr::from_value(failed(py, peer, &failure)?))
            }
        }
    }

    /// The ids of the current peers.
    fn peers(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        reject_forked(&self.handle)?;
        let peers = self.handle.outbox.peers();
        peers.into_iter().map(|peer| self.id_object(py, peer)).collect()
    }

    /// ``"connected"`` if this side has a connection with a peer. Without one, a client is
    /// ``"connecting"`` and a server ``"listening"``. After `close` it is ``"closing"``, until
    /// all messages are acknowledged. It is ``"closed"`` once no further message can arrive.
    #[getter]
    fn state(&self) -> &'static str {
        match self.handle.state() {
            ConnectionState::Disconnected if self.is_server => "listening",
            ConnectionState::Disconnected => "connecting",
            ConnectionState::Connected => "connected",
            ConnectionState::Closing => "closing",
            ConnectionState::Closed => "closed",
        }
    }

    /// The host and port that a TCP server listens on.
    #[getter]
    fn address(&self) -> Option<(String, u16)> {
        self.handle.address().map(|address| (address.ip().to_string(), address.port()))
    }

    /// Announces the names of classes and functions that ``load`` accepts, besides the default
    /// ones; None if that cannot be known.
    #[pyo3(signature = (names))]
    fn _announce(&self, names: Option<Vec<String>>) {
        self.handle.announce(accepted_names(names));
    }

    /// Lines for the log.
    fn _log_lines(&self) -> QueueLog {
        QueueLog { lines: self.handle.log_queue.clone() }
    }

    /// Starts an orderly close, or closes at once. If a server's is `is_final`, so do its clients.
    #[pyo3(signature = (at_once, is_final = false))]
    fn _close(&self, at_once: bool, is_final: bool) {
        match (at_once, is_final) {
            (true, _) => self.handle.abort(),
            (false, true) => self.handle.close_for_good(),
            (false, false) => self.handle.close(),
        }
    }

    /// Waits until the communicator has ended; `False` after the timeout.
    #[pyo3(signature = (timeout = None))]
    fn _wait_closed(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        if self.handle.is_forked() {
            return Ok(true);
        }
        let notifier = &self.handle.notifier;
        let deadline = deadline_after(timeout)?;
        let closed = || notifier.is_finished().then_some(());
        let waited =
            wait_checking_signals(py, deadline, |until| notifier.progressed.wait(until, closed))?;
        pinned_buffers::release_pending(py);
        Ok(waited.is_some())
    }

    /// Marks this process as a forked child, which has no communicator thread, and closes its
    /// copies of the sockets.
    fn _mark_forked(&self) {
        self.handle.mark_forked();
        for (descriptor, file) in self.handle.inherited() {
            // SAFETY: the calls only inspect the descriptor and fail if it is closed. If it is
            // still the socket, its owner, the communicator's thread, is not in this process.
            let socket = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
            if socket.metadata().is_ok_and(|found| found.ino() == file) {
                drop(ManuallyDrop::into_inner(socket));
            }
        }
    }

    /// Whether `_mark_forked` was called.
    #[getter]
    fn _is_forked(&self) -> bool {
        self.handle.is_forked()
    }

    /// Visits the serializer and the callbacks, which may refer to the communicator.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.dump)?;
        visit.call(&self.future_type)?;
        visit.call(&self.reader.load)?;
        visit.call(&self.reader.load_plain)?;
        self.watched.traverse(&visit)
    }

    /// Whether no further message will arrive.
    #[getter]
    fn _is_closed(&self) -> bool {
        self.handle.inbox.closed().is_some()
    }

    /// Opens a link over a transport of the caller: see `QueueLink`. `certificate` is the peer's
    /// verified certificate, in DER.
    #[pyo3(signature = (dialed, wake, in_flight_size = 1 << 20, certificate = None))]
    fn _open_link(
        &self,
        dialed: bool,
        wake: Py<PyAny>,
        in_flight_size: usize,
        certificate: Option<&[u8]>,
    ) -> QueueLink {
        let role = if dialed { Role::Dialed } else { Role::Accepted };
        let link = self.handle.open_link(role, in_flight_size, certificate, move || {
            Python::attach(|py| {
                if let Err(error) = ffi::call(wake.bind(py), []) {
                    error.write_unraisable(py, None);
                }
            });
        });
        QueueLink { handle: self.handle.clone(), link }
    }

    /// Sets the pipe that gets a byte at the first change after `_arm_wake`. The first pipe stays.
    fn _set_wake_pipe(&self, pipe: i32) -> PyResult<()> {
        // SAFETY: the call only inspects the descriptor and fails if it is closed.
        let pipe = unsafe { BorrowedFd::borrow_raw(pipe) }.try_clone_to_owned()?;
        let (pipe, is_armed) = (File::from(pipe), self.is_armed.clone());
        self.handle.notifier.set_callback(move || {
            fence(Ordering::SeqCst);
            if is_armed.load(Ordering::Relaxed) && is_armed.swap(false, Ordering::AcqRel) {
                // A full pipe wakes its reader as well.
                let _ = (&pipe).write(&[1]);
            }
        });
        Ok(())
    }

    /// Requests a byte at the next change. Check for earlier changes after this call.
    fn _arm_wake(&self) {
        self.is_armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Makes `_next_changes` return this future when it is done.
    fn _watch(&self, receipt: &Bound<'_, Receipt>) {
        self.watched.add(receipt);
        self.handle.notifier.progressed.notify();
    }

    /// Waits for watched futures to finish and for events of sessions and connections. Returns the
    /// futures, and ``(kind, peer, reason)`` of each event.
    #[pyo3(signature = (timeout = None))]
    fn _next_changes(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Changes> {
        let Handle { notifier, events: session_events, .. } = &*self.handle;
        let mut events = Vec::new();
        let deadline = deadline_after(timeout)?;
        let changed = || {
            let event = session_events.poll();
            let is_finished = || self.watched.has_finished() || notifier.is_finished();
            (event.is_some() || is_finished()).then_some(event)
        };
        let found =
            wait_checking_signals(py, deadline, |until| notifier.progressed.wait(until, changed))?;
        let mut next = found.flatten();
        while let Some(event) = next {
            let (kind, peer, reason) = described(event);
            let peer = peer.map(|peer| self.id_object(py, peer)).transpose()?;
            events.push((kind, peer, reason));
            next = session_events.poll();
        }
        pinned_buffers::release_pending(py);
        Ok((self.watched.take(), events))
    }
}

impl QueueCore {
    fn enqueue<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        peers: &Bound<'py, PyTuple>,
        copy: bool,
        waits: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        pinned_buffers::release_pending(py);
        reject_forked(&self.handle)?;
        let peers = identities(peers)?;
        let receipt = if self.is_plain
            && let Some((encoding, bytes)) = plain(data)
        {
            if bytes.len() <= COPIED_BYTES_MAX {
                self.send(py, &peers, &Outgoing::copied(encoding, bytes), waits)?
            } else if encoding == Encoding::Bytes {
                let parts = vec![pinned_buffers::pin(data)?];
                let message = Outgoing { parts, ..Outgoing::copied(encoding, &[]) };
                self.send(py, &peers, &message, waits)?
            } else {
                self.send(py, &peers, &Outgoing::copied(encoding, bytes), waits)?
            }
        } else {
            self.put_dumped(py, data, &peers, copy, waits)?
        };
        let future = ffi::call(self.future_type.bind(py), [])?;
        let core = future.cast::<Receipt>()?;
        core.get().fill(self.handle.clone(), receipt);
        Ok(future)
    }

    /// Serializes and enqueues an object.
    fn put_dumped(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        peers: &[Identity],
        copy: bool,
        waits: bool,
    ) -> PyResult<ucall_queue::Receipt> {
        let copied_bytes_max = if copy { usize::MAX } else { COPIED_BUFFER_BYTES_MAX };
        let dumped = ffi::call(self.dump.bind(py), [data])?;
        let (chunks, buffers) = dumped.extract::<(Bound<'_, PyList>, Bound<'_, PyList>)>()?;
        let encoding = Encoding::Serialized;
        // Most objects are one short piece.
        if chunks.len() == 1
            && buffers.is_empty()
            && let Ok(only) = chunks.get_item(0)?.cast::<PyBytes>()
            && only.as_bytes().len() <= COPIED_BYTES_MAX
        {
            let names = &sent_names(py, &[only.as_bytes()])?;
            let message = Outgoing { names, ..Outgoing::copied(encoding, only.as_bytes()) };
            return self.send(py, peers, &message, waits);
        }
        if buffers.len() >= usize::from(u16::MAX) {
            return Err(PyValueError::new_err("an object with more than 65,534 buffers"));
        }
        let mut parts = Vec::with_capacity(chunks.len() + buffers.len());
        for chunk in &chunks {
            parts.push(pinned_buffers::pin_or_copy(&chunk, copied_bytes_max)?);
        }
        let names = &sent_names(py, &parts.iter().map(|part| &part[..]).collect::<Vec<_>>())?;
        let mut segments = Vec::new();
        if !buffers.is_empty() {
            segments.push(parts.iter().map(|part| part.len() as u64).sum());
            for buffer in &buffers {
                let part = pinned_buffers::pin_or_copy(&buffer, copied_bytes_max)?;
                segments.push(part.len() as u64);
                parts.push(part);
            }
        }
        let message = Outgoing { encoding, copied: &[], parts, segments, names };
        self.send(py, peers, &message, waits)
    }

    fn send(
        &self,
        py: Python<'_>,
        peers: &[Identity],
        message: &Outgoing<'_>,
        waits: bool,
    ) -> PyResult<ucall_queue::Receipt> {
        loop {
            let refusal = match self.handle.outbox.put(peers, message) {
                Ok(receipt) => return Ok(receipt),
                Err(refusal) => refusal,
            };
            match refusal {
                PutError::Full(_) if waits => {
                    let (outbox, weight) = (&self.handle.outbox, message.weight());
                    wait_checking_signals(py, None, |until| {
                        outbox.wait_for_room(peers, weight, until).then_some(())
                    })?;
                }
                PutError::Full(peer) => return Err(full(py, peer)?),
                PutError::NotAccepted(peer, position) => {
                    let name = message.names.get(position).cloned().unwrap_or_default();
                    if !is_accepted_here(py, peer, &name)? {
                        let failure = Failure::NotAccepted(name);
                        return Err(PyErr::from_value(failed(py, peer, &failure)?));
                    }
                    let unchecked = Outgoing { names: &[], ..message.clone() };
                    return self.send(py, peers, &unchecked, waits);
                }
                PutError::TooLong(most) => {
                    let length = message.len();
                    return Err(PyValueError::new_err(format!(
                        "a message of {length} bytes: message_size allows {most}"
                    )));
                }
            }
        }
    }

    fn id_object(&self, py: Python<'_>, id: Identity) -> PyResult<Py<PyAny>> {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = ids.get(&id) {
            return Ok(found.clone_ref(py));
        }
        drop(ids);
        let made = uuid(py, id)?.unbind();
        ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.len() >= CACHED_IDS_MAX {
            ids.clear();
        }
        ids.insert(id, made.clone_ref(py));
        Ok(made)
    }
}

/// The bytes of an exact `bytes` or `str`, which are sent unchanged.
#[inline]
fn plain<'a>(data: &'a Bound<'_, PyAny>) -> Option<(Encoding, &'a [u8])> {
    if let Ok(bytes) = data.cast_exact::<PyBytes>() {
        return Some((Encoding::Bytes, bytes.as_bytes()));
    }
    // The serializer encodes text with lone surrogates.
    let text = data.cast_exact::<PyString>().ok()?.to_str().ok()?;
    Some((Encoding::Text, text.as_bytes()))
}

fn accepted_names(names: Option<Vec<String>>) -> AcceptedNames {
    names.map_or(AcceptedNames::Unknown, |names| {
        AcceptedNames::Listed(names.into_iter().map(Into::into).collect())
    })
}

/// The kind of an event, its peer and its reason.
fn described(event: Event) -> (&'static str, Option<Identity>, Option<String>) {
    match event {
        Event::Started(peer) => ("started", Some(peer), None),
        Event::Lost(peer, reason) => ("lost", Some(peer), Some(reason)),
        Event::Resumed(peer) => ("resumed", Some(peer), None),
        Event::Expired(peer, reason) => ("expired", peer, Some(reason)),
        Event::Refused(peer, reason) => ("refused", peer, Some(reason)),
        Event::Ended(peer) => ("ended", Some(peer), None),
    }
}

fn identities(peers: &Bound<'_, PyTuple>) -> PyResult<Vec<Identity>> {
    if peers.is_empty() {
        return Ok(Vec::new());
    }
    peers.iter().map(|peer| settings::identity(&peer)).collect()
}

fn endpoint(location: &Bound<'_, PyAny>) -> PyResult<Endpoint> {
    if location.is_none() {
        return Ok(Endpoint::External);
    }
    if let Ok(path) = location.extract::<PathBuf>() {
        return Ok(Endpoint::Unix(path));
    }
    if let Ok((path, kind)) = location.extract::<(PathBuf, String)>()
        && kind == "shared"
    {
        #[cfg(target_os = "linux")]
        return Ok(Endpoint::Shared(path));
        #[cfg(not(target_os = "linux"))]
        return Ok(Endpoint::Unix(path));
    }
    match location.extract::<(String, u16)>() {
        Ok((host, port)) => Ok(Endpoint::Tcp(host, port)),
        Err(_) => Err(PyTypeError::new_err("netloc: expected a host and a port, or a path")),
    }
}

/// Raises OSError if this system has no memory that processes can share and seal.
#[pyfunction]
pub(crate) fn check_shared_memory() -> PyResult<()> {
    Ok(ucall_queue::shared_memory()?)
}

fn full(py: Python<'_>, peer: Option<Identity>) -> PyResult<PyErr> {
    let peer = peer.map(|peer| uuid(py, peer)).transpose()?;
    let error = py.import("ucall.queue.errors")?.getattr("FullError")?;
    let reason = PyString::intern(py, "the queue is full");
    Ok(PyErr::from_value(ffi::call(&error, [&or_none(py, peer), reason.as_any()])?))
}
