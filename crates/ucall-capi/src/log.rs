//! What a server writes for people and for machines: one line a second, and complaints.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ucall_server::Stats;

use crate::descriptor::write_line;

/// Between two lines with figures, and at least between two complaints.
const INTERVAL: Duration = Duration::from_secs(1);
/// Different complaints written within that time; further ones are lost.
const COMPLAINTS_MAX: usize = 64;
const STANDARD_ERROR: RawFd = 2;

/// How lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// To be read.
    Human,
    /// One JSON object a line.
    Json,
}

/// Where a server writes. The descriptor is its owner's and is never closed here.
#[derive(Debug)]
pub(crate) struct Log {
    /// `None`: no lines with figures, and complaints go to standard error.
    descriptor: Option<RawFd>,
    format: Format,
    figures: Mutex<Figures>,
    complaints: Mutex<Vec<Complaint>>,
    /// The server is freed, and the descriptor its owner's alone. Read and written under a lock.
    is_over: AtomicBool,
}

#[derive(Debug)]
struct Figures {
    since: Instant,
    before: Stats,
}

/// A complaint that was written lately. It can come with every call, so that more of it are only
/// counted.
#[derive(Debug)]
struct Complaint {
    text: String,
    written: Instant,
    swallowed: u64,
}

impl Log {
    pub(crate) fn new(descriptor: Option<RawFd>, format: Format) -> Self {
        let figures = Figures { since: Instant::now(), before: Stats::default() };
        let (figures, complaints) = (Mutex::new(figures), Mutex::default());
        Self { descriptor, format, figures, complaints, is_over: AtomicBool::new(false) }
    }

    /// Nothing is written from here on: calls that were deferred outlive their server, and its log
    /// with them, but not the descriptor.
    pub(crate) fn end(&self) {
        let _locks = (self.figures(), self.complaints());
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complaints(&self) -> MutexGuard<'_, Vec<Complaint>> {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next line with figures is due.
    #[inline]
    pub(crate) fn due(&self) -> Option<Instant> {
        self.descriptor?;
        Some(self.next_line())
    }

    #[inline(never)]
    fn next_line(&self) -> Instant {
        self.figures().since + INTERVAL
    }

    /// Writes the line with figures, if it is due: what was done since the one before.
    #[inline]
    pub(crate) fn tick(&self, stats: impl FnOnce() -> Stats) {
        if let Some(descriptor) = self.descriptor {
            self.tick_at(Instant::now(), descriptor, stats);
        }
    }

    #[inline(never)]
    fn tick_at(&self, now: Instant, descriptor: RawFd, stats: impl FnOnce() -> Stats) {
        let mut figures = self.figures();
        let elapsed = now.saturating_duration_since(figures.since);
        if elapsed < INTERVAL || self.is_over() {
            return;
        }
        let stats = stats();
        write_line(descriptor, &self.line(&figures.before, &stats, elapsed));
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
                bytes_for_people(received as f64 / seconds),
                bytes_for_people(sent as f64 / seconds),
            ),
        }
    }

    /// Complains, but about the same thing at most once a second; what comes in between is counted
    /// in the next complaint.
    pub(crate) fn complain(&self, text: &str) {
        let now = Instant::now();
        let mut complaints = self.complaints();
        if self.is_over() {
            return;
        }
        let mut swallowed = 0;
        if let Some(index) = complaints.iter().position(|complaint| complaint.text == text) {
            let Some(complaint) = complaints.get_mut(index) else { return };
            if now < complaint.written + INTERVAL {
                complaint.swallowed += 1;
                return;
            }
            swallowed = complaints.swap_remove(index).swallowed;
        }
        if complaints.len() >= COMPLAINTS_MAX {
            complaints.retain(|complaint| now < complaint.written + INTERVAL);
        }
        if complaints.len() < COMPLAINTS_MAX {
            complaints.push(Complaint { text: text.into(), written: now, swallowed: 0 });
            self.write_complaint(&match swallowed {
                0 => text.into(),
                _ => format!("{text} ({swallowed} times more)"),
            });
        }
    }

    fn write_complaint(&self, text: &str) {
        let line = match self.format {
            Format::Human => format!("ucall: {text}\n"),
            Format::Json => {
                let mut quoted = Vec::new();
                ucall_proto::json::write_string(&mut quoted, text);
                let quoted = String::from_utf8_lossy(&quoted);
                format!("{{\"time\":{},\"warning\":{quoted}}}\n", unix_seconds())
            }
        };
        write_line(self.descriptor.unwrap_or(STANDARD_ERROR), &line);
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn bytes_for_people(bytes: f64) -> String {
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
        write(&Log::new(Some(writer.as_raw_fd()), format));
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn amounts_are_for_people() {
        for (bytes, shown) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (1500.0, "1.5 KB"),
            (2.5e7, "25 MB"),
            (3e12, "3000 GB"),
        ] {
            assert_eq!(bytes_for_people(bytes), shown);
        }
    }

    #[test]
    fn a_line_tells_what_happened_since_the_one_before() {
        let mut stats = Stats::default();
        let text = written(Format::Json, |log| {
            let (start, descriptor) = (log.due().unwrap(), log.descriptor.unwrap());
            (stats.calls, stats.bytes_received, stats.connections) = (10, 700, 2);
            log.tick_at(start, descriptor, || stats);
            log.tick_at(start + Duration::from_millis(999), descriptor, || unreachable!());
            stats.calls = 25;
            log.tick_at(start + Duration::from_secs(2), descriptor, || stats);
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
    fn nothing_is_written_once_it_is_over() {
        let text = written(Format::Human, |log| {
            log.complain("before");
            log.end();
            log.complain("after");
            let due = log.due().unwrap();
            log.tick_at(due, log.descriptor.unwrap(), || unreachable!());
        });
        assert_eq!(text, "ucall: before\n");
    }

    #[test]
    fn complaints_do_not_flood() {
        let text = written(Format::Human, |log| {
            for _ in 0..100 {
                log.complain("something is wrong");
                log.complain("something else");
            }
        });
        assert_eq!(text, "ucall: something is wrong\nucall: something else\n");
    }
}
