//! Lines for the program's log.
//!
//! Peers that are not authenticated cause lines, so the rate of each level and the queue are
//! bounded. Dropped lines are counted.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines of each level that are kept in each period.
const LINES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);
/// Lines that wait to be written.
const WAITING_MAX: usize = 100;

/// The level of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogLevel {
    /// Connections are made and resumed.
    Info,
    /// Connections are lost or refused.
    Warning,
}

/// Lines that wait to be written to the log.
#[derive(Debug, Default)]
pub struct LogQueue {
    lines: Mutex<LogLines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LogLines {
    waiting: VecDeque<(LogLevel, String)>,
    period_ends: Option<Instant>,
    /// By level: the lines of this period, and those of it that were dropped.
    logged: [u32; 2],
    dropped: [u64; 2],
    is_closed: bool,
}

impl LogQueue {
    /// Waits for the next line; `None` after [`LogQueue::finish`].
    pub fn next_line(&self) -> Option<(LogLevel, String)> {
        let waits = |lines: &mut LogLines| lines.waiting.is_empty() && !lines.is_closed;
        let lines = self.changed.wait_while(self.lock(), waits);
        lines.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }

    pub(crate) fn info(&self, line: impl FnOnce() -> String, now: Instant) {
        self.log(LogLevel::Info, line, now);
    }

    pub(crate) fn warn(&self, line: impl FnOnce() -> String, now: Instant) {
        self.log(LogLevel::Warning, line, now);
    }

    fn log(&self, level: LogLevel, line: impl FnOnce() -> String, now: Instant) {
        let mut lines = self.lock();
        if lines.period_ends.is_none_or(|end| now >= end) {
            lines.begin_period(now);
        }
        let LogLines { logged: [infos, warnings], dropped: [lost_infos, lost_warnings], .. } =
            &mut *lines;
        let (logged, dropped) = match level {
            LogLevel::Info => (infos, lost_infos),
            LogLevel::Warning => (warnings, lost_warnings),
        };
        if *logged == LINES_MAX {
            *dropped += 1;
            return;
        }
        *logged += 1;
        lines.push(level, line());
        self.changed.notify_one();
    }

    /// Ends the log after the lines that wait.
    pub fn finish(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, LogLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogLines {
    fn begin_period(&mut self, now: Instant) {
        self.period_ends = Some(now + PERIOD);
        self.logged = [0; 2];
        let dropped = std::mem::take(&mut self.dropped);
        for (level, dropped) in [LogLevel::Info, LogLevel::Warning].into_iter().zip(dropped) {
            if dropped > 0 {
                self.push(level, format!("{dropped} more like those before"));
            }
        }
    }

    fn push(&mut self, level: LogLevel, line: String) {
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((level, line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_past_the_rate_limit_are_only_counted() {
        let (log_queue, now) = (LogQueue::default(), Instant::now());
        for number in 0..LINES_MAX + 5 {
            log_queue.warn(|| format!("line {number}"), now);
        }
        // Lines of one level take no room from the other.
        log_queue.info(|| "connected".to_owned(), now);
        log_queue.warn(|| "later".to_owned(), now + PERIOD);
        log_queue.finish();
        let lines: Vec<_> = std::iter::from_fn(|| log_queue.next_line()).collect();
        assert_eq!(lines.len(), 13);
        let warning = |text: &str| (LogLevel::Warning, text.to_owned());
        assert_eq!(lines[9], warning("line 9"));
        assert_eq!(lines[10], (LogLevel::Info, "connected".to_owned()));
        assert_eq!(lines[11], warning("5 more like those before"));
        assert_eq!(lines[12], warning("later"));
    }

    #[test]
    fn unread_lines_are_dropped() {
        let (log_queue, now) = (LogQueue::default(), Instant::now());
        for number in 0..=WAITING_MAX as u32 {
            log_queue.warn(|| number.to_string(), now + PERIOD * number);
        }
        assert_eq!(log_queue.next_line(), Some((LogLevel::Warning, "1".to_owned())));
    }
}
