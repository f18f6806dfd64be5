//! The access log: a line for each call, which a thread of its own writes.
//!
//! A call begins its line before it is dispatched and ends it with its reply, so a line has the
//! fields of both. The worker never waits for the output: lines that find the queue full are
//! dropped and counted, and the next line that is written says how many.

mod line;
mod queue;
mod source;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ucall_engine::EngineClock;
use ucall_proto::http1::Head;
use ucall_proto::{Call, RpcError};

use crate::caller::{Caller, Transport};
use crate::counters::Counters;
use line::CallFields;
pub use line::LogFormat;
use queue::LineQueue;
pub use source::CallSource;

/// The log of one server.
pub struct AccessLog {
    format: LogFormat,
    /// The share of calls that are logged, of 2^64; `None` for all.
    share: Option<u64>,
    /// The numbers that decide which ones.
    random: AtomicU64,
    queue: Arc<LineQueue>,
    /// Until the thread starts.
    output: Mutex<Option<Box<dyn Write + Send>>>,
}

impl AccessLog {
    /// A log of a share of all calls, from 0 to 1.
    pub fn new(format: LogFormat, sample: f64, output: Box<dyn Write + Send>) -> Self {
        Self {
            format,
            share: (sample < 1.0).then_some((sample * 2f64.powi(64)) as u64),
            random: AtomicU64::new(RandomState::new().build_hasher().finish()),
            queue: Arc::default(),
            output: Mutex::new(Some(output)),
        }
    }

    /// Starts the thread that writes, unless it runs. Dropped lines are counted on that page.
    ///
    /// # Errors
    /// The system starts no further thread.
    pub fn start(&self, counters: Arc<Counters>) -> std::io::Result<()> {
        self.queue.set_counters(counters);
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(output) = output.take() else { return Ok(()) };
        let (queue, format) = (self.queue.clone(), self.format);
        let run = move || queue.write_to(output, format);
        thread::Builder::new().name("ucall-access-log".to_owned()).spawn(run).map(drop)
    }

    /// Waits until all lines are written, or the time has passed.
    pub fn flush(&self, timeout: Duration) {
        self.queue.flush(timeout);
    }

    /// The line of a call that begins; `None` if the call is not sampled.
    pub(crate) fn begin(
        self: &Arc<Self>,
        call: &Call<'_>,
        caller: &Caller,
        transport: Transport,
        clock: &EngineClock,
        user: impl FnOnce() -> Option<String>,
    ) -> Option<LoggedCall> {
        self.begin_line(clock, || CallFields::new(call, caller, transport, user()))
    }

    /// The line of a request to an application that begins; `None` if it is not sampled.
    pub(crate) fn begin_request(
        self: &Arc<Self>,
        head: &Head<'_>,
        body_bytes: usize,
        caller: &Caller,
        clock: &EngineClock,
    ) -> Option<LoggedCall> {
        self.begin_line(clock, || CallFields::of_request(head, body_bytes, caller))
    }

    fn begin_line(
        self: &Arc<Self>,
        clock: &EngineClock,
        fields: impl FnOnce() -> CallFields,
    ) -> Option<LoggedCall> {
        if self.share.is_some_and(|share| self.next_random() >= share) {
            return None;
        }
        Some(LoggedCall {
            log: self.clone(),
            clock: clock.clone(),
            began: clock.now(),
            fields: Some(Box::new(fields())),
        })
    }

    /// The next number of `splitmix64`.
    fn next_random(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut number = self.random.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        number ^ (number >> 31)
    }
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AccessLog").field("format", &self.format).finish_non_exhaustive()
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The line of a call that runs. Dropping it logs the call as cancelled.
#[derive(Debug)]
pub struct LoggedCall {
    log: Arc<AccessLog>,
    /// That of its worker. The call may end on any thread, and at a time that nothing passes on.
    clock: EngineClock,
    began: Instant,
    /// `None` once the line is written.
    fields: Option<Box<CallFields>>,
}

impl LoggedCall {
    /// Writes the line: the code of the call's error, or the status of a response, and the bytes of
    /// the result.
    pub fn end(mut self, code: Option<i64>, result_bytes: usize) {
        self.write(code, result_bytes);
    }

    /// Writes no line.
    pub(crate) fn discard(mut self) {
        self.fields = None;
    }

    fn write(&mut self, code: Option<i64>, result_bytes: usize) {
        let Some(fields) = self.fields.take() else { return };
        let mut text = Vec::with_capacity(256);
        let duration = self.clock.now().saturating_duration_since(self.began);
        let unix_time = self.clock.unix_time();
        fields.write(&mut text, self.log.format, unix_time, duration, code, result_bytes);
        self.log.queue.push(&text);
    }
}

impl Drop for LoggedCall {
    fn drop(&mut self) {
        self.write(Some(RpcError::REQUEST_CANCELLED), 0);
    }
}
