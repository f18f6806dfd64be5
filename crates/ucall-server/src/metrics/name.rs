//! A name on a page of metrics.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Longer names have no series of their own.
pub(super) const NAME_BYTES_MAX: usize = 128;
const WORDS: usize = NAME_BYTES_MAX / 8;

/// A name that is written once, before its series is counted as used.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Name {
    len: AtomicU32,
    words: [AtomicU64; WORDS],
}

impl Name {
    pub(super) fn set(&self, name: &str) {
        self.len.store(name.len() as u32, Ordering::Relaxed);
        for (word, bytes) in self.words.iter().zip(name.as_bytes().chunks(8)) {
            let mut padded = [0; 8];
            padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self) -> String {
        let words = self.words.iter().map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let mut bytes: Vec<u8> = words.flatten().collect();
        bytes.truncate(self.len.load(Ordering::Relaxed) as usize);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
