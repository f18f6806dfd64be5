//! What happens to what waits for a slow client.

/// What happens to the items of a stream, or to the messages of a topic, whose reader is slow: if
/// more than [`Limits::stream_bytes_max`](ucall_proto::Limits) of them wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overflow {
    /// The stream pauses.
    #[default]
    Pause,
    /// The oldest that waits is dropped.
    DropOldest,
    /// The new one is dropped.
    DropNewest,
    /// The connection closes.
    Close,
}
