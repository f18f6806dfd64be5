//! The log of a server: one line of figures a second, and warnings.

use std::ffi::{CString, c_char, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ucall_server::Stats;

use crate::descriptor::write_line;

/// Between two lines of figures, and between two equal warnings.
const INTERVAL: Duration = Duration::from_secs(1);
/// Different warnings within that time; further ones are dropped.
const WARNINGS_MAX: usize = 64;
const STANDARD_ERROR: RawFd = 2;

/// The format of lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// Plain text.
    Human,
    /// One JSON object a line.
    Json,
}

/// `ucall_log_callback_t`. "unwind" as for [`Function`](crate::callback::Function).
pub type LogFunction = unsafe extern "C-unwind" fn(*const c_char, usize, *mut c_void);

/// The function of the program that gets the lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogCallback {
    pub(crate) function: LogFunction,
    pub(crate) tag: *mut c_void,
}

// SAFETY: the header asks the program that the function may run, with its tag, on any thread.
unsafe impl Send for LogCallback {}
// SAFETY: as above.
unsafe impl Sync for LogCallback {}

/// Where lines go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output {
    /// Warnings go to standard error, and there are no figures.
    Warnings,
    /// The program owns the descriptor and closes it.
    Descriptor(RawFd),
    Callback(LogCallback),
}

impl Output {
    /// Writes a line, which ends with a newline.
    fn write(self, line: &str) {
        match self {
            Self::Warnings => write_line(STANDARD_ERROR, line),
            Self::Descriptor(descriptor) => write_line(descriptor, line),
            Self::Callback(LogCallback { function, tag }) => {
                let line = CString::new(line.trim_end().replace('\0', " ")).unwrap_or_default();
                // SAFETY: the program promised that the function may be called with its tag. The
                // line lives until it returns.
                unsafe { function(line.as_ptr(), line.as_bytes().len(), tag) }
            }
        }
    }
}

/// The log of one server.
#[derive(Debug)]
pub(crate) struct Log {
    output: Output,
    format: Format,
    figures: Mutex<Figures>,
    warnings: Mutex<Vec<Warning>>,
    /// Whether the server is freed, and the descriptor no longer used. Read and written under a
    /// lock.
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct Figures {
    since: Instant,
    before: Stats,
}

/// A recent warning. Every call may repeat it, so repetitions are only counted.
#[derive(Debug)]
struct Warning {
    text: String,
    written: Instant,
    suppressed: u64,
}

impl Log {
    pub(crate) fn new(output: Output, format: Format) -> Self {
        let figures = Figures { since: Instant::now(), before: Stats::default() };
        let (figures, warnings) = (Mutex::new(figures), Mutex::default());
        Self { output, format, figures, warnings, is_closed: AtomicBool::new(false) }
    }

