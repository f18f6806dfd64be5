//! The reader and the model agree about any stream in any pieces.

use proptest::prelude::*;
use ucall_proto::websocket::{MessageLimits, unmask};

use crate::frame;
use crate::model::{decode, read};

fn first_byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        8 => prop::sample::select(vec![0x80u8, 0x81, 0x82, 0x00, 0x01, 0x02, 0x89, 0x8A]),
        1 => Just(0x88u8),
        1 => any::<u8>(),
    ]
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..140),
        "[aé€😀]{0,12}".prop_map(String::into_bytes),
        Just(b"\x03\xE8bye".to_vec()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 5_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_reader_and_the_model_agree(
        frames in prop::collection::vec((first_byte(), payload()), 0..6),
        (at, byte) in (any::<prop::sample::Index>(), any::<Option<u8>>()),
        piece_len in 1usize..50,
        (frame_bytes_max, message_bytes_max) in (100usize..150, 100usize..300),
        frames_max in 1usize..4,
    ) {
        let frames = frames.iter().flat_map(|(first, payload)| frame(*first, payload));
        let mut stream: Vec<u8> = frames.collect();
        if let Some(byte) = byte && !stream.is_empty() {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        let limits = MessageLimits { frame_bytes_max, message_bytes_max, frames_max };
        let expected = decode(&stream, &limits);
        prop_assert_eq!(&read([&*stream], &limits), &expected);
        prop_assert_eq!(&read(stream.chunks(piece_len), &limits), &expected);
        prop_assert_eq!(&read(stream.chunks(1), &limits), &expected);
    }

    #[test]
    fn a_mask_is_undone_at_any_length(
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        key in any::<[u8; 4]>(),
    ) {
        let mut masked = bytes.clone();
        unmask(&mut masked, key);
        for (at, (masked, byte)) in masked.iter().zip(&bytes).enumerate() {
            prop_assert_eq!(*masked, byte ^ key[at % 4]);
        }
        unmask(&mut masked, key);
        prop_assert_eq!(masked, bytes);
    }
}
