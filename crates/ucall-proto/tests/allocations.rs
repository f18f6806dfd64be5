//! Parsing the heads of a connection allocates nothing after the first ones.

mod counting_allocator;

use std::hint::black_box;

use counting_allocator::{CountingAllocator, allocations};
use ucall_proto::http1::{HeadLimits, HeadParser};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn head(length: usize, trace: &str) -> Vec<u8> {
    format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nTraceparent: {trace}\r\n\
         Content-Length: {length}\r\n\r\n"
    )
    .into_bytes()
}

#[test]
fn heads_allocate_nothing_after_the_first_ones() {
    let heads = [head(99, "00-1-2-01"), head(100, "00-3-4-01"), head(98, "00-5-6-00")];
    let limits = HeadLimits::default();
    let mut parser = HeadParser::default();
    // Longer than any later head, so that the copy never grows.
    let longest = head(1_000_000, "00-1-2-01");
    let warm_up = std::iter::repeat_n(&longest, 2);
    for text in warm_up {
        assert!(matches!(parser.parse(text, &limits), Ok(Some(_))));
    }
    let before = allocations();
    for _ in 0..100 {
        for text in &heads {
            let parsed = parser.parse(black_box(text), &limits);
            assert!(matches!(parsed, Ok(Some(_))));
        }
    }
    assert_eq!(allocations(), before);
}
