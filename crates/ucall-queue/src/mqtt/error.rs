//! The errors of a connection to a broker.
#![forbid(unsafe_code)]

/// Why a connection to a broker is closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BrokerError {
    /// The peer does not speak MQTT.
    Malformed,
    /// The topic or the user name is not valid in MQTT.
    Topic,
    /// The broker is silent for too long.
    TimedOut,
    /// The broker sends and does not read the answers.
    TakesNothing,
    /// The broker does not support MQTT 5; an older version is tried next.
    UnsupportedVersion,
    /// The broker refuses the connection for this reason.
    Refused(String),
    /// The broker refuses a subscription for this reason.
    Unsubscribed(String),
    /// The broker ends the connection for this reason.
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
