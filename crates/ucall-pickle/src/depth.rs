//! How deep the values of a pickle nest, before it is sent.
//!
//! [`nests_deeper`] runs the [`Reader`] with a builder that makes nothing, so a sender counts
//! levels as a receiver does.

use crate::operation::Bytes;
use crate::reader::Reader;
use crate::stack::{Entry, Extent};
use crate::{Accepts, Budget, Builder, Error, Hash, Limits, Made, Product, Weight};

const MEMOIZE: u8 = 0x94;
/// The operations that make an object of others. The pickler memoizes each result.
const COMPOSITES: &[u8] = b"]}\x8f\x85\x86\x87t\x91R\x81\x92";

/// Whether values nest deeper than this in a pickle of CPython's pickler. The pickle is in chunks,
/// as for [`visit_names`](crate::visit_names). False for a pickle that receivers refuse otherwise.
///
/// A pickle with fewer objects made of others than levels costs a search for one byte.
pub fn nests_deeper(chunks: &[&[u8]], depth_max: u16) -> bool {
    let composites = chunks.iter().flat_map(|chunk| {
        let ends = memchr::memchr_iter(MEMOIZE, chunk);
        ends.filter(|&at| at > 0 && chunk.get(at - 1).is_some_and(|it| COMPOSITES.contains(it)))
    });
    composites.take(usize::from(depth_max) + 1).count() > usize::from(depth_max)
        && matches!(read(chunks, depth_max), Err(Error::Depth))
}

fn read(chunks: &[&[u8]], depth_max: u16) -> Result<(), Error> {
    let limits = Limits { depth_max, expansion_max: u32::MAX, collisions_max: u32::MAX };
    let mut builder = Nothing;
    let mut chunks = chunks.iter();
    let first = chunks.next().copied().unwrap_or_default();
    let mut reader = Reader::new(first, limits, &mut builder)?;
    loop {
        let mut missing = reader.run_until_long()?;
        if missing > 0 {
            reader.push(false, Entry::new(Extent::LEAF));
        }
        // The body of a long object, which may be in several chunks.
        let rest = loop {
            let Some(chunk) = chunks.next() else { return Ok(()) };
            match chunk.get(missing..) {
                Some(rest) => break rest,
                None => missing -= chunk.len(),
            }
        };
        reader.bytes = Bytes::after_start(rest);
    }
}

/// Makes nothing. An object is whether it is the text `getattr`, by which `ZoneInfo` names the
/// function that it calls next.
struct Nothing;

fn any() -> Made<Nothing> {
    Made { product: Product::Object(false), accepts: Accepts::ANY, weight: Weight::Fixed(1) }
}

impl Builder for Nothing {
    type Object = bool;
    type Global = bool;
    type Pending = ();
    type Error = Error;

    fn none(&mut self) -> bool {
        false
    }
    fn boolean(&mut self, _: bool) -> bool {
        false
    }
    fn integer(&mut self, _: i64) -> Result<bool, Error> {
        Ok(false)
    }
    fn long(&mut self, _: &[u8]) -> Result<bool, Error> {
        Ok(false)
    }
    fn float(&mut self, _: f64) -> Result<bool, Error> {
        Ok(false)
    }
    fn text(&mut self, utf8: &[u8]) -> Result<bool, Error> {
        Ok(utf8 == b"getattr")
    }
    fn bytes(&mut self, _: &[u8]) -> Result<bool, Error> {
        Ok(false)
    }
    fn byte_array(&mut self, _: &[u8]) -> Result<bool, Error> {
        Ok(false)
    }
    fn next_buffer(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
    fn read_only(&mut self, _: bool) -> Result<bool, Error> {
        Ok(false)
    }
    fn tuple(&mut self, _: impl ExactSizeIterator<Item = bool>) -> Result<bool, Error> {
        Ok(false)
    }
    fn frozen_set(&mut self, _: impl ExactSizeIterator<Item = bool>) -> Result<bool, Error> {
        Ok(false)
    }
    fn list(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
    fn dict(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
    fn set(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
    fn append(&mut self, _: &bool, _: impl ExactSizeIterator<Item = bool>) -> Result<(), Error> {
        Ok(())
    }
    fn set_item(&mut self, _: &bool, _: bool, _: bool) -> Result<(), Error> {
        Ok(())
    }
    fn add(&mut self, _: &bool, _: bool) -> Result<(), Error> {
        Ok(())
    }
    fn set_state(&mut self, _: &bool, _: &bool, _: &mut Budget) -> Result<(), Error> {
        Ok(())
    }
    fn global(&mut self, _: &bool, name: &bool) -> Result<bool, Error> {
        Ok(*name)
    }
    fn value_of(&mut self, _: &bool) -> Result<Option<bool>, Error> {
        Ok(Some(false))
    }
    fn argument_of(&mut self, _: &bool) -> Result<bool, Error> {
        Ok(false)
    }
    fn takes_globals(&self, _: &bool) -> bool {
        true
    }
    fn call(
        &mut self,
        global: &bool,
        _: &bool,
        _: u32,
        _: &mut Budget,
    ) -> Result<Made<Self>, Error> {
        if *global {
            return Ok(Made { product: Product::Global(false), ..any() });
        }
        Ok(any())
    }
    fn instance(
        &mut self,
        _: &bool,
        _: &bool,
        _: Option<&bool>,
        _: &mut Budget,
    ) -> Result<Made<Self>, Error> {
        Ok(any())
    }
    fn complete(&mut self, (): (), _: &bool, _: u32, _: &mut Budget) -> Result<Made<Self>, Error> {
        Ok(any())
    }
    fn persistent(&mut self, _: &bool) -> Result<bool, Error> {
        Ok(false)
    }
    fn hash(&mut self, _: &bool) -> Result<Hash, Error> {
        Ok(Hash::Distinct)
    }
    fn before_comparing(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn pause(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted_on_both_sides_of_the_limit() {
        let lists = |count: usize| {
            let head = b"]\x94".repeat(count);
            [&b"\x80\x05"[..], &head, &b"a".repeat(count - 1), b"."].concat()
        };
        assert!(!nests_deeper(&[&lists(129)], 128));
        assert!(nests_deeper(&[&lists(130)], 128));
        let many = [&b"\x80\x05]\x94("[..], &b"]\x94".repeat(1000), b"e."].concat();
        assert!(!nests_deeper(&[&many], 128));
    }

    #[test]
    fn levels_around_a_long_body_in_later_chunks_are_counted() {
        let chunks = |count: usize| {
            let head = [&b"\x80\x05"[..], &b"]\x94".repeat(count), b"B\x04\0\0\0"].concat();
            (head, [&b"\x94"[..], &b"a".repeat(count), b"."].concat())
        };
        let (head, tail) = chunks(128);
        assert!(!nests_deeper(&[&head, b"ab", b"cd", &tail], 128));
        let (head, tail) = chunks(129);
        assert!(nests_deeper(&[&head, b"ab", b"cd", &tail], 128));
    }
}