    /// Writes no more lines. Deferred calls keep the log after the server is freed, when the
    /// descriptor may be closed.
    pub(crate) fn close(&self) {
        let _locks = (self.figures(), self.warnings());
        self.is_closed.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn warnings(&self) -> MutexGuard<'_, Vec<Warning>> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the log has lines of figures.
    pub(crate) fn has_figures(&self) -> bool {
        !matches!(self.output, Output::Warnings)
    }

    /// When the next line of figures is due.
    #[cold]
    pub(crate) fn next_line_at(&self) -> Instant {
        self.figures().since + INTERVAL
    }

    /// Writes a line of figures if it is due: the change since the previous line.
    #[cold]
    pub(crate) fn write_line_if_due(&self, now: Instant, stats: impl FnOnce() -> Stats) {
        let mut figures = self.figures();
        let elapsed = now.saturating_duration_since(figures.since);
        if elapsed < INTERVAL || !self.has_figures() || self.is_closed() {
            return;
        }
        let stats = stats();
        self.output.write(&self.line(&figures.before, &stats, elapsed));
        *figures = Figures { since: now, before: stats };
    }

    fn line(&self, before: &Stats, now: &Stats, elapsed: Duration) -> String {
        let calls = now.calls - before.calls;
        let received = now.bytes_received - before.bytes_received;
        let sent = now.bytes_sent - before.bytes_sent;
        let (connections, seconds) = (now.connections, elapsed.as_secs_f64());
        match self.format {
            Format::Json => format!(
                "{{\"time\":{},\"seconds\":{seconds:.3},\"calls\":{calls},\
                 \"bytes_received\":{received},\"bytes_sent\":{sent},\
                 \"connections\":{connections}}}\n",
                unix_seconds(),
            ),
            Format::Human => format!(
                "ucall: {} calls/s, {}/s received, {}/s sent, connections: {connections}\n",
                (calls as f64 / seconds).round(),
                human_bytes(received as f64 / seconds),
                human_bytes(sent as f64 / seconds),
            ),
        }
    }

    /// Writes a warning, at most once a second. The next one says how often it was repeated.
    pub(crate) fn warn(&self, text: &str) {
        let now = Instant::now();
        let mut warnings = self.warnings();
        if self.is_closed() {
            return;
        }
        let mut suppressed = 0;
        if let Some(index) = warnings.iter().position(|warning| warning.text == text) {
            let Some(warning) = warnings.get_mut(index) else { return };
            if now < warning.written + INTERVAL {
                warning.suppressed += 1;
                return;
            }
            suppressed = warnings.swap_remove(index).suppressed;
        }
        if warnings.len() >= WARNINGS_MAX {
            warnings.retain(|warning| now < warning.written + INTERVAL);
        }
        if warnings.len() < WARNINGS_MAX {
            warnings.push(Warning { text: text.into(), written: now, suppressed: 0 });
            self.write_warning(&match suppressed {
                0 => text.into(),
                _ => format!("{text} (repeated {suppressed} times)"),
            });
        }
    }

    fn write_warning(&self, text: &str) {
        let line = match self.format {
            Format::Human => format!("ucall: {text}\n"),
            Format::Json => {
                let mut quoted = Vec::new();
                ucall_proto::json::write_string(&mut quoted, text);
                let quoted = String::from_utf8_lossy(&quoted);
                format!("{{\"time\":{},\"warning\":{quoted}}}\n", unix_seconds())
            }
        };
        self.output.write(&line);
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn human_bytes(bytes: f64) -> String {
    const UNITS: [&str; 4] = ["B", "KB", "MB", "GB"];
    let mut amount = bytes;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while amount >= 999.5 && units.len() > 0 {
        amount /= 1000.0;
        unit = units.next();
    }
    let digits = usize::from(amount < 9.95 && bytes >= 999.5);
    format!("{amount:.digits$} {}", unit.unwrap_or(&"B"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    fn written(format: Format, write: impl FnOnce(&Log)) -> String {
        let (mut reader, writer) = std::io::pipe().unwrap();
        write(&Log::new(Output::Descriptor(writer.as_raw_fd()), format));
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn amounts_are_human_readable() {
        for (bytes, shown) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (1500.0, "1.5 KB"),
            (2.5e7, "25 MB"),
            (3e12, "3000 GB"),
        ] {
            assert_eq!(human_bytes(bytes), shown);
        }
    }

    #[test]
    fn a_line_reports_the_change_since_the_one_before() {
        let mut stats = Stats::default();
        let text = written(Format::Json, |log| {
            let start = log.next_line_at();
            (stats.calls, stats.bytes_received, stats.connections) = (10, 700, 2);
            log.write_line_if_due(start, || stats);
            log.write_line_if_due(start + Duration::from_millis(999), || unreachable!());
            stats.calls = 25;
            log.write_line_if_due(start + Duration::from_secs(2), || stats);
        });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[0].contains(r#""calls":10,"bytes_received":700,"bytes_sent":0,"connections":2}"#),
            "{text}"
        );
        assert!(lines[1].contains(r#""seconds":2.000,"calls":15,"bytes_received":0"#), "{text}");
    }

    #[test]
    fn nothing_is_written_once_it_is_closed() {
        let text = written(Format::Human, |log| {
            log.warn("before");
            log.close();
            log.warn("after");
            log.write_line_if_due(log.next_line_at(), || unreachable!());
        });
        assert_eq!(text, "ucall: before\n");
    }

    #[test]
    fn repeated_warnings_are_suppressed() {
        let text = written(Format::Human, |log| {
            for _ in 0..100 {
                log.warn("something is wrong");
                log.warn("something else");
            }
        });
        assert_eq!(text, "ucall: something is wrong\nucall: something else\n");
    }
}
