//! What happens to what waits for a slow client.

/// What happens to the items of a stream, or to the messages of a topic, whose reader is slow: if
/// more of them wait than `stream_bytes_max`, or `waiting_messages_max` and
/// `waiting_message_bytes_max` of [`Limits`](ucall_proto::Limits) allow.
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
