//! Lines for the log, for whoever writes it.
//!
//! Strangers cause them, so there are only so many at a time; what is left out is counted.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many lines are written in each period.
const LINES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);
/// Lines that wait for somebody to write them.
const WAITING_MAX: usize = 100;

/// Lines that wait to be written to the log.
#[derive(Debug, Default)]
pub struct Journal {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    waiting: VecDeque<String>,
    period_ends: Option<Instant>,
    told: u32,
    left_out: u64,
    is_over: bool,
}

impl Journal {
    /// Waits for the next line; `None` when there will be no other.
    pub fn next_line(&self) -> Option<String> {
        let waits = |lines: &mut Lines| lines.waiting.is_empty() && !lines.is_over;
        let lines = self.changed.wait_while(self.lock(), waits);
        lines.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }

    pub(crate) fn tell(&self, line: impl FnOnce() -> String, now: Instant) {
        let mut lines = self.lock();
        if lines.period_ends.is_none_or(|end| now >= end) {
            lines.period_ends = Some(now + PERIOD);
            lines.told = 0;
            let left_out = std::mem::take(&mut lines.left_out);
            if left_out > 0 {
                lines.push(format!("{left_out} more like those before"));
            }
        }
        if lines.told == LINES_MAX {
            lines.left_out += 1;
            return;
        }
        lines.told += 1;
        lines.push(line());
        self.changed.notify_one();
    }

    pub(crate) fn finish(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
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
    fn a_flood_is_counted_and_not_kept() {
        let (journal, now) = (Journal::default(), Instant::now());
        for number in 0..LINES_MAX + 5 {
            journal.tell(|| format!("line {number}"), now);
        }
        journal.tell(|| "later".to_owned(), now + PERIOD);
        journal.finish();
        let lines: Vec<_> = std::iter::from_fn(|| journal.next_line()).collect();
        assert_eq!(lines.len(), 12);
        assert_eq!(lines[9], "line 9");
        assert_eq!(lines[10], "5 more like those before");
        assert_eq!(lines[11], "later");
    }

    #[test]
    fn lines_that_nobody_writes_are_let_go() {
        let (journal, now) = (Journal::default(), Instant::now());
        for number in 0..=WAITING_MAX as u32 {
            journal.tell(|| number.to_string(), now + PERIOD * number);
        }
        assert_eq!(journal.next_line().as_deref(), Some("1"));
    }
}
