//! The packets of MQTT 5 and 3.1.1, as far as a client at QoS 0 needs them.
//!
//! mqtt-proto encodes and decodes all packets but publications. The payload of a publication is
//! sent from where it is and handed in as it arrives, so this file writes only its head, which
//! [`super::reader`] reads.
#![forbid(unsafe_code)]

use std::sync::Arc;

use bytes::Bytes;
use mqtt_proto::{Error, Pid, QoS, TopicFilter, TopicName, v3, v5};

use super::{BrokerError, Login};

/// A version of MQTT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    Five,
    ThreeOneOne,
}

/// A packet from the broker that is not a publication.
#[derive(Debug)]
pub(super) enum Packet {
    /// The broker accepts the connection.
    Connack(BrokerLimits),
    /// The broker does not support this version.
    UnsupportedVersion,
    /// The broker refuses the connection for this reason.
    Refused(String),
    /// The broker refuses a subscription for this reason.
    Unsubscribed(String),
    /// The broker ends the connection for this reason.
    Disconnected(String),
    /// A packet without an effect here.
    Other,
}

/// The limits that a broker sets for its clients.
#[derive(Debug, Default)]
pub(super) struct BrokerLimits {
    pub(super) packet_bytes_max: Option<u32>,
    pub(super) keepalive_s: Option<u16>,
}

/// The packet identifier of all subscriptions, because their answers are alike.
const PID: u16 = 1;
const PUBLISH: u8 = 0x30;
const CONNACK: u8 = 0x20;
/// The codes by which brokers with MQTT 3.1.1 only, and brokers that know MQTT 5, refuse a version.
const VERSION_REFUSALS: [u8; 2] = [0x01, 0x84];

/// A `CONNECT` packet. `will` is the topic and payload that the broker publishes if the connection
/// is lost.
pub(super) fn connect(
    version: Version,
    client: &str,
    keepalive_s: u16,
    login: &Login,
    will: (&str, Vec<u8>),
) -> Result<Vec<u8>, BrokerError> {
    let client = Arc::from(client);
    let username = login.user.as_deref().map(Arc::from);
    let password = login.password.clone().map(Bytes::from);
    let topic = TopicName::try_from(will.0).map_err(|_| BrokerError::Topic)?;
    let message = Bytes::from(will.1);
    encoded_bytes(match version {
        Version::Five => {
            let plain = v5::Connect::new(client, keepalive_s);
            let last_will = Some(v5::LastWill::new(QoS::Level0, topic, message));
            v5::Packet::from(v5::Connect { last_will, username, password, ..plain }).encode()
        }
        Version::ThreeOneOne => {
            let plain = v3::Connect::new(client, keepalive_s);
            let last_will = Some(v3::LastWill::new(QoS::Level0, topic, message));
            v3::Packet::from(v3::Connect { last_will, username, password, ..plain }).encode()
        }
    })
}

pub(super) fn subscribe(version: Version, filter: &str) -> Result<Vec<u8>, BrokerError> {
    let (pid, filter) = subscription(filter)?;
    encoded_bytes(match version {
        Version::Five => {
            let options = v5::SubscriptionOptions::new(QoS::Level0);
            v5::Packet::from(v5::Subscribe::new(pid, vec![(filter, options)])).encode()
        }
        Version::ThreeOneOne => {
            v3::Packet::from(v3::Subscribe::new(pid, vec![(filter, QoS::Level0)])).encode()
        }
    })
}

pub(super) fn unsubscribe(version: Version, filter: &str) -> Result<Vec<u8>, BrokerError> {
    let (pid, filter) = subscription(filter)?;
    encoded_bytes(match version {
        Version::Five => v5::Packet::from(v5::Unsubscribe::new(pid, vec![filter])).encode(),
        Version::ThreeOneOne => v3::Packet::from(v3::Unsubscribe::new(pid, vec![filter])).encode(),
    })
}

/// The same in both versions.
pub(super) const PING: [u8; 2] = [0xC0, 0x00];
/// The same in both versions: an ordinary end needs no reason.
pub(super) const DISCONNECT: [u8; 2] = [0xE0, 0x00];

/// The bytes before a publication's payload.
pub(super) fn publish_head(version: Version, topic: &str, payload_bytes: usize) -> Vec<u8> {
    let properties: &[u8] = if version == Version::Five { &[0] } else { &[] };
    let mut remaining = 2 + topic.len() + properties.len() + payload_bytes;
    let mut head = Vec::with_capacity(8 + topic.len() + super::HEADER_BYTES);
    head.push(PUBLISH);
    loop {
        let more = if remaining > 0x7F { 0x80 } else { 0 };
        head.push((remaining & 0x7F) as u8 | more);
        remaining >>= 7;
        if remaining == 0 {
            break;
        }
    }
    head.extend((topic.len() as u16).to_be_bytes());
    head.extend(topic.as_bytes());
    head.extend(properties);
    head
}

