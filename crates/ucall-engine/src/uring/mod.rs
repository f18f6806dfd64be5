//! The engine on io_uring.
//!
//! Every operation is a submission, which is queued here and submitted with the next wait, in one
//! system call. Connections are accepted into the ring's file table and receive into buffers that
//! the kernel selects from a ring of them, so an idle connection holds no memory.
//!
//! **Memory.** Memory that the kernel may access belongs to a slot, and a slot is freed only after
//! the last completion of its operations. Closing retires the slot first: its operations are
//! cancelled, and its id is invalid while they end. Dropping the engine closes everything and waits
//! for the last completion; operations that do not end in time are leaked, not freed.
//!
//! **Threads and forks.** One thread makes the engine and drives it. A forked child must not use
//! it: the child lacks the memory of the queues. Dropping it in the child leaks it.

mod accept;
mod buffers;
mod datagrams;
mod deadline_timer;
mod delivery;
mod features;
mod file;
mod memory;
mod message_header;
mod ring;
mod send;
mod sending;
mod stream;
mod token;
mod wake;
mod watch;

use std::io;
use std::mem::{self, ManuallyDrop};
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::{cqueue, opcode, types};
use ucall_buffer::{Payload, Target};

use crate::shared::{self, Channel};
use crate::slab::Slab;
use crate::wait_timeout::WaitTimeout;
use crate::{
    Arrival, Completion, DatagramDrops, DatagramPath, Engine, Id, Peer, Readiness, SendState,
    Waker, peer,
};

use accept::Listener;
use buffers::{GROUP, StreamBuffers};
use datagrams::{DatagramSends, Datagrams};
use deadline_timer::DeadlineTimer;
use delivery::Delivery;
pub use features::Features;
use file::File;
use memory::StableBox;
use message_header::MessageHeader;
use ring::Ring;
use stream::Stream;
use token::{Operation, Token};
use wake::Wakeups;
use watch::Watch;

/// The size of the completion queue as a multiple of the submission queue's. The kernel stores
/// completions that do not fit, at a cost.
const COMPLETIONS_PER_SUBMISSION: u32 = 4;
/// A ring with fewer submissions than this is not worth having.
const QUEUE_DEPTH_MIN: u32 = 8;
/// Slots in the file table that stay free, if it is large enough: the kernel accepts a few more
/// connections after an accept was cancelled.
const RESERVED_FILES: u32 = 256;
/// How long dropping the engine waits for its operations to end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// How large to make the engine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Submissions queued before they go to the kernel without waiting for the end of the turn.
    pub queue_depth: u32,
    /// Connections accepted and open at the same time, also bounded by the soft limit on
    /// descriptors; see [`raise_descriptor_limit`](crate::raise_descriptor_limit). At the limit,
    /// accepting pauses with [`Completion::AcceptFailed`].
    pub sockets_max: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { queue_depth: 512, sockets_max: 16_384 }
    }
}

/// The engine on io_uring.
pub struct Uring {
    ring: ManuallyDrop<Ring>,
    features: Features,
    buffers: ManuallyDrop<StreamBuffers>,
    wakeups: ManuallyDrop<Wakeups>,
    deadline_timer: DeadlineTimer,
    slots: Slab<Slot>,
    /// Holds completions while they are taken in.
    reaped: Vec<cqueue::Entry>,
    datagram_sends: DatagramSends,
    /// The group of buffers that was made last.
    last_group: u16,
    /// What was reported by the last wait, in order.
    deliveries: Vec<Delivery>,
    previous_deliveries: Vec<Delivery>,
    cached_messages: Vec<StableBox<MessageHeader>>,
    /// What to report in the next wait.
    deferred: Vec<Completion>,
    /// Sockets that continue to receive after the reported arrivals are settled.
    restart: Vec<Id>,
    /// Sockets that continue to receive after the caller has got their full targets.
    filled: Vec<Id>,
    /// Places of streams that send silently.
    skip_success_sends: Vec<u32>,
    /// Work waits for the end of a send without a completion, so the next wait must not block
    /// before that.
    must_not_block: bool,
    /// Direct descriptors open.
    files: u32,
    files_max: u32,
    dropping: bool,
    process: u32,
}

