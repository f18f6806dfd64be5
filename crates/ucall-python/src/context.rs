//! `ucall.Context`: a function's view of the call that it answers.

mod native;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use ucall_engine::Peer;
use ucall_proto::http1::{Head, Headers};
use ucall_proto::json::{Reader, write_string};
use ucall_proto::tls::TlsSession;
use ucall_proto::{Call, CallerIdentity, Meta};
use ucall_server::{Caller, Deadline, Reservation, Transport};

use crate::background::CallState;
use crate::convert::{Convert, Input, Scratch};
use crate::identity::{Identity, user_of};
use crate::origin::CallOrigin;
use crate::outcomes::Outcomes;
use crate::request_texts::RequestTexts;
use crate::session::{Channel, Connection, no_channel};
use crate::streams::{ProgressTarget, report_text};
use crate::tls::PyTls;

// It is made and dropped without the interpreter's lock.
/// One call, as its function sees it: a parameter annotated ``ucall.Context`` gets it.
#[pyclass(frozen, module = "ucall", name = "Context")]
pub(crate) struct Context {
    /// The request's texts, each with the number of its [`Text`].
    texts: RequestTexts<4>,
    /// A copy of the params, if hooks are around the function.
    params: Vec<u8>,
    has_params: bool,
    /// The memory reserved for them.
    _reserved: Reservation,
    peer: Option<Peer>,
    transport: Transport,
    /// Of the caller, if its user is known.
    identity: Option<CallerIdentity>,
    /// The text of the params of the request of MCP that makes the call, and its version.
    mcp: Option<Box<(Vec<u8>, &'static str)>>,
    deadline: Option<Instant>,
    state: Arc<CallState>,
    session: Option<Arc<TlsSession>>,
    channel: Option<Channel>,
    /// Whether the function has sent its client a notification.
    has_notified: AtomicBool,
}

/// A text of a request.
#[derive(Clone, Copy)]
enum Text {
    /// The name that the function was called by.
    Method,
    /// The id; a notification has none.
    Id,
    /// The block of header lines as received. There is none over raw TCP and WebSocket.
    Headers,
    /// The request's `_meta`.
    Meta,
}

/// What a context has beside its request.
#[derive(Default)]
pub(crate) struct ContextParts {
    pub(crate) identity: Option<CallerIdentity>,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) progress: ProgressTarget,
    /// The worker's, if it runs what hooks await.
    pub(crate) outcomes: Option<Arc<Outcomes>>,
    pub(crate) channel: Option<Channel>,
    /// Has the context keep the params, for which this memory is reserved.
    pub(crate) params: Option<Reservation>,
}

/// The memory that is kept for the params of a later call.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// The texts of a call that are in its context.
#[inline(always)]
fn texts_of<'a>(call: &Call<'a>, method: &'a [u8]) -> [Option<&'a [u8]>; 4] {
    let (headers, meta) = (call.head.map(Head::header_block), call.meta.map(|Meta(text)| text));
    [Some(method), call.id, headers, meta]
}

#[cold]
fn copied_texts_of(call: &Call<'_>) -> RequestTexts<4> {
    RequestTexts::of(texts_of(call, &call.method.unescaped()))
}

impl Context {
    pub(crate) fn new(call: &Call<'_>, caller: &Caller, parts: ContextParts) -> Self {
        let mut context = Self { texts: copied_texts_of(call), ..Self::empty(Transport::Tcp) };
        context.begin(call, caller, parts);
        context
    }

    /// The context of no request.
    pub(crate) fn empty(transport: Transport) -> Self {
        Self {
            texts: RequestTexts::none(),
            params: Vec::new(),
            has_params: false,
            _reserved: Reservation::default(),
            peer: None,
            transport,
            identity: None,
            mcp: None,
            deadline: None,
            state: Arc::default(),
            session: None,
            channel: None,
            has_notified: AtomicBool::new(false),
        }
    }

    /// Makes an empty context that of a call, and borrows its texts.
    ///
    /// # Safety
    /// [`Context::clear_unused`] returns true, or [`Context::keep`] is called, before the texts are
    /// freed.
    #[inline(always)]
    pub(crate) unsafe fn begin_borrowing(
        &mut self,
        call: &Call<'_>,
        caller: &Caller,
        parts: ContextParts,
    ) {
        match call.method.is_escaped() {
            // SAFETY: the caller sees to it.
            false => unsafe { self.texts.borrow(texts_of(call, call.method.raw())) },
            true => self.texts = copied_texts_of(call),
        }
        self.begin(call, caller, parts);
    }

