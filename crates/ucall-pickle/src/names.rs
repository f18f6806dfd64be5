//! The names in a pickle, without reading the rest of it.

use crate::operation::{Bytes, Operation};

/// Calls `visit` with the module and the name of each lookup in a pickle of CPython's pickler. The
/// pickle is in chunks. Stops at an operation that the pickler does not write.
///
/// The body of a long `bytes` or `str` may go on in the next chunks, as the pickler writes it. No
/// other operation is split.
pub fn visit_names<'a>(chunks: &[&'a [u8]], mut visit: impl FnMut(&'a [u8], &'a [u8])) {
    let mut names = Names::default();
    // Bytes of a long object that are in the next chunks.
    let mut missing = 2;
    if !chunks.first().is_some_and(|first| first.starts_with(&[0x80, 5])) {
        return;
    }
    for chunk in chunks {
        let Some(rest) = chunk.get(missing..) else {
            missing -= chunk.len();
            continue;
        };
        let mut bytes = Bytes::after_start(rest);
        missing = 0;
        while !bytes.is_empty() {
            if let Some(length) = bytes.missing_of_long() {
                missing = length;
                names.push(None);
                break;
            }
            let Ok(operation) = bytes.operation() else { return };
            if let Some((module, name)) = names.run(operation) {
                visit(module, name);
            }
        }
    }
}

/// The text on top of the stack and in the memo.
#[derive(Default)]
struct Names<'a> {
    memo: Vec<Option<&'a [u8]>>,
    top: [Option<&'a [u8]>; 2],
}

impl<'a> Names<'a> {
    /// Runs an operation; returns the module and the name that it looks up.
    fn run(&mut self, operation: Operation<'a>) -> Option<(&'a [u8], &'a [u8])> {
        match operation {
            Operation::Frame => {}
            Operation::Text(text) => self.push(Some(text)),
            Operation::Get(place) => self.push(self.memo.get(place as usize).copied().flatten()),
            Operation::Memoize => self.memo.push(self.top[1]),
            Operation::Global => {
                let [module, name] = std::mem::take(&mut self.top);
                return module.zip(name);
            }
            _ => self.push(None),
        }
        None
    }

    fn push(&mut self, text: Option<&'a [u8]>) {
        self.top = [self.top[1], text];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(chunks: &[&[u8]]) -> Vec<String> {
        let mut found = Vec::new();
        visit_names(chunks, |module, name| {
            let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default().to_owned();
            found.push(text(module) + "." + &text(name));
        });
        found
    }

    #[test]
    fn names_from_text_and_from_the_memo_are_found() {
        let pickle = [
            &b"\x80\x05]\x94(\x8c\x03app\x94\x8c\x03Job\x94\x93\x94)\x81\x94"[..],
            b"h\x01\x8c\x05Other\x94\x93\x94)\x81\x94e.",
        ];
        assert_eq!(names(&[&pickle.concat()]), ["app.Job", "app.Other"]);
        assert_eq!(names(&pickle), ["app.Job", "app.Other"]);
    }

    #[test]
    fn data_is_not_mistaken_for_a_name() {
        let data = b"\x80\x05C\x0c\x8c\x01a\x94\x8c\x01b\x94\x93\x94..\x94.";
        assert_eq!(names(&[data]), [""; 0]);
    }

    #[test]
    fn a_long_body_in_later_chunks_is_skipped() {
        let head = b"\x80\x05B\x08\x00\x00\x00\x93\x94";
        let tail = b"abcdef\x8c\x03app\x94\x8c\x01c\x94\x93\x94.";
        let split = [&head[..], &tail[..3], &tail[3..6], &tail[6..]];
        assert_eq!(names(&split), ["app.c"]);
    }

    #[test]
    fn anything_else_ends_the_search() {
        for pickle in [
            &b""[..],
            b"\x80",
            b"\x80\x04\x8c\x01a\x8c\x01b\x93.",
            b"\x80\x05\xff",
            b"\x80\x05\x8c",
        ] {
            assert_eq!(names(&[pickle]), [""; 0]);
        }
        assert_eq!(names(&[b"\x80\x05\x93h\x07\x93."]), [""; 0]);
    }
}
