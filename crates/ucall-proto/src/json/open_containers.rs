//! The containers that a scan is in, without recursion and mostly without allocation.

/// The containers around the next byte: a bit for each, set for an object.
#[derive(Default)]
pub(super) struct OpenContainers {
    count: usize,
    /// The innermost 64 or fewer, the innermost in the lowest bit.
    inner: u64,
    /// The others, in full words.
    outer: Vec<u64>,
}

impl OpenContainers {
    /// Enters a container that ends with `end`.
    #[inline(always)]
    pub(super) fn push(&mut self, end: u8) {
        if self.count > 0 && self.count.is_multiple_of(64) {
            self.outer.push(self.inner);
        }
        self.inner = self.inner << 1 | u64::from(end == b'}');
        self.count += 1;
    }

    /// The closing bracket of the innermost container.
    #[inline(always)]
    pub(super) fn innermost(&self) -> Option<u8> {
        let end = if self.inner & 1 == 1 { b'}' } else { b']' };
        (self.count > 0).then_some(end)
    }

    /// Leaves the innermost container.
    #[inline(always)]
    pub(super) fn pop(&mut self) {
        self.count -= 1;
        self.inner >>= 1;
        if self.count.is_multiple_of(64) {
            self.inner = self.outer.pop().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::JsonError;
    use super::super::scan::validate;

    #[test]
    fn nesting_is_limited_exactly() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert_eq!(validate(&nested(128), 128), Ok(()));
        assert_eq!(validate(&nested(129), 128), Err(JsonError::TooDeep));
        assert_eq!(validate(&vec![b'['; 1_000_000], 128), Err(JsonError::TooDeep));
    }

    /// Three times as deep as a word of [`OpenContainers`] and more, arrays and objects in turn.
    #[test]
    fn brackets_match_at_every_depth() {
        let front = ["[", "{ \"a\" : ", "{\"b\":1,\"c\":"];
        let back = ["]", "}", "}"];
        for depth in [1, 63, 64, 65, 127, 128, 129, 200] {
            let kinds: Vec<usize> = (0..depth).map(|level| level * level / 3 % 3).collect();
            let opening: String = kinds.iter().map(|&kind| front[kind]).collect();
            let closing: Vec<&str> = kinds.iter().rev().map(|&kind| back[kind]).collect();
            let text = format!("{opening}[]{}", closing.concat());
            assert_eq!(validate(text.as_bytes(), depth + 1), Ok(()), "{text}");
            assert_eq!(validate(text.as_bytes(), depth), Err(JsonError::TooDeep));
            for wrong in 0..depth {
                let mut closing = closing.clone();
                closing[wrong] = if closing[wrong] == "]" { "}" } else { "]" };
                let text = format!("{opening}[]{}", closing.concat());
                assert_eq!(validate(text.as_bytes(), depth + 1), Err(JsonError::Invalid));
            }
        }
    }

    /// musl gives a thread a stack of 128 KiB.
    #[test]
    fn the_deepest_document_needs_little_of_the_stack() {
        let scan = || {
            for (front, back) in [("[", "]"), ("{\"a\":", "}"), ("{ \"\\n\" : [ 0 , ", "]}")] {
                let text = [&front.repeat(100_000), "[]", &back.repeat(100_000)].concat();
                assert_eq!(validate(text.as_bytes(), usize::MAX), Ok(()));
                assert_eq!(validate(text.as_bytes(), 1024), Err(JsonError::TooDeep));
            }
        };
        std::thread::Builder::new().stack_size(64 << 10).spawn(scan).unwrap().join().unwrap();
    }
}
