//! Reproducible random numbers: SplitMix64 (Steele, Lea and Flood, 2014).

/// Numbers that follow from a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// The number of bytes at the start of an input that are a seed.
const SEED_BYTES: usize = 4;

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Takes the seed from the start of an input.
    pub fn of_input(input: &[u8]) -> (Self, &[u8]) {
        let (seed, rest) = input.split_at(SEED_BYTES.min(input.len()));
        (Self(seed.iter().fold(0, |seed, &byte| seed << 8 | u64::from(byte))), rest)
    }

    /// A number from 0 to below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) % end as u64) as usize
    }

    /// Returns `true` with a probability of one in `chances`.
    pub fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    /// Positions at which to cut `len` bytes: all of them if they are few, else some, near or far.
    pub fn cuts(&mut self, len: usize) -> Vec<usize> {
        if len <= 64 || self.one_in(8) {
            return (0..len).collect();
        }
        (0..self.below(8)).map(|_| self.below(len + 1)).collect()
    }

    /// `bytes` in pieces, in order, none empty.
    pub fn pieces<'a>(&mut self, bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let mut ends = self.cuts(bytes.len());
        ends.push(bytes.len());
        ends.sort_unstable();
        let mut start = 0;
        let pieces = ends.into_iter().map(|end| {
            let piece = &bytes[start..end];
            start = end;
            piece
        });
        pieces.filter(|piece| !piece.is_empty()).collect()
    }
}