    /// Makes an empty context that of a call, whose texts it has.
    #[inline(always)]
    fn begin(&mut self, call: &Call<'_>, caller: &Caller, parts: ContextParts) {
        let ContextParts { identity, deadline, progress, outcomes, channel, params } = parts;
        if let Some(reserved) = params
            && let Some(params) = call.params
        {
            self.params.extend_from_slice(params);
            (self.has_params, self._reserved) = (true, reserved);
        }
        (self.peer, self.transport) = (caller.peer, caller.transport(call.head));
        self.session = call.session.cloned();
        self.mcp = call.mcp.map(|it| Box::new((it.params.unwrap_or(b"{}").to_vec(), it.version)));
        self.deadline = deadline.map(|deadline| deadline.at);
        (self.identity, self.channel) = (identity, channel);
        if Arc::get_mut(&mut self.state).is_none() {
            self.state = Arc::default();
        }
        if let Some(state) = Arc::get_mut(&mut self.state) {
            state.begin(progress, outcomes);
        }
    }

    /// Makes the context that of no request, if the call leaves nothing to do. Returns whether that
    /// is so.
    #[inline(always)]
    pub(crate) fn clear_unused(&mut self) -> bool {
        if !Arc::get_mut(&mut self.state).is_some_and(CallState::end_unused) {
            return false;
        }
        self.texts.clear();
        if self.has_params {
            self.clear_params();
        }
        (self.identity, self.session) = (None, None);
        (self.channel, self.mcp) = (None, None);
        *self.has_notified.get_mut() = false;
        true
    }

    #[inline(always)]
    fn clear_params(&mut self) {
        (self.has_params, self._reserved) = (false, Reservation::default());
        self.params.clear();
        self.params.shrink_to(KEPT_BYTES_MAX);
    }

    /// Keeps what the turn has of the call: its texts, and the session of its connection.
    #[cold]
    pub(crate) fn keep(&self, py: Python<'_>) {
        self.texts.keep();
        self.keep_session(py);
    }

    /// The context of a request of which only the head is known.
    pub(crate) fn of_request(
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
        channel: Option<Channel>,
    ) -> Self {
        let headers = head.map(Head::header_block);
        Self {
            texts: RequestTexts::of([None, None, headers, None]),
            peer: caller.peer,
            session: session.cloned(),
            channel,
            ..Self::empty(caller.transport(head))
        }
    }

    /// A context of no call, for tests. It runs nothing in the background.
    pub(crate) fn without_call(
        identity: Option<CallerIdentity>,
        headers: &[u8],
        peer: Option<Peer>,
    ) -> Self {
        let texts = RequestTexts::of([None, Some(b"1"), Some(headers), None]);
        let context = Self { texts, identity, peer, ..Self::empty(Transport::Http) };
        drop(context.state.drop_jobs());
        context
    }

    /// The context of a call that another process has sent: what its span has of it.
    pub(crate) fn of_origin(origin: &CallOrigin, tracestate: Option<&[u8]>) -> Self {
        let meta = origin.traceparent().map(|traceparent| trace_meta(traceparent, tracestate));
        let texts = RequestTexts::of([origin.method(), origin.id(), None, meta.as_deref()]);
        Self { texts, peer: origin.peer, ..Self::empty(origin.transport) }
    }

    /// The object that the function gets. It keeps the session that its connection has by now.
    pub(crate) fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, Self>> {
        self.keep_session(py);
        Bound::new(py, self)
    }

    /// Keeps the session that its connection has by now.
    fn keep_session(&self, py: Python<'_>) {
        if let Some(channel) = &self.channel {
            channel.find_session(py);
        }
    }

    #[inline]
    fn text(&self, text: Text) -> Option<&[u8]> {
        self.texts.get(text as usize)
    }

    /// The text of the params, if hooks are around the function.
    #[inline]
    pub(crate) fn params(&self) -> Option<&[u8]> {
        self.has_params.then_some(&*self.params)
    }