/// Reads a whole packet that is not a publication.
pub(super) fn read(version: Version, packet: &[u8]) -> Result<Packet, BrokerError> {
    if version == Version::Five
        && let [CONNACK, _, _, code, ..] = packet
        && VERSION_REFUSALS.contains(code)
    {
        return Ok(Packet::UnsupportedVersion);
    }
    match version {
        Version::Five => read_five(packet),
        Version::ThreeOneOne => read_three(packet),
    }
}

fn read_five(packet: &[u8]) -> Result<Packet, BrokerError> {
    let packet = v5::Packet::decode(packet).map_err(|_| BrokerError::Malformed)?;
    Ok(match packet.ok_or(BrokerError::Malformed)? {
        v5::Packet::Connack(response) if response.reason_code == v5::ConnectReasonCode::Success => {
            Packet::Connack(BrokerLimits {
                packet_bytes_max: response.properties.max_packet_size,
                keepalive_s: response.properties.server_keep_alive,
            })
        }
        v5::Packet::Connack(response) => Packet::Refused(describe(&response.reason_code)),
        v5::Packet::Suback(response) => match response.topics.first() {
            Some(code) if *code as u8 >= 0x80 => Packet::Unsubscribed(describe(code)),
            _ => Packet::Other,
        },
        v5::Packet::Disconnect(end) => Packet::Disconnected(describe(&end.reason_code)),
        _ => Packet::Other,
    })
}

fn read_three(packet: &[u8]) -> Result<Packet, BrokerError> {
    let packet = v3::Packet::decode(packet).map_err(|_| BrokerError::Malformed)?;
    Ok(match packet.ok_or(BrokerError::Malformed)? {
        v3::Packet::Connack(response) if response.code == v3::ConnectReturnCode::Accepted => {
            Packet::Connack(BrokerLimits::default())
        }
        v3::Packet::Connack(response) => Packet::Refused(describe(&response.code)),
        v3::Packet::Suback(response)
            if response.topics.contains(&v3::SubscribeReturnCode::Failure) =>
        {
            Packet::Unsubscribed("failure".to_owned())
        }
        _ => Packet::Other,
    })
}

fn subscription(filter: &str) -> Result<(Pid, TopicFilter), BrokerError> {
    let pid = Pid::try_from(PID).map_err(|_| BrokerError::Topic)?;
    Ok((pid, TopicFilter::try_from(filter).map_err(|_| BrokerError::Topic)?))
}

fn encoded_bytes(encoded: Result<mqtt_proto::VarBytes, Error>) -> Result<Vec<u8>, BrokerError> {
    Ok(encoded.map_err(|_| BrokerError::Topic)?.as_ref().to_vec())
}

/// The name of a reason in words: `NotAuthorized` is "not authorized".
fn describe(reason: &impl std::fmt::Debug) -> String {
    let mut describe = String::new();
    for letter in format!("{reason:?}").chars() {
        if letter.is_uppercase() && !describe.is_empty() {
            describe.push(' ');
        }
        describe.extend(letter.to_lowercase());
    }
    describe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_head_matches_the_mqtt_library() {
        for length in [0, 1, 100, 128, 16_383, 16_384, 70_000, 2_100_000] {
            let (topic, payload) = ("some/topic", vec![7; length]);
            let named = || TopicName::try_from(topic).unwrap();
            let five =
                v5::Publish::new(mqtt_proto::QosPid::Level0, named(), payload.clone().into());
            let three =
                v3::Publish::new(mqtt_proto::QosPid::Level0, named(), payload.clone().into());
            for (version, whole) in [
                (Version::Five, v5::Packet::from(five).encode().unwrap()),
                (Version::ThreeOneOne, v3::Packet::from(three).encode().unwrap()),
            ] {
                let mut ours = publish_head(version, topic, length);
                ours.extend(&payload);
                assert!(ours == whole.as_ref(), "{version:?}, {length} bytes");
            }
        }
    }

    #[test]
    fn a_refusal_names_its_reason() {
        let refused = [0x20, 3, 0, 0x87, 0];
        let Packet::Refused(why) = read(Version::Five, &refused).unwrap() else { panic!() };
        assert_eq!(why, "not authorized");
        let Packet::Refused(why) = read(Version::ThreeOneOne, &[0x20, 2, 0, 4]).unwrap() else {
            panic!()
        };
        assert_eq!(why, "bad user name or password");
    }

    #[test]
    fn an_mqtt_3_broker_is_detected() {
        for refusal in [&[0x20, 2, 0, 1][..], &[0x20, 3, 0, 0x84, 0]] {
            assert!(matches!(read(Version::Five, refusal), Ok(Packet::UnsupportedVersion)));
        }
    }

    #[test]
    fn garbage_is_an_error() {
        for packet in [&[0x20, 2, 9, 9][..], &[0x20, 0], &[0xF0, 1, 1], &[0x00, 0]] {
            assert!(read(Version::ThreeOneOne, packet).is_err(), "{packet:?}");
        }
    }
}
