//! The two queues, and every entry into the kernel.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Submitter, cqueue, opcode, squeue};

use super::Features;
use super::token::{Operation, Token};

pub(super) struct Ring {
    uring: ManuallyDrop<IoUring>,
    /// Submissions that did not fit in the queue.
    backlog: VecDeque<squeue::Entry>,
    /// Completions that were skipped in a search for another.
    early: VecDeque<cqueue::Entry>,
    /// The kernel sets a flag in shared memory when it has pending task work.
    has_taskrun_flag: bool,
    pub(super) system_calls: u64,
}

impl Ring {
    pub(super) fn new(uring: IoUring, features: Features) -> Self {
        Self {
            uring: ManuallyDrop::new(uring),
            backlog: VecDeque::new(),
            early: VecDeque::new(),
            has_taskrun_flag: !features.defers_taskrun(),
            system_calls: 1,
        }
    }

    /// For registering things.
    pub(super) fn submitter(&mut self) -> Submitter<'_> {
        self.system_calls += 1;
        self.uring.submitter()
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// Queues a submission, which is submitted at the next wait, or now if the queue is full.
    ///
    /// # Safety
    /// The memory that the entry refers to stays valid, at its address and unmodified until the
    /// last completion of the entry.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry, token: Token) {
        let entry = entry.user_data(token.encode());
        // SAFETY: passed on to our caller.
        if self.backlog.is_empty() && unsafe { self.uring.submission().push(&entry) }.is_ok() {
            return;
        }
        self.push_to_backlog(entry);
    }

    /// Makes room in a full queue.
    #[cold]
    fn push_to_backlog(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(entry);
        if !self.flush_backlog() {
            // Should the kernel refuse just now, the entry waits in the backlog, and the next wait
            // reports the error if it lasts.
            self.submit().unwrap_or(());
            self.flush_backlog();
        }
    }

    /// Cancels a pending operation, which completes with ECANCELED if it has not ended otherwise.
    /// Cancelling by token takes one step, cancelling by descriptor walks over all operations.
    pub(super) fn cancel(&mut self, token: Token) {
        // SAFETY: the entry names no memory.
        unsafe { self.push(opcode::AsyncCancel::new(token.encode()).build(), Token::IGNORED) }
    }

    /// Moves the backlog to the submission queue; returns `false` if not all of it fits.
    fn flush_backlog(&mut self) -> bool {
        if self.backlog.is_empty() {
            return true;
        }
        let mut queue = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the caller of `push` has promised what the entry needs.
            if unsafe { queue.push(entry) }.is_err() {
                return false;
            }
            self.backlog.pop_front();
        }
        true
    }

    /// Submits the queue, and runs deferred task work. Makes no system call if neither is needed,
    /// as far as the kernel's flags show.
    #[inline(never)]
    pub(super) fn submit(&mut self) -> io::Result<()> {
        self.flush_backlog();
        let queue = self.uring.submission();
        let may_idle = self.has_taskrun_flag && queue.is_empty();
        let idle = may_idle && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        if idle { Ok(()) } else { self.enter(0) }
    }

    /// Submits the queue, if there is something in it.
    #[inline(never)]
    pub(super) fn submit_queued(&mut self) -> io::Result<()> {
        self.flush_backlog();
        let is_empty = self.uring.submission().is_empty();
        match if is_empty { Ok(()) } else { self.enter(0) } {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            entered => entered,
        }
    }

    /// Submits the queue, runs deferred task work and waits for a completion, in one system call.
    #[inline(always)]
    pub(super) fn submit_and_wait(&mut self) -> io::Result<()> {
        self.enter(1)
    }

    /// Like [`Ring::submit_and_wait`], but waits for `timeout` at most.
    #[inline(never)]
    pub(super) fn submit_and_wait_for(&mut self, timeout: Duration) -> io::Result<()> {
        self.flush_backlog();
        self.system_calls += 1;
        let timeout = Timespec::from(timeout);
        let arguments = SubmitArgs::new().timespec(&timeout);
        ignore_expected(self.uring.submitter().submit_with_args(1, &arguments))
    }

    /// Enters the kernel once, to submit, to run deferred task work, and to wait for `wanted`
    /// completions.
    #[inline(always)]
    fn enter(&mut self, wanted: u32) -> io::Result<()> {
        self.flush_backlog();
        self.system_calls += 1;
        let queued = self.uring.submission().len() as u32;
        let flags = EnterFlags::GETEVENTS.bits();
        let submitter = self.uring.submitter();
        // SAFETY: the flags need no argument.
        ignore_expected(unsafe { submitter.enter::<libc::sigset_t>(queued, wanted, flags, None) })
    }

    /// Whether the kernel has everything that was queued, and we can see all that it completed.
    pub(super) fn is_flushed(&mut self) -> bool {
        let queue = self.uring.submission();
        self.backlog.is_empty() && queue.is_empty() && !queue.cq_overflow()
    }

    /// Moves completions to `others`, up to the first of a send, which it returns.
    #[inline(always)]
    pub(super) fn next_send(&mut self, others: &mut Vec<cqueue::Entry>) -> Option<cqueue::Entry> {
        while let Some(entry) = self.early.pop_front() {
            if Operation::Send.is_in(entry.user_data()) {
                return Some(entry);
            }
            others.push(entry);
        }
        for entry in self.uring.completion() {
            if Operation::Send.is_in(entry.user_data()) {
                return Some(entry);
            }
            others.push(entry);
        }
        None
    }

    /// Submits an operation that the kernel completes at once, and returns its result.
    ///
    /// # Safety
    /// As for [`Ring::push`].
    pub(super) unsafe fn call(&mut self, entry: squeue::Entry) -> io::Result<i32> {
        let token = Operation::Install.at(0);
        // SAFETY: passed on to our caller.
        unsafe { self.push(entry, token) };
        loop {
            let submitted = self.backlog.is_empty();
            self.submit()?;
            while let Some(entry) = self.uring.completion().next() {
                if entry.user_data() == token.encode() {
                    return result_of(&entry);
                }
                self.early.push_back(entry);
            }
            if submitted {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Never touches the ring again, not even to close it.
    pub(super) fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: dropped once, here, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.uring) };
    }
}

/// The result of a completion.
pub(super) fn result_of(entry: &cqueue::Entry) -> io::Result<i32> {
    match entry.result() {
        result @ 0.. => Ok(result),
        errno => Err(io::Error::from_raw_os_error(-errno)),
    }
}

/// A deadline that passed is no error, nor is a kernel that wants its completions read first.
fn ignore_expected(entered: io::Result<usize>) -> io::Result<()> {
    match entered {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EBUSY | libc::EAGAIN)) =>
        {
            Ok(())
        }
        entered => entered.map(drop),
    }
}
