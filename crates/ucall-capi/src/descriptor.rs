//! Writes lines to a descriptor that belongs to the program, so that a log never harms a server.
//!
//! Whoever reads the other end of a pipe may have gone, or may have stopped reading. The first ends
//! a process by SIGPIPE, unless the program ignores it, and the second would hold up the thread
//! that serves. So a line is written only where there is room, and with that signal held back.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;

/// Whether something can be written there at all.
pub(crate) fn is_open_for_writing(descriptor: RawFd) -> bool {
    // SAFETY: this only asks, of any number.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    flags != -1 && flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Writes a line if there is room for it and somebody to read it, else drops it. One write, so that
/// lines of several threads do not mix.
pub(crate) fn write_line(descriptor: RawFd, line: &str) {
    if is_writable(descriptor) {
        without_sigpipe(|| {
            // SAFETY: the line is readable. That the descriptor is open, or harmless if it is not,
            // is for whoever named it in the configuration.
            unsafe { libc::write(descriptor, line.as_ptr().cast(), line.len()) }
        });
    }
}

/// Of a pipe, whether `PIPE_BUF` bytes would not block and somebody reads; files always have room.
/// What cannot be polled counts as a file: macOS says so of terminals.
fn is_writable(descriptor: RawFd) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry is readable and writable, and nothing is waited for.
    let found = unsafe { libc::poll(&raw mut poll, 1, 0) };
    found == 1 && poll.revents & (libc::POLLERR | libc::POLLHUP) == 0
}

/// Runs `write` with SIGPIPE held back from this thread, and takes back the one that it raised. The
/// reader may go just before the write, and no flag of write(2) asks for silence.
fn without_sigpipe(write: impl FnOnce() -> isize) {
    // SAFETY: the sets are made before they are read. A signal that was held back already, or was
    // pending, stays so: only one that came with the write, which goes to this thread, is taken.
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
    // SAFETY: the set is written before it is read.
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