enum Slot {
    Listener(Listener),
    Stream(Stream),
    /// Boxed, so that a stream takes no more room in the table.
    Datagrams(Box<Datagrams>),
    Watch(Watch),
}

impl Slot {
    /// Whether nothing is in flight for it.
    fn is_idle(&self) -> bool {
        match self {
            Slot::Listener(listener) => !listener.accepting,
            Slot::Stream(stream) => stream.is_idle(),
            Slot::Datagrams(datagrams) => datagrams.is_idle(),
            Slot::Watch(watch) => watch.is_idle(),
        }
    }
}

impl Uring {
    /// An engine with nothing in it, to be driven by this thread.
    pub fn new(config: Config, features: Features) -> io::Result<Self> {
        let (ring, files_max, buffers) = set_up(config, features).map_err(features::explain)?;
        let mut engine = Self {
            ring: ManuallyDrop::new(ring),
            features,
            buffers: ManuallyDrop::new(buffers),
            wakeups: ManuallyDrop::new(Wakeups::new()?),
            deadline_timer: DeadlineTimer::new(),
            slots: Slab::new(),
            reaped: Vec::new(),
            datagram_sends: DatagramSends::default(),
            last_group: GROUP,
            deliveries: Vec::new(),
            previous_deliveries: Vec::new(),
            cached_messages: Vec::new(),
            deferred: Vec::new(),
            restart: Vec::new(),
            filled: Vec::new(),
            skip_success_sends: Vec::new(),
            must_not_block: false,
            files: 0,
            files_max,
            dropping: false,
            process: std::process::id(),
        };
        engine.await_wake();
        Ok(engine)
    }

    /// Handles all completions. Sends come first, those without a completion included: the reply to
    /// a request of the same turn then finds its socket free, and is not queued.
    fn reap(&mut self, completions: &mut Vec<Completion>) {
        let mut others = mem::take(&mut self.reaped);
        while let Some(entry) = self.ring.next_send(&mut others) {
            self.on_send(entry.user_data() as u32, &entry, completions);
        }
        self.reap_skipped_cqes(completions);
        for entry in &others {
            if Operation::Receive.is_in(entry.user_data()) {
                self.on_receive(entry.user_data() as u32, entry, completions);
            } else {
                self.complete(entry, completions);
            }
        }
        others.clear();
        self.reaped = others;
    }

    /// Handles the less frequent completions.
    #[inline(never)]
    fn complete(&mut self, entry: &cqueue::Entry, completions: &mut Vec<Completion>) {
        let Token { operation, index } = Token::decode(entry.user_data());
        match operation {
            Operation::Fill => self.on_fill(index, entry, completions),
            Operation::Check => self.on_check(index, entry, completions),
            Operation::Hangup => self.on_hangup(index, entry, completions),
            Operation::Shutdown => self.on_shutdown(index),
            Operation::Accept => self.on_accept(index, entry, completions),
            Operation::ReceiveFrom => self.on_receive_from(index, entry, completions),
            Operation::SendTo => self.on_send_to(index),
            Operation::Poll => self.on_poll(index, entry, completions),
            Operation::Wake => self.on_wake(completions),
            Operation::Timer => self.deadline_timer.expires_at = None,
            Operation::Send | Operation::Receive => {}
            Operation::Ignored | Operation::Install => {}
        }
    }

    /// Goes on receiving where that had to wait for deliveries to be settled.
    fn restart_receives(&mut self, completions: &mut Vec<Completion>) {
        while let Some(socket) = self.restart.pop() {
            if let Some(Slot::Stream(stream)) = self.slots.get_mut(socket) {
                if let Some(target) = stream.take_target_after_eof() {
                    let result = Err(io::ErrorKind::UnexpectedEof.into());
                    completions.push(Completion::Filled { socket, target, result });
                }
                self.receive_next(socket.index);
            }
        }
    }

