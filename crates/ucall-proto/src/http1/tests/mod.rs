//! Tests of the HTTP/1.1 part, one file for each source file.

mod access;
mod cached_head;
mod chunked;
mod date;
mod forwarded;
mod head;
mod head_properties;
mod reply;

/// Every split of `length` bytes in two, both ends included.
fn splits(length: usize) -> std::ops::RangeInclusive<usize> {
    0..=length
}