    /// Who has made the call, for the log.
    pub(crate) fn origin(&self) -> CallOrigin {
        let traceparent = self.trace_member("traceparent");
        let traceparent = traceparent.as_ref().map(String::as_bytes);
        let texts = [self.text(Text::Method), self.text(Text::Id), traceparent];
        CallOrigin::of(texts, self.peer, self.transport, self.identity.clone())
    }

    /// What the context shares with the call's record.
    pub(crate) fn state(&self) -> &Arc<CallState> {
        &self.state
    }

    /// The moment by which the call must be answered.
    pub(crate) fn deadline_moment(&self) -> Option<Instant> {
        self.deadline
    }

    /// The priority of the call.
    pub(crate) fn priority(&self) -> i8 {
        let asked = self.text(Text::Meta).map(Meta).and_then(Meta::priority).unwrap_or(0);
        let caller = self.identity.as_ref().and_then(|it| it.downcast_ref::<Identity>());
        caller.map_or(asked, |caller| caller.priority(asked))
    }

    /// The worker that runs the call, if hooks are around its function.
    pub(crate) fn outcomes(&self) -> Option<&Outcomes> {
        self.state.outcomes()
    }

    pub(crate) fn has_notified(&self) -> bool {
        self.has_notified.load(Ordering::Relaxed)
    }

    fn channel(&self, py: Python<'_>) -> PyResult<&Channel> {
        self.channel.as_ref().ok_or_else(|| no_channel(py).unwrap_or_else(|failure| failure))
    }

    /// The header lines as received.
    fn header_lines(&self) -> Headers<'_> {
        Headers::of_block(self.text(Text::Headers).unwrap_or_default())
    }

    /// The headers in their order, by their names in lower case.
    pub(crate) fn header_list(&self) -> Vec<(String, String)> {
        let name = |name| String::from_utf8_lossy(name).to_ascii_lowercase();
        self.header_lines().map(|(it, value)| (name(it), header_text(value))).collect()
    }

    /// The values of a header, joined as its name demands.
    fn header(&self, name: &str) -> Option<String> {
        let lines = self.header_lines().filter(|(it, _)| it.eq_ignore_ascii_case(name.as_bytes()));
        let values: Vec<String> = lines.map(|(_, value)| header_text(value)).collect();
        (!values.is_empty()).then(|| values.join(separator(name)))
    }

    /// A member of the caller's trace context. `_meta` describes this call alone, and a head all
    /// calls of its batch, so `_meta` comes first. Members of the two are never mixed.
    fn trace_member(&self, name: &str) -> Option<String> {
        let meta = self.text(Text::Meta).map(Meta);
        let Some(meta) = meta.filter(|it| it.traceparent().is_some()) else {
            return self.header(name);
        };
        let text = meta.find(name.as_bytes())?;
        Some(String::from_utf8_lossy(&Reader::new(text).string().unescaped()).into_owned())
    }
}