    /// Frees a retired slot if it has no pending operation.
    fn free_if_idle(&mut self, index: u32) {
        if self.slots.is_retired(index)
            && self.slots.at_mut(index).is_some_and(|(_, slot)| slot.is_idle())
            && let Some(Slot::Datagrams(datagrams)) = self.slots.free(index)
        {
            datagrams.unregister(&self.ring.submitter());
        }
    }

    /// Calls `read` with an ordinary descriptor of a stream socket.
    fn with_descriptor<T>(
        &mut self,
        socket: Id,
        read: impl FnOnce(BorrowedFd<'_>) -> T,
    ) -> io::Result<T> {
        let Some(Slot::Stream(stream)) = self.slots.get(socket) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        match &stream.file {
            File::Plain(descriptor) => Ok(read(descriptor.as_fd())),
            File::Direct(file) => {
                let file = *file;
                Ok(read(self.install(file)?.as_fd()))
            }
        }
    }

    /// An ordinary descriptor for a direct one.
    fn install(&mut self, file: u32) -> io::Result<OwnedFd> {
        if !self.features.install_descriptor {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let entry = opcode::FixedFdInstall::new(types::Fixed(file), 0).build();
        // SAFETY: the entry names no memory.
        let descriptor = unsafe { self.ring.call(entry)? };
        // SAFETY: the kernel made the descriptor for us just now.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

/// A ring with its files and buffers: of the configured depth, or less where memory is scarce.
fn set_up(config: Config, features: Features) -> io::Result<(Ring, u32, StreamBuffers)> {
    let mut depth = config.queue_depth.max(QUEUE_DEPTH_MIN);
    let set_up = |depth| set_up_with(depth, config.sockets_max, features);
    while depth > QUEUE_DEPTH_MIN {
        match set_up(depth) {
            Err(error) if is_out_of_resources(&error) => depth /= 2,
            made => return made,
        }
    }
    features::wait_for_memory(|| set_up(QUEUE_DEPTH_MIN))
}

fn set_up_with(
    depth: u32,
    sockets_max: u32,
    features: Features,
) -> io::Result<(Ring, u32, StreamBuffers)> {
    let ring = features.ring(depth, depth.saturating_mul(COMPLETIONS_PER_SUBMISSION))?;
    let mut ring = Ring::new(ring, features);
    let files_max = register_files(&mut ring, sockets_max)?;
    let buffers = StreamBuffers::new(&ring.submitter(), GROUP)?;
    Ok((ring, files_max, buffers))
}

/// Makes the file table, as large as configured or allowed; returns the number of open connections
/// at which accepting pauses.
fn register_files(ring: &mut Ring, sockets_max: u32) -> io::Result<u32> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = limit.current.map_or(u32::MAX, |limit| limit.try_into().unwrap_or(u32::MAX));
    let mut size = sockets_max.saturating_add(RESERVED_FILES).min(limit);
    loop {
        match ring.submitter().register_files_sparse(size) {
            Err(error) if is_out_of_resources(&error) && size > QUEUE_DEPTH_MIN => size /= 2,
            registered => {
                let reserved = RESERVED_FILES.min(size / 4);
                return registered.map(|()| sockets_max.min(size - reserved));
            }
        }
    }
}

fn is_out_of_resources(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EMFILE))
}

impl Engine for Uring {
    const NAME: &'static str = "uring";
    const SENDS_AT_ONCE: bool = false;

    fn listen(&mut self, socket: impl Into<crate::Listener>) -> io::Result<Id> {
        let id = self.slots.insert(Slot::Listener(Listener::new(socket.into())));
        self.accept_next(id.index);
        Ok(id)
    }

