//! Writes log lines to a descriptor of the program, without blocking and without SIGPIPE.
//!
//! The reader of a pipe may have left: then a write raises SIGPIPE, which ends a process that does
//! not ignore it. Or it may have stopped reading: then a write blocks the serving thread. So a line
//! is written if there is room for it, with SIGPIPE blocked.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;

/// Whether `descriptor` is open for writing.
pub(crate) fn is_open_for_writing(descriptor: RawFd) -> bool {
    // SAFETY: any number may be queried.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    flags != -1 && flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Writes a line if there is room and a reader for it, and drops it otherwise. One write, so that
/// the lines of several threads do not mix.
pub(crate) fn write_line(descriptor: RawFd, line: &str) {
    if is_writable(descriptor) {
        without_sigpipe(|| {
            // SAFETY: the line is readable. The header asks the program to keep the descriptor
            // open.
            unsafe { libc::write(descriptor, line.as_ptr().cast(), line.len()) }
        });
    }
}

/// Whether a pipe has a reader and room for `PIPE_BUF` bytes; a file always has room. On macOS a
/// terminal cannot be polled, and counts as a file.
fn is_writable(descriptor: RawFd) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry is readable and writable.
    let found = unsafe { libc::poll(&raw mut poll, 1, 0) };
    found == 1 && poll.revents & (libc::POLLERR | libc::POLLHUP) == 0
}

/// Runs `write` with SIGPIPE blocked in this thread, and consumes the signal that it raises. The
/// reader may leave just before the write, and write(2) has no flag against the signal.
fn without_sigpipe(write: impl FnOnce() -> isize) {
    // SAFETY: the sets are initialised before they are read. A signal that was blocked or pending
    // stays so: only the one that the write raised, in this thread, is consumed.
    unsafe {
        let (mut pipe, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        let was_pending = is_sigpipe_pending();
        if libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr()) != 0 {
            return;
        }
        if write() == -1 && !was_pending && is_sigpipe_pending() {
            libc::sigwait(pipe.as_ptr(), &mut 0);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
    }
}

fn is_sigpipe_pending() -> bool {
    let mut pending = MaybeUninit::uninit();
    // SAFETY: the set is initialised before it is read.
    unsafe {
        libc::sigpending(pending.as_mut_ptr()) == 0
            && libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_write_without_a_reader_leaves_no_signal_pending() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert!(!is_writable(writer.as_raw_fd()));
        without_sigpipe(|| {
            // SAFETY: one byte is readable.
            let written = unsafe { libc::write(writer.as_raw_fd(), c"x".as_ptr().cast(), 1) };
            assert!(written == -1 && is_sigpipe_pending());
            written
        });
        assert!(!is_sigpipe_pending());
    }

    #[test]
    fn a_full_pipe_drops_lines_without_blocking() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let line = "x".repeat(1023) + "\n";
        let mut written = 0;
        while is_writable(writer.as_raw_fd()) {
            write_line(writer.as_raw_fd(), &line);
            written += 1;
        }
        write_line(writer.as_raw_fd(), "lost\n");
        reader.read_exact(&mut vec![0; line.len() * written]).unwrap();
        write_line(writer.as_raw_fd(), "found\n");
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "found\n");
    }

    #[test]
    fn descriptors_that_are_not_writable_are_detected() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(is_open_for_writing(writer.as_raw_fd()));
        assert!(!is_open_for_writing(reader.as_raw_fd()));
        assert!(!is_open_for_writing(File::open("/dev/null").unwrap().as_raw_fd()));
        assert!(!is_open_for_writing(-1));
        assert!(!is_open_for_writing(i32::MAX));
    }
}