/// The text of a `_meta` with a trace context.
fn trace_meta(traceparent: &[u8], tracestate: Option<&[u8]>) -> Vec<u8> {
    let mut text = Vec::from(br#"{"traceparent":"#);
    write_string(&mut text, &String::from_utf8_lossy(traceparent));
    if let Some(tracestate) = tracestate {
        text.extend_from_slice(br#","tracestate":"#);
        write_string(&mut text, &String::from_utf8_lossy(tracestate));
    }
    text.push(b'}');
    text
}

/// HTTP gives bytes beyond ASCII no meaning; most clients that send them mean Latin-1.
pub(crate) fn header_text(value: &[u8]) -> String {
    value.iter().copied().map(char::from).collect()
}

#[pymethods]
impl Context {
    /// The name that the function was called by; empty for ``auth``, which runs before it is known.
    #[getter]
    pub(crate) fn method(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.text(Text::Method).unwrap_or_default())
    }

    /// The client's id of the call: str, int, float or None.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Some(id) = self.text(Text::Id) else { return Ok(py.None().into_bound(py)) };
        let mut scratch = Scratch::default();
        let read = Input::new(py, id, &mut scratch).read(&Convert::Any);
        Ok(read.unwrap_or_else(|_| py.None().into_bound(py)))
    }

    /// The params of the request of MCP that makes the call, and its version; None of any other
    /// call.
    #[getter]
    fn _mcp<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyAny>, &'static str)>> {
        let Some((params, version)) = self.mcp.as_deref() else { return Ok(None) };
        let mut scratch = Scratch::default();
        let read = Input::new(py, params, &mut scratch).read(&Convert::Any);
        Ok(Some((read.unwrap_or_else(|_| PyDict::new(py).into_any()), version)))
    }

    /// Whether the call is a notification, which gets no reply.
    #[getter]
    fn is_notification(&self) -> bool {
        self.text(Text::Id).is_none()
    }

    /// The client's address and port; over a Unix socket a `ucall.Process` with the pid, uid and
    /// gid of the process that connected. With ``trusted_proxies`` the client of a proxy, with port
    /// 0 if the proxy does not name it. None where the system or the proxy does not report it.
    #[getter]
    pub(crate) fn peer<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(match self.peer {
            Some(Peer::Address(address)) => {
                Some((address.ip().to_string(), address.port()).into_pyobject(py)?.into_any())
            }
            Some(Peer::Process { pid, uid, gid }) => {
                Some(py.import("ucall")?.getattr("Process")?.call1((pid, uid, gid))?)
            }
            _ => None,
        })
    }

    /// What the call has come by: ``"http"``, ``"websocket"``, ``"tcp"`` (the raw protocol, also
    /// over a Unix socket), ``"udp"`` or ``"nats"``. No request can claim another one.
    #[getter]
    fn transport(&self) -> &'static str {
        self.transport.name()
    }

    /// The kind of the broker that the caller is connected to, ``"nats"``; None if the caller is
    /// connected to this server.
    #[getter]
    fn broker(&self) -> Option<&'static str> {
        self.transport.broker()
    }

    /// The user that the server's ``auth`` returned; None without ``auth``.
    #[getter]
    pub(crate) fn user(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        user_of(self.identity.as_ref()?).map(|user| user.clone_ref(py))
    }

    /// The headers of the HTTP request by their names in lower case; empty over raw TCP and for
    /// messages of a WebSocket. Repeated headers are joined by ", ", those of Cookie by "; ".
    #[getter]
    pub(crate) fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let headers = PyDict::new(py);
        for (name, value) in self.header_lines() {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            let value = header_text(value);
            let value = match headers.get_item(&name)? {
                Some(before) => format!("{before}{}{value}", separator(&name)),
                None => value,
            };
            headers.set_item(name, value)?;
        }
        Ok(headers)
    }

    /// The caller's ``traceparent`` (W3C Trace Context) as sent, in the request's ``_meta`` or else
    /// in the header; None without.
    #[getter]
    fn traceparent(&self) -> Option<String> {
        self.trace_member("traceparent")
    }

    /// The ``tracestate`` beside the ``traceparent``; None without.
    #[getter]
    pub(crate) fn tracestate(&self) -> Option<String> {
        self.trace_member("tracestate")
    }

    /// The TLS of the connection; None without TLS.
    #[getter]
    fn tls(&self) -> Option<PyTls> {
        self.session.clone().map(PyTls::new)
    }

    /// The seconds until the deadline, at least 0; None without one.
    #[getter]
    fn time_left(&self) -> Option<f64> {
        let left = self.deadline?.saturating_duration_since(Instant::now());
        Some(left.as_secs_f64())
    }

    /// The deadline on the clock of `time.monotonic()`; None without one.
    #[getter]
    fn deadline(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let Some(deadline) = self.deadline else { return Ok(None) };
        let now = py.import("time")?.call_method0("monotonic")?.extract::<f64>()?;
        let left = deadline.saturating_duration_since(Instant::now()).as_secs_f64();
        let passed = Instant::now().saturating_duration_since(deadline).as_secs_f64();
        Ok(Some(now + left - passed))
    }

    /// Whether the reply is no longer needed: the client disconnected, the deadline passed, or the
    /// server ends. Long work should read it now and then.
    #[getter]
    fn cancelled(&self) -> bool {
        self.state.is_cancelled()
    }

    /// Runs ``function(*args, **kwargs)``, or a coroutine, after the reply to the call. An async
    /// function runs as a task, a plain one in a thread (``max_threads``). It counts as a running
    /// call, and a drain waits for it. What it raises is logged. It does not run if the call fails
    /// or is cancelled. Raises TypeError for another object, and RuntimeError after the reply.
    #[pyo3(signature = (function, /, *args, **kwargs))]
    fn background(
        &self,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let method = self.method();
        let id = self.text(Text::Id).map(|id| format!(" (id {})", String::from_utf8_lossy(id)));
        let call = format!("{method}{}", id.as_deref().unwrap_or(" (a notification)"));
        self.state.add_job(function, args, kwargs, &call)
    }

    /// The client's connection, which has the data of its session.
    #[getter]
    fn connection(&self, py: Python<'_>) -> PyResult<Py<Connection>> {
        self.channel(py)?.session(py)
    }

    /// Sends the client a notification: a call of ``method`` without a reply. From an async
    /// function or a thread it precedes the reply. Messages that wait for a slow client are
    /// dropped, the oldest first, above ``max_waiting_messages`` and ``max_waiting_message_bytes``.
    /// Raises `ucall.NoChannelError` over HTTP.
    #[pyo3(signature = (method, params = None))]
    fn notify(
        &self,
        py: Python<'_>,
        method: &str,
        params: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.has_notified.store(true, Ordering::Relaxed);
        self.channel(py)?.notify(py, method, params)
    }

    /// Subscribes the client's connection to what `Server.publish` sends to ``topic``, until
    /// `unsubscribe` or its end. If more messages wait for a slow client than
    /// ``max_waiting_messages`` and ``max_waiting_message_bytes`` allow, ``overflow`` drops the
    /// oldest, drops the new one (``"drop_newest"``), or closes the connection (``"close"``).
    /// Raises `ucall.NoChannelError` over HTTP, and `ucall.RPCError` above ``max_subscriptions``
    /// (-32003) and ``max_topic_bytes`` (-32602).
    #[pyo3(signature = (topic, overflow = "drop_oldest"))]
    fn subscribe(&self, py: Python<'_>, topic: &str, overflow: &str) -> PyResult<()> {
        self.channel(py)?.subscribe(py, topic, overflow)
    }

    /// Ends the subscription of the client's connection to ``topic``, if it has one.
    fn unsubscribe(&self, py: Python<'_>, topic: &str) -> PyResult<()> {
        self.channel(py)?.unsubscribe(py, topic)
    }

    /// Reports progress to a caller that asks for it: ``done`` of ``total``, and a message. From
    /// an async function, a thread or a process the report leaves at once, from a plain function
    /// with its reply. Does nothing if the caller does not ask, and after the reply. Of reports
    /// that wait for a slow client, the oldest are dropped. Raises TypeError for what is no number,
    /// ValueError for one that is not finite, and RuntimeError in a generator, which yields items.
    #[pyo3(signature = (done, total = None, message = None))]
    fn progress(
        &self,
        done: &Bound<'_, PyAny>,
        total: Option<&Bound<'_, PyAny>>,
        message: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        match self.state.progress() {
            ProgressTarget::Nobody | ProgressTarget::Notifications(_) => Ok(()),
            ProgressTarget::Items => {
                Err(PyRuntimeError::new_err("progress: a generator reports by what it yields"))
            }
            ProgressTarget::Caller(reports) => reports.add(report_text(done, total, message)?),
        }
    }

    /// Whether the caller asks for progress.
    #[getter]
    fn _takes_progress(&self) -> bool {
        matches!(self.state.progress(), ProgressTarget::Caller(_))
    }

    /// Sends a report that another process has written.
    fn _report(&self, text: &[u8]) -> PyResult<()> {
        match self.state.progress() {
            ProgressTarget::Caller(reports) => reports.add(text.to_vec()),
            _ => Ok(()),
        }
    }

    /// Sends a notification of MCP before the reply: its text begins with ``{"jsonrpc":"2.0",``.
    /// Returns whether the caller takes any.
    fn _mcp_send(&self, text: &[u8]) -> PyResult<bool> {
        match (&self.mcp, self.state.reports()) {
            (Some(_), Some(reports)) => reports.add_message(text.to_vec()).map(|()| true),
            _ => Ok(false),
        }
    }

    fn __repr__(&self) -> String {
        format!("<ucall.Context of {}>", self.method())
    }
}

/// What joins the values of a repeated header: RFC 9110, section 5.3, and RFC 6265, section 5.4,
/// which HTTP/2 splits and a proxy may leave split.
fn separator(name: &str) -> &'static str {
    if name.eq_ignore_ascii_case("cookie") { "; " } else { ", " }
}