    fn adopt(&mut self, stream: OwnedFd) -> io::Result<Id> {
        let id = self.slots.insert(Slot::Stream(Stream::new(File::Plain(stream))));
        self.receive_next(id.index);
        Ok(id)
    }

    fn bind_datagrams(&mut self, socket: UdpSocket) -> io::Result<Id> {
        self.add_datagrams(socket)
    }

    fn watch(&mut self, descriptor: BorrowedFd<'_>, interest: Readiness) -> io::Result<Id> {
        let id = self.slots.insert(Slot::Watch(Watch::new(descriptor)));
        self.arm_watch(id, interest);
        Ok(id)
    }

    fn rewatch(&mut self, watch: Id, interest: Readiness) -> io::Result<()> {
        self.arm_watch(watch, interest);
        Ok(())
    }

    fn pause(&mut self, id: Id) {
        match self.slots.get(id) {
            Some(Slot::Listener(_)) => self.pause_listener(id.index),
            Some(Slot::Stream(_)) => self.pause_stream(id),
            Some(Slot::Datagrams(_)) => self.pause_datagrams(id),
            Some(Slot::Watch(_)) | None => {}
        }
    }

    fn resume(&mut self, id: Id) {
        match self.slots.get(id) {
            Some(Slot::Listener(_)) => self.resume_listener(id),
            Some(Slot::Stream(_)) => self.resume_stream(id),
            Some(Slot::Datagrams(_)) => self.resume_datagrams(id),
            Some(Slot::Watch(_)) | None => {}
        }
    }

    #[inline(always)]
    fn receive(&mut self, arrival: Arrival) -> io::Result<&mut [u8]> {
        self.take(&arrival)
    }

    fn receive_from(&mut self, socket: Id) -> io::Result<(&mut [u8], DatagramPath)> {
        self.next_datagram(socket)
    }

    fn receive_into(&mut self, socket: Id, target: Target) {
        self.fill(socket, target);
    }

    fn check(&mut self, socket: Id) {
        self.check_stream(socket);
    }

    fn filled_bytes(&self, socket: Id) -> usize {
        match self.slots.get(socket) {
            Some(Slot::Stream(stream)) => stream.target.as_ref().map_or(0, Target::filled),
            _ => 0,
        }
    }

    fn send(&mut self, socket: Id, payload: Payload) -> SendState {
        self.send_stream(socket, payload, false)
    }

    #[inline(always)]
    fn send_last(&mut self, socket: Id, payload: Payload) -> SendState {
        self.send_stream(socket, payload, true)
    }

    fn sent_bytes(&self, socket: Id) -> usize {
        match self.slots.get(socket) {
            Some(Slot::Stream(stream)) => stream.sending.as_ref().map_or(0, |sending| sending.sent),
            _ => 0,
        }
    }

    fn send_to(&mut self, socket: Id, bytes: &[u8], path: DatagramPath) {
        self.send_datagram(socket, bytes, path);
    }

    fn datagram_drops(&self, socket: Id) -> DatagramDrops {
        match self.slots.get(socket) {
            Some(Slot::Datagrams(datagrams)) => datagrams.drops,
            _ => DatagramDrops::default(),
        }
    }

    fn shutdown(&mut self, socket: Id) {
        self.shut_down(socket);
    }

    fn close(&mut self, id: Id) {
        if !self.slots.retire(id) {
            return;
        }
        match self.slots.at_mut(id.index) {
            Some((_, Slot::Listener(_))) => self.pause_listener(id.index),
            Some((_, Slot::Stream(_))) => self.close_stream(id.index),
            Some((_, Slot::Datagrams(_))) => self.close_datagrams(id),
            Some((_, Slot::Watch(_))) => self.close_watch(id.index),
            None => {}
        }
        self.free_if_idle(id.index);
    }

    fn peer(&mut self, socket: Id) -> io::Result<Peer> {
        self.with_descriptor(socket, peer::peer_of)?
    }

