//! Frames over raw TCP: any bytes, and frames with large parts of which some bytes are changed.
//!
//! For any input: parts are aligned, lie behind each other within the frame, and have the bytes
//! that it has there; what is answered does not depend on how the stream is cut, nor on whether
//! bytes go to a target; and nothing is held when the connection has ended.

use ucall_proto::{
    Binary, Call, CallOutcome, FRAME_ALIGNMENT, FRAME_BYTE, FrameHead, Limits, NextAction, Reply,
    ResultFormat, ResultPart, Service, frame_padding, write_frame_head,
};

use crate::harness::Driver;
use crate::random::Random;

/// Returns the parts of its document in reverse.
#[derive(Default)]
struct Reversed {
    binary: Option<Binary>,
    result: Vec<ResultPart>,
}

impl Service for Reversed {
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        let parts = self.binary.as_ref().and_then(|binary| binary.parts.clone());
        let count = parts.as_ref().map_or(0, |parts| parts.count());
        let mut text = String::from("[");
        for index in (0..count).rev() {
            let part = parts.as_ref().and_then(|parts| parts.get(index)).expect("it is counted");
            assert_eq!(part.bytes.as_ptr().align_offset(FRAME_ALIGNMENT), 0);
            let bytes = part.bytes.to_vec().into();
            self.result.push(ResultPart { tensor: None, bytes });
            let separator = if text.len() > 1 { "," } else { "" };
            text += &format!("{separator}{{\"$part\":{}}}", self.result.len() - 1);
        }
        if let (Some(parts), Some(params)) = (&parts, call.params) {
            drop(parts.inline(params));
        }
        if self.binary.as_ref().is_none_or(|it| it.results != ResultFormat::Parts) {
            self.result.clear();
            text = "[".into();
        }
        reply.result().extend_from_slice((text + "]").as_bytes());
        CallOutcome::Done
    }

    fn set_binary(&mut self, binary: Option<&Binary>) {
        self.binary = binary.cloned();
    }

    fn take_result_parts(&mut self) -> Vec<ResultPart> {
        std::mem::take(&mut self.result)
    }
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    (limits.body_bytes_max, limits.parts_max) = (400_000, 8);
    limits
}

/// Reads the input as a frame, and answers it and a changed one.
///
/// # Panics
/// When a promise is broken.
pub fn run(input: &[u8]) {
    let (mut random, text) = Random::of_input(input);
    check_head(text);
    let stream = match text.first() {
        Some(&FRAME_BYTE) => text.to_vec(),
        _ => changed(text, &mut random),
    };
    let whole = answer(&[&stream], usize::MAX);
    // Within the parts one cut is as another.
    let (front, parts) = stream.split_at(stream.len().min(400));
    let mut pieces = random.pieces(front);
    pieces.extend(parts.chunks(1 + random.below(100_000)));
    let target_piece = 1 + random.below(100_000);
    let (sent, next_action) = answer(&pieces, target_piece);
    assert_eq!((sent.len(), next_action), (whole.0.len(), whole.1), "it depends on the cuts");
    let same = sent.iter().zip(&whole.0).take_while(|(one, other)| one == other).count();
    assert_eq!(same, sent.len(), "it depends on the cuts");
}

fn check_head(bytes: &[u8]) {
    let limits = limits();
    let Ok(Some(head)) = FrameHead::parse(bytes, &limits) else { return };
    assert!(head.len <= limits.body_bytes_max && head.parts.len() <= limits.parts_max);
    let mut end = head.text.end;
    for part in &head.parts {
        let is_next = end <= part.start && part.start - end < FRAME_ALIGNMENT;
        assert!(is_next && part.start % FRAME_ALIGNMENT == 0 && part.start <= part.end);
        end = part.end;
    }
    assert_eq!(head.len, end);
    let places = head.places.as_deref().unwrap_or_default();
    assert!(places.len() <= limits.parts_max && (places.is_empty() || head.parts.is_empty()));
    let bytes: u64 = places.iter().map(|place| place.bytes).sum();
    assert!(bytes <= limits.body_bytes_max as u64);
    assert!(head.text.start >= 8 + 8 * head.parts.len() + 32 * places.len());
}

/// Two frames of this text, with parts of any length, some bytes of the first changed.
fn changed(text: &[u8], random: &mut Random) -> Vec<u8> {
    let mut stream = frame(text, random);
    for _ in 0..random.below(3) {
        let end = if random.one_in(2) { stream.len() } else { stream.len().min(80) };
        // The first byte decides the protocol.
        let at = 1 + random.below(end - 1);
        stream[at] = random.below(256) as u8;
    }
    stream.extend(frame(br#"{"jsonrpc":"2.0","method":"m","id":1}"#, random));
    stream
}

fn frame(text: &[u8], random: &mut Random) -> Vec<u8> {
    let lens: Vec<usize> = (0..random.below(4))
        .map(|_| if random.one_in(4) { random.below(150_000) } else { random.below(200) })
        .collect();
    let mut frame = Vec::new();
    write_frame_head(&mut frame, text.len(), &lens).expect("the numbers are small");
    frame.extend_from_slice(text);
    for len in lens {
        frame.extend_from_slice(frame_padding(frame.len()));
        frame.resize(frame.len() + len, len as u8);
    }
    frame
}

/// What a connection answers to `pieces`, with all output sent at once.
fn answer(pieces: &[&[u8]], target_piece: usize) -> (Vec<u8>, NextAction) {
    let mut driver = Driver::serving(Reversed::default(), limits());
    let mut sent = Vec::new();
    for piece in pieces {
        receive(&mut driver, piece, target_piece, &mut sent);
    }
    while !driver.out.is_empty() {
        send(&mut driver, &mut sent);
    }
    let next_action = match driver.connection.next_action() {
        // Whether a target is next depends on how much has arrived in one piece.
        NextAction::Fill => NextAction::Receive,
        NextAction::Close => NextAction::DiscardInput,
        other => other,
    };
    driver.handle_eof();
    sent.append(&mut driver.out);
    assert_eq!(driver.held_bytes(), 0);
    (sent, next_action)
}

fn receive(
    driver: &mut Driver<Reversed>,
    mut bytes: &[u8],
    target_piece: usize,
    sent: &mut Vec<u8>,
) {
    while !bytes.is_empty() {
        match driver.connection.next_action() {
            NextAction::Fill => {
                let mut target = driver.poll_target().expect("there is memory");
                let count = target.write(&bytes[..bytes.len().min(target_piece)]);
                bytes = &bytes[count..];
                driver.return_target(target);
            }
            NextAction::Pause => send(driver, sent),
            _ => {
                driver.receive(bytes);
                return;
            }
        }
    }
}

fn send(driver: &mut Driver<Reversed>, sent: &mut Vec<u8>) {
    sent.append(&mut driver.out);
    driver.resume();
}
