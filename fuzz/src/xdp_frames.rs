//! Ethernet frames that reach the sockets of AF_XDP.

use ucall_engine::xdp::DatagramFrame;

/// Of an Ethernet frame in the memory of a socket.
const FRAME_BYTES: usize = 1792;
const MTU: usize = 1500;
const IPV4_SUM: u8 = 1;
const UDP_SUM: u8 = 2;

/// The bytes of the input are the length of the reply in sixes, the checksums to correct first
/// ([`IPV4_SUM`], [`UDP_SUM`]), because chance finds none, and a frame. In a datagram the lengths
/// agree. A reply turns the frame around, and the other end reads its bytes. An answer to
/// that has the bytes of the request.
///
/// # Panics
/// If that does not hold.
pub fn run(input: &[u8]) {
    let Some((&[len, sums], bytes)) = input.split_first_chunk() else { return };
    let mut bytes = bytes.get(..FRAME_BYTES).unwrap_or(bytes).to_vec();
    correct(&mut bytes, sums);
    let bytes = &*bytes;
    let Some(request) = DatagramFrame::parse(bytes) else { return };
    let payload = bytes.get(request.payload.clone()).expect("within the frame").to_vec();
    check_lengths(bytes, &request);
    let reply = vec![len; usize::from(len) * 6];
    let mut frame = vec![0xa5; FRAME_BYTES];
    frame[..bytes.len()].copy_from_slice(bytes);
    let Some(len) = request.write_reply(&mut frame, &reply, MTU) else {
        return assert!(request.payload.start + reply.len() > MTU + 14, "it fits");
    };
    assert_eq!(len, request.payload.start + reply.len());
    assert_eq!(frame[..6], bytes[6..12]);
    assert_eq!(frame[6..12], bytes[..6]);
    assert_eq!(udp_sum(&frame[..len], request.payload.start), 0, "the UDP checksum");
    let received = DatagramFrame::parse(&frame[..len]);
    if request.local.is_unspecified() || request.local.is_loopback() || is_group(&request) {
        return;
    }
    // The ports are in front of the length and the checksum. Port 0 sends nothing.
    let ports = request.payload.start - 8;
    if bytes[ports + 2..ports + 4] == [0, 0] {
        return;
    }
    let received = received.expect("a datagram");
    assert_eq!((received.peer.ip(), received.local), (request.local, request.peer.ip()));
    assert_eq!(frame[received.payload.clone()], reply);
    let len = received.write_reply(&mut frame, &payload, MTU);
    if let Some(len) = len {
        let again = DatagramFrame::parse(&frame[..len]).expect("a datagram");
        assert_eq!((again.peer, again.local), (request.peer, request.local));
        assert_eq!(frame[again.payload], payload);
    }
}

/// No datagram comes from such an address.
fn is_group(request: &DatagramFrame) -> bool {
    let octets_are_all_set =
        matches!(request.local, std::net::IpAddr::V4(address) if address.is_broadcast());
    request.local.is_multicast() || octets_are_all_set
}

fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

/// The lengths of IP and UDP, at their fixed places.
fn check_lengths(bytes: &[u8], request: &DatagramFrame) {
    let start = request.payload.start;
    let packet_end = match request.local.is_ipv4() {
        true => 14 + be16(bytes, 16),
        false => 54 + be16(bytes, 18),
    };
    assert_eq!(start, if request.local.is_ipv4() { 42 } else { 62 });
    assert_eq!(start - 8 + be16(bytes, start - 4), request.payload.end);
    assert!(request.payload.end <= packet_end && packet_end <= bytes.len());
}

/// Makes checksums right.
fn correct(bytes: &mut [u8], sums: u8) {
    let is_ipv4 = bytes.get(12..14) == Some(&[0x08, 0x00]);
    if sums & IPV4_SUM != 0 && is_ipv4 && bytes.len() >= 34 {
        bytes[24..26].fill(0);
        let sum = internet_sum(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    let start = if is_ipv4 { 42 } else { 62 };
    if sums & UDP_SUM != 0 && bytes.len() >= start {
        let end = (start - 8 + be16(bytes, start - 4)).clamp(start, bytes.len());
        bytes[start - 2..start].fill(0);
        let sum = udp_sum(&bytes[..end], start);
        bytes[start - 2..start].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The checksum over the pseudo header and the segment: 0 if the one in the segment is right.
fn udp_sum(frame: &[u8], payload_start: usize) -> u16 {
    let addresses = if payload_start == 42 { 26..34 } else { 22..54 };
    let segment = &frame[payload_start - 8..];
    let len = u16::try_from(segment.len()).expect("a short one");
    let bytes = [&frame[addresses], &[0, 17], &len.to_be_bytes(), segment].concat();
    internet_sum(&bytes)
}

/// The checksum word by word, with each carry at once, as RFC 1071 defines it.
fn internet_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u16;
    for word in bytes.chunks(2) {
        let word = u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or_default()]);
        let (added, is_over) = sum.overflowing_add(word);
        sum = added + u16::from(is_over);
    }
    !sum
}
