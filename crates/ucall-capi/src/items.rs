//! The items of arrays and members of objects, in validated JSON text.

use ucall_proto::json::{Reader, Text};

/// The key and text of the item of a container that begins at or after `position`; 0 is the start
/// of the container, any other the end of an item.
pub(crate) fn next(container: &[u8], position: usize) -> Option<(Option<Text<'_>>, &[u8])> {
    let mut reader = Reader::new(container.get(position..)?);
    if position == 0 {
        reader.enter();
    }
    let key = match container.first()? {
        b'{' => Some(reader.next_key()?),
        b'[' => reader.next_item().then_some(None)?,
        _ => return None,
    };
    // Text that was not validated may end here.
    Some((key, reader.skip())).filter(|(_, item)| !item.is_empty())
}

/// The number of items of an array or members of an object.
pub(crate) fn count(container: &[u8]) -> usize {
    let (mut count, mut position) = (0, 0);
    while let Some((_, item)) = next(container, position) {
        count += 1;
        position = item.as_ptr().addr() - container.as_ptr().addr() + item.len();
    }
    count
}
