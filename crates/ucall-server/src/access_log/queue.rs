//! The lines that wait for the thread that writes them.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ucall_engine::EngineClock;

use super::line::{LogFormat, write_dropped};
use crate::counters::Counters;

/// Bytes of lines that wait.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// A pipe takes this many bytes as a whole, so lines of several processes do not mix (`PIPE_BUF`).
const PIECE_BYTES_MAX: usize = 4096;

/// A bounded queue of lines.
#[derive(Debug, Default)]
pub(super) struct LineQueue {
    lines: Mutex<Lines>,
    changed: Condvar,
    written: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    /// Lines dropped since the last one that was taken.
    dropped: u64,
    is_writing: bool,
    is_closed: bool,
    counters: Arc<Counters>,
}

impl LineQueue {
    pub(super) fn set_counters(&self, counters: Arc<Counters>) {
        self.lock().counters = counters;
    }

    /// Adds a line, or drops it if the queue is full.
    pub(super) fn push(&self, line: &[u8]) {
        let mut lines = self.lock();
        if lines.text.len() + line.len() > WAITING_BYTES_MAX {
            lines.dropped += 1;
            lines.counters.add_dropped_log_lines(1);
            return;
        }
        let was_empty = lines.text.is_empty();
        lines.text.extend_from_slice(line);
        drop(lines);
        if was_empty {
            self.changed.notify_one();
        }
    }

    /// Writes all lines until the queue is closed. Lines that cannot be written are dropped.
    pub(super) fn write_to(&self, mut output: Box<dyn Write + Send>, format: LogFormat) {
        let mut text = Vec::new();
        // A full disk may have taken a part of the last line.
        let mut may_be_cut = false;
        while let Some(dropped) = self.take(&mut text) {
            if dropped > 0 {
                write_dropped(&mut text, format, EngineClock::SYSTEM.unix_time(), dropped);
            }
            for piece in pieces(&text) {
                let end: &[u8] = if may_be_cut { b"\n" } else { b"" };
                let written = output.write_all(end).and_then(|()| output.write_all(piece));
                may_be_cut = written.and_then(|()| output.flush()).is_err();
                if may_be_cut {
                    self.count_dropped(piece.iter().filter(|&&byte| byte == b'\n').count() as u64);
                }
            }
            text.clear();
            self.lock().is_writing = false;
            self.written.notify_all();
        }
    }

    /// Takes the waiting lines, after a wait for the first, and the number of dropped ones.
    fn take(&self, text: &mut Vec<u8>) -> Option<u64> {
        let waits = |lines: &mut Lines| lines.text.is_empty() && !lines.is_closed;
        let waited = self.changed.wait_while(self.lock(), waits);
        let mut lines = waited.unwrap_or_else(PoisonError::into_inner);
        if lines.text.is_empty() {
            return None;
        }
        std::mem::swap(&mut lines.text, text);
        lines.is_writing = true;
        Some(std::mem::take(&mut lines.dropped))
    }

    fn count_dropped(&self, count: u64) {
        let mut lines = self.lock();
        lines.dropped += count;
        lines.counters.add_dropped_log_lines(count);
    }

    /// Waits until all lines are written, or the time has passed.
    pub(super) fn flush(&self, timeout: Duration) {
        let waits = |lines: &mut Lines| lines.is_writing || !lines.text.is_empty();
        drop(self.written.wait_timeout_while(self.lock(), timeout, waits));
    }

    /// Ends the thread that writes, after the last line.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Splits lines into pieces of whole lines.
fn pieces(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let longest = text.get(..PIECE_BYTES_MAX).unwrap_or(text);
        let is_newline = |&byte: &u8| byte == b'\n';
        let last = longest.iter().rposition(is_newline);
        let end = last.or_else(|| text.iter().position(is_newline)).map_or(text.len(), |it| it + 1);
        let (piece, rest) = text.split_at_checked(end)?;
        text = rest;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_has_whole_lines() {
        let line = |len: usize| [vec![b'x'; len - 1], vec![b'\n']].concat();
        let lines = [line(4000), line(96), line(1), line(5000), line(4096)].concat();
        let lengths: Vec<_> = pieces(&lines).map(<[u8]>::len).collect();
        assert_eq!(lengths, [4096, 1, 5000, 4096]);
        assert_eq!(pieces(b"").count(), 0);
    }

    /// A disk that takes so many bytes of each write, and of later ones all.
    struct FullDisk(Arc<Mutex<Vec<u8>>>, std::vec::IntoIter<usize>);

    impl Write for FullDisk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let taken = self.1.next().and_then(|room| bytes.get(..room)).unwrap_or(bytes);
            self.0.lock().unwrap().extend_from_slice(taken);
            if taken.is_empty() {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            Ok(taken.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_not_joined_to_one_that_a_full_disk_has_cut() {
        let (queue, written) = (LineQueue::default(), Arc::new(Mutex::new(Vec::new())));
        queue.push(&[&[b'x'; 4000][..], b"\n"].concat());
        queue.push(&[&[b'y'; 4000][..], b"\n"].concat());
        queue.close();
        queue.write_to(
            Box::new(FullDisk(written.clone(), vec![10, 0].into_iter())),
            LogFormat::Text,
        );
        let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let lengths: Vec<_> = written.lines().map(str::len).collect();
        assert_eq!(lengths, [10, 4000]);
    }

    #[test]
    fn lines_past_the_limit_are_dropped_and_counted() {
        let (queue, counters) = (LineQueue::default(), Arc::<Counters>::default());
        queue.set_counters(counters.clone());
        let line = vec![b'x'; WAITING_BYTES_MAX / 2];
        for _ in 0..5 {
            queue.push(&line);
        }
        assert_eq!(counters.stats().dropped_log_lines, 3);
        let mut text = Vec::new();
        assert_eq!(queue.take(&mut text), Some(3));
        assert_eq!(text.len(), WAITING_BYTES_MAX);
        queue.push(b"x\n");
        assert_eq!(queue.take(&mut Vec::new()), Some(0));
        queue.close();
        assert_eq!(queue.take(&mut Vec::new()), None);
    }
}
