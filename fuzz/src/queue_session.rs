//! A whole session of a queue: two session managers, and a link that a script moves, drops and
//! delays.
//!
//! For any script: each message that was put arrives once and in order, and its sender is notified;
//! a message that was cancelled in time never arrives. After a side was killed, a message may
//! arrive again at its successor, and is then marked. A message with explicit acknowledgement is
//! acknowledged by the program only.

use std::collections::BTreeSet;
use std::time::Duration;

use ucall_queue::{
    Acknowledge, DeliveryStatus, Encoding, Failure, Identity, Incoming, Options, Outgoing, Receipt,
};

use crate::queue_pair::{CLIENT, Pair, SERVER, Side, bytes};
use crate::random::Random;

const STEPS_MAX: usize = 64;
/// Longer ones in segments, and ones that get a target of their own.
const LENGTHS: [usize; 8] = [0, 1, 60, 500, 8192, 8193, 33_000, 70_000];

/// Plays the script in `input`.
///
/// # Panics
/// When a promise is broken.
pub fn run(input: &[u8]) {
    let (mut random, script) = Random::of_input(input);
    let kinds = [Acknowledge::Received, Acknowledge::Taken, Acknowledge::Explicit];
    let acknowledge = kinds[random.below(kinds.len())];
    let window_bytes = if random.one_in(4) { 1 << 17 } else { 16 << 20 };
    let mut talk = Talk::new(Options { acknowledge, window_bytes, ..Options::default() });
    for step in script.chunks(2).take(STEPS_MAX) {
        talk.play(step[0], usize::from(*step.last().unwrap_or(&0)), &mut random);
    }
    talk.end();
}

/// One direction: the messages put, and the messages received.
#[derive(Default)]
struct Direction {
    put: Vec<Put>,
    came: Vec<Incoming>,
    /// The indices in `came` of messages that this incarnation has not acknowledged.
    held: Vec<usize>,
    /// Numbers that any life has acknowledged.
    acknowledged: BTreeSet<usize>,
}

struct Put {
    bytes: Vec<u8>,
    receipt: Receipt,
    is_cancelled: bool,
    /// A process was killed while it was on its way, or might have been.
    is_lossy: bool,
}

struct Talk {
    pair: Pair,
    to_server: Direction,
    to_client: Direction,
    acknowledge: Acknowledge,
    has_killed: bool,
}

impl Talk {
    fn new(options: Options) -> Self {
        let acknowledge = options.acknowledge;
        let (to_server, to_client) = Default::default();
        let pair = Pair::new(options);
        let mut talk = Self { pair, to_server, to_client, acknowledge, has_killed: false };
        talk.meet();
        talk
    }

    /// The server knows the client from its first message on, and may put.
    fn meet(&mut self) {
        self.pair.client.put(b"");
        self.pair.run_until(|pair| !pair.server.take_all().is_empty());
    }

    fn play(&mut self, step: u8, amount: usize, random: &mut Random) {
        match step % 12 {
            0..2 => self.to_server.put(&self.pair.client, amount, random),
            2 => self.to_client.put(&self.pair.server, amount, random),
            3..6 => self.pair.turn(1 + amount),
            6 => self.pair.turn(1 + amount * 1000),
            7 => self.pair.cut(),
            8 => self.take(),
            9 => self.to_server.cancel(&self.pair.client, amount),
            10 => self.to_client.cancel(&self.pair.server, amount),
            11 if amount < 0x60 => self.acknowledge(amount, random),
            _ if amount >= 0xf0 => self.kill(if amount & 1 == 0 { SERVER } else { CLIENT }),
            // In total less than the time after which a peer has failed.
            _ => self.pair.now += Duration::from_millis(amount as u64),
        }
        if self.acknowledge == Acknowledge::Explicit {
            self.to_server.check_acknowledged();
            self.to_client.check_acknowledged();
        }
    }

    /// Acknowledges some of the received messages, in any order.
    fn acknowledge(&mut self, amount: usize, random: &mut Random) {
        for _ in 0..=amount % 8 {
            self.to_server.acknowledge(&mut self.pair.server, random);
            self.to_client.acknowledge(&mut self.pair.client, random);
        }
    }

    fn take(&mut self) {
        self.to_server.take(&mut self.pair.server);
        self.to_client.take(&mut self.pair.client);
    }

    /// The messages that the killed side had put are lost, unless they arrived; with `Received`, so
    /// are messages that it had received and not acknowledged.
    fn kill(&mut self, identity: Identity) {
        self.take();
        let (from, to) = match identity {
            SERVER => (&mut self.to_client, &mut self.to_server),
            _ => (&mut self.to_server, &mut self.to_client),
        };
        from.put.iter_mut().for_each(|put| put.is_lossy = true);
        // The messages in its sessions arrive again, and those that it had put are not waited for.
        to.held.clear();
        from.held.clear();
        if self.acknowledge == Acknowledge::Received {
            to.put.iter_mut().for_each(|put| put.is_lossy = true);
        }
        self.has_killed = true;
        self.pair.kill(identity);
        self.meet_again(identity);
    }

    fn meet_again(&mut self, identity: Identity) {
        if identity == CLIENT {
            // The server knows it by its handshake.
            self.pair.run_until(|pair| pair.client.outbox.peers().contains(&SERVER));
        } else {
            self.pair.run_until(|pair| pair.server.outbox.peers().contains(&CLIENT));
        }
    }

