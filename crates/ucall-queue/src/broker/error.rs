//! What keeps a communicator from its broker.
#![forbid(unsafe_code)]

/// Why a connection to a broker cannot go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BrokerError {
    /// It does not speak MQTT.
    Malformed,
    /// The topic, or the user's name, is nothing that MQTT can say.
    Topic,
    /// It says nothing any more.
    TimedOut,
    /// It sends, and takes nothing of what that has to be answered with.
    TakesNothing,
    /// It does not speak MQTT 5; an older version is tried next.
    UnsupportedVersion,
    /// It does not take us, and says why.
    Refused(String),
    /// It does not let us subscribe, and says why.
    Unsubscribed(String),
    /// It ends the connection, and says why.
    Disconnected(String),
}

impl std::fmt::Display for BrokerError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed => write!(formatter, "does not speak MQTT"),
            Self::Topic => write!(formatter, "cannot be told this topic, user or password"),
            Self::TimedOut => write!(formatter, "is silent"),
            Self::TakesNothing => write!(formatter, "takes nothing of what is sent to it"),
            Self::UnsupportedVersion => write!(formatter, "does not speak MQTT 5"),
            Self::Refused(why) => write!(formatter, "refuses us: {why}"),
            Self::Unsubscribed(why) => write!(formatter, "refuses our subscription: {why}"),
            Self::Disconnected(why) => write!(formatter, "ends the connection: {why}"),
        }
    }
}