    fn share_memory(&mut self, socket: Id, preamble: &[u8]) -> io::Result<Option<Channel>> {
        self.with_descriptor(socket, |socket| shared::send_server_preamble(socket, preamble))?
    }

    fn limit_unsent(&mut self, socket: Id, bytes_max: u32) {
        let _ = self.with_descriptor(socket, |socket| peer::limit_unsent(socket, bytes_max));
    }

    fn has_peer_left(&mut self, socket: Id) -> bool {
        match self.with_descriptor(socket, peer::has_left) {
            Ok(has_left) => has_left,
            Err(error) => error.kind() == io::ErrorKind::NotConnected,
        }
    }

    #[inline(always)]
    fn wait(
        &mut self,
        deadline: Option<Instant>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        let before = completions.len();
        if self.deferred.len() + self.filled.len() > 0 {
            completions.append(&mut self.deferred);
            self.restart.append(&mut self.filled);
        }
        self.recycle_deliveries(completions);
        self.reap(completions);
        loop {
            self.restart_receives(completions);
            self.buffers.publish();
            let must_not_block = mem::take(&mut self.must_not_block);
            let timeout = match must_not_block || completions.len() > before {
                true => WaitTimeout::Now,
                false => self.wait_timeout(deadline),
            };
            let entered = match timeout {
                WaitTimeout::Now => self.ring.submit(),
                WaitTimeout::After(timeout) => self.ring.submit_and_wait_for(timeout),
                WaitTimeout::Timer | WaitTimeout::NewTimer(_) => self.ring.submit_and_wait(),
            };
            match entered {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
                entered => entered?,
            }
            self.reap(completions);
            if timeout == WaitTimeout::Now && !must_not_block || completions.len() > before {
                return Ok(());
            }
        }
    }

    fn submit(&mut self) -> io::Result<bool> {
        self.ring.submit_queued()?;
        let reported = self.deferred.len() + self.filled.len() + self.restart.len();
        Ok(self.must_not_block || reported > 0)
    }

    fn waker(&self) -> Waker {
        self.wakeups.waker()
    }

    /// The ring, which is not readable then under [`Features::defer_taskrun`].
    fn poll_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor()
    }

    /// The ring: it holds the files of pending operations.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: it is open for as long as the ring is borrowed.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.descriptor()) })
    }

    fn system_calls(&self) -> u64 {
        self.ring.system_calls
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let ours = self.process == std::process::id();
        let finished = ours && self.finish_operations();
        // SAFETY: each is taken once, here, and not used after.
        let (ring, buffers, wakeups) = unsafe {
            (
                ManuallyDrop::take(&mut self.ring),
                ManuallyDrop::take(&mut self.buffers),
                ManuallyDrop::take(&mut self.wakeups),
            )
        };
        if finished {
            return drop((ring, buffers, wakeups));
        }
        if ours {
            drop(ring);
        } else {
            ring.leak();
        }
        buffers.leak();
        mem::forget(wakeups);
        for slot in mem::replace(&mut self.slots, Slab::new()).into_values() {
            match slot {
                // The kernel references the socket, but none of its memory: the port becomes free.
                Slot::Listener(listener) => drop(listener),
                slot => mem::forget(slot),
            }
        }
        mem::forget(mem::take(&mut self.datagram_sends));
    }
}

impl Uring {
    /// Closes everything and waits for all operations to end; `false` on a timeout. A listener with
    /// a pending accept would keep its port.
    fn finish_operations(&mut self) -> bool {
        self.dropping = true;
        for id in self.slots.ids() {
            self.close(id);
        }
        self.ring.cancel(Operation::Wake.at(0));
        let deadline = Instant::now() + FINISH_TIMEOUT;
        let mut ignored = Vec::new();
        loop {
            self.reap(&mut ignored);
            if self.slots.len() == 0 && !self.wakeups.reading {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let entered = self.ring.submit_and_wait_for(left);
            let failed = entered.is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
            if failed || left.is_zero() {
                return false;
            }
        }
    }
}