    /// Continues until every message has arrived or is lost, and checks those received.
    fn end(mut self) {
        let (to_server, to_client) = (&mut self.to_server, &mut self.to_client);
        self.pair.run_until(|pair| {
            to_server.take(&mut pair.server);
            to_client.take(&mut pair.client);
            to_server.acknowledge_all(&mut pair.server);
            to_client.acknowledge_all(&mut pair.client);
            to_server.is_settled() && to_client.is_settled()
        });
        self.take();
        self.to_server.check(self.has_killed);
        self.to_client.check(self.has_killed);
    }
}

impl Direction {
    fn put(&mut self, side: &Side, amount: usize, random: &mut Random) {
        // Its number, so that all messages differ.
        let mut bytes = self.put.len().to_le_bytes().to_vec();
        bytes.resize(8 + LENGTHS[amount % LENGTHS.len()], amount as u8);
        let message = if amount & 0x80 == 0 {
            Outgoing::copied(Encoding::Bytes, &bytes)
        } else {
            in_segments(&bytes, random)
        };
        let receipt = side.outbox.put(&[], &message).expect("room");
        self.put.push(Put { bytes, receipt, is_cancelled: false, is_lossy: false });
    }

    fn cancel(&mut self, side: &Side, amount: usize) {
        let from_last = amount % 4 + 1;
        let Some(at) = self.put.len().checked_sub(from_last) else { return };
        let put = &mut self.put[at];
        if let Receipt::One(delivery, number) = &put.receipt
            && !put.is_lossy
        {
            put.is_cancelled |= side.outbox.cancel(delivery, *number);
        }
    }

    fn take(&mut self, side: &mut Side) {
        while let Some(message) = side.take() {
            self.held.push(self.came.len());
            self.came.push(message);
        }
    }

    fn acknowledge(&mut self, side: &mut Side, random: &mut Random) {
        if !self.held.is_empty() {
            let at = self.held.swap_remove(random.below(self.held.len()));
            self.acknowledge_one(side, at);
        }
    }

    fn acknowledge_all(&mut self, side: &mut Side) {
        while let Some(at) = self.held.pop() {
            self.acknowledge_one(side, at);
        }
    }

    fn acknowledge_one(&mut self, side: &mut Side, at: usize) {
        let message = &self.came[at];
        side.acknowledge(message).expect("a session");
        // Again does nothing.
        side.acknowledge(message).expect("a session");
        let number = bytes(message).first_chunk().map(|number| usize::from_le_bytes(*number));
        self.acknowledged.extend(number);
    }

    /// Nothing is acknowledged that the program has not acknowledged.
    fn check_acknowledged(&self) {
        for (number, put) in self.put.iter().enumerate() {
            if put.progress() == DeliveryStatus::Done && !put.is_cancelled && !put.is_lossy {
                assert!(self.acknowledged.contains(&number), "{number} is not acknowledged");
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.put.iter().all(|put| put.is_lossy || put.progress() != DeliveryStatus::Pending)
    }

    fn check(&self, has_killed: bool) {
        let came: Vec<Vec<u8>> = self.came.iter().map(bytes).collect();
        let mut before = None;
        for (bytes, message) in came.iter().zip(&self.came) {
            // The message by which a client identifies itself.
            if bytes.is_empty() {
                continue;
            }
            let number = bytes.first_chunk().map(|number| usize::from_le_bytes(*number));
            let put = number.and_then(|number| self.put.get(number)).expect("one that was put");
            assert_eq!(*bytes, put.bytes);
            assert!(!put.is_cancelled, "it was taken back");
            assert!(before < number || (has_killed && message.redelivered), "out of order");
            before = number;
        }
        for put in self.put.iter().filter(|put| !put.is_lossy) {
            let times = came.iter().filter(|bytes| **bytes == put.bytes).count();
            match put.progress() {
                DeliveryStatus::Done if has_killed => assert!(put.is_cancelled || times >= 1),
                DeliveryStatus::Done => assert_eq!(times, usize::from(!put.is_cancelled)),
                DeliveryStatus::Failed(Failure::Unknown | Failure::PeerClosed) => {
                    assert_eq!(times, 0)
                }
                other => panic!("{other:?} of {times} that came"),
            }
        }
    }
}

impl Put {
    fn progress(&self) -> DeliveryStatus {
        match &self.receipt {
            Receipt::One(delivery, number) => delivery.progress(*number),
            Receipt::None(_, failure) => DeliveryStatus::Failed(failure.clone()),
            Receipt::Many(_) => DeliveryStatus::Pending,
        }
    }
}

/// The same bytes as several pieces, some of which are empty.
fn in_segments(bytes: &[u8], random: &mut Random) -> Outgoing<'static> {
    let mut parts: Vec<bytes::Bytes> =
        random.pieces(bytes).into_iter().take(30).map(bytes::Bytes::copy_from_slice).collect();
    let covered = parts.iter().map(bytes::Bytes::len).sum::<usize>();
    parts.push(bytes::Bytes::copy_from_slice(&bytes[covered..]));
    parts.insert(random.below(parts.len()), bytes::Bytes::new());
    let segments = parts.iter().map(|part| part.len() as u64).collect();
    Outgoing { encoding: Encoding::Serialized, copied: &[], parts, segments, names: &[] }
}
