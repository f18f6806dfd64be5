//! Lines for the program's log.
//!
//! Peers that are not authenticated cause lines, so the rate and the queue are bounded. Dropped
//! lines are counted.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines that are kept in each period.
const LINES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);
/// Lines that wait to be written.
const WAITING_MAX: usize = 100;

/// Lines that wait to be written to the log.
#[derive(Debug, Default)]
pub struct LogQueue {
    lines: Mutex<LogLines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LogLines {
    waiting: VecDeque<String>,
    period_ends: Option<Instant>,
    logged: u32,
    dropped: u64,
    is_closed: bool,
}

impl LogQueue {
    /// Waits for the next line; `None` after [`LogQueue::finish`].
    pub fn next_line(&self) -> Option<String> {
        let waits = |lines: &mut LogLines| lines.waiting.is_empty() && !lines.is_closed;
        let lines = self.changed.wait_while(self.lock(), waits);
        lines.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }

    pub(crate) fn log(&self, line: impl FnOnce() -> String, now: Instant) {
        let mut lines = self.lock();
        if lines.period_ends.is_none_or(|end| now >= end) {
            lines.period_ends = Some(now + PERIOD);
            lines.logged = 0;
            let dropped = std::mem::take(&mut lines.dropped);
            if dropped > 0 {
                lines.push(format!("{dropped} more like those before"));
            }
        }
        if lines.logged == LINES_MAX {
            lines.dropped += 1;
            return;
        }
        lines.logged += 1;
        lines.push(line());
        self.changed.notify_one();
    }

    pub(crate) fn finish(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, LogLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogLines {
    fn push(&mut self, line: String) {
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_past_the_rate_limit_are_only_counted() {
        let (log_queue, now) = (LogQueue::default(), Instant::now());
        for number in 0..LINES_MAX + 5 {
            log_queue.log(|| format!("line {number}"), now);
        }
        log_queue.log(|| "later".to_owned(), now + PERIOD);
        log_queue.finish();
        let lines: Vec<_> = std::iter::from_fn(|| log_queue.next_line()).collect();
        assert_eq!(lines.len(), 12);
        assert_eq!(lines[9], "line 9");
        assert_eq!(lines[10], "5 more like those before");
        assert_eq!(lines[11], "later");
    }

    #[test]
    fn unread_lines_are_dropped() {
        let (log_queue, now) = (LogQueue::default(), Instant::now());
        for number in 0..=WAITING_MAX as u32 {
            log_queue.log(|| number.to_string(), now + PERIOD * number);
        }
        assert_eq!(log_queue.next_line().as_deref(), Some("1"));
    }
}
