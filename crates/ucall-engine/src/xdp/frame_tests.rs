//! Frames that are datagrams, frames that are none, and replies.

use super::*;

use proptest::prelude::*;

/// From 192.0.2.1:1000 to 192.0.2.2:2000, "hello". The checksums are of another implementation.
fn ipv4() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
    frame.extend([0x45, 0, 0, 33, 0x12, 0x34, 0x40, 0, 64, 17, 0xa4, 0x94]);
    frame.extend([192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend([0x03, 0xe8, 0x07, 0xd0, 0, 13, 0x2c, 0x46]);
    frame.extend(b"hello");
    frame
}

/// From 2001:db8::1 port 1000 to 2001:db8::2 port 2000, "hello".
fn ipv6() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 13, 17, 64]);
    frame.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend("2001:db8::2".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend([0x03, 0xe8, 0x07, 0xd0, 0, 13, 0x54, 0xd5]);
    frame.extend(b"hello");
    frame
}

/// The frame with `bytes` at `at`, and a right checksum of an IPv4 header.
fn with(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    if at < 34 && frame[12..14] == IPV4_TYPE {
        frame[24..26].fill(0);
        let checksum = !fold(sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
    frame
}

#[test]
fn datagrams_are_found() {
    let found = DatagramFrame::parse(&ipv4()).unwrap();
    assert_eq!(found.peer, "192.0.2.1:1000".parse().unwrap());
    assert_eq!(found.local, "192.0.2.2".parse::<IpAddr>().unwrap());
    assert_eq!(&ipv4()[found.payload], b"hello");
    let found = DatagramFrame::parse(&ipv6()).unwrap();
    assert_eq!(found.peer, "[2001:db8::1]:1000".parse().unwrap());
    assert_eq!(found.local, "2001:db8::2".parse::<IpAddr>().unwrap());
    assert_eq!(&ipv6()[found.payload], b"hello");
}

#[test]
fn padding_is_no_part_of_a_datagram() {
    for frame in [ipv4(), ipv6()] {
        let found = DatagramFrame::parse(&frame);
        assert_eq!(DatagramFrame::parse(&[frame, vec![7; 9]].concat()), found);
    }
}

#[test]
fn frames_that_end_early_are_no_datagrams() {
    for frame in [ipv4(), ipv6()] {
        for len in 0..frame.len() {
            assert_eq!(DatagramFrame::parse(&frame[..len]), None, "{len} bytes");
        }
    }
}

#[test]
fn bad_headers_are_rejected() {
    let (v4, v6) = (ipv4(), ipv6());
    for (what, frame) in [
        ("ARP", with(&v4, 12, &[0x08, 0x06])),
        ("VLAN", with(&v4, 12, &[0x81, 0x00])),
        ("version 6 in IPv4", with(&v4, 14, &[0x65])),
        ("options", with(&v4, 14, &[0x46])),
        ("a header of 16 bytes", with(&v4, 14, &[0x44])),
        ("a length below the header's", with(&v4, 16, &[0, 19])),
        ("no room for UDP", with(&v4, 16, &[0, 27])),
        ("a longer packet than the frame", with(&v4, 16, &[0, 34])),
        ("more fragments", with(&v4, 20, &[0x20, 0])),
        ("a later fragment", with(&v4, 20, &[0, 1])),
        ("TCP", with(&v4, 23, &[6])),
        ("no sender", with(&v4, 26, &[0, 0, 0, 0])),
        ("from loopback", with(&v4, 26, &[127, 0, 0, 1])),
        ("from multicast", with(&v4, 26, &[224, 0, 0, 1])),
        ("from broadcast", with(&v4, 26, &[255, 255, 255, 255])),
        ("a wrong header checksum", [&v4[..24], &[0, 0], &v4[26..]].concat()),
        ("UDP of 7 bytes", with(&v4, 38, &[0, 7])),
        ("UDP longer than IP", with(&v4, 38, &[0, 14])),
        ("a wrong checksum", with(&v4, 40, &[0x2c, 0x47])),
        ("a changed payload", with(&v4, 46, b"!")),
        ("version 4 in IPv6", with(&v6, 14, &[0x40])),
        ("an extension header", with(&v6, 20, &[44])),
        ("a longer packet than the frame", with(&v6, 18, &[0, 14])),
        ("no room for UDP", with(&v6, 18, &[0, 7])),
        ("a jumbogram", with(&v6, 58, &[0, 0])),
        ("no checksum", with(&v6, 60, &[0, 0])),
        ("a wrong checksum", with(&v6, 60, &[0x54, 0xd6])),
        ("from multicast", with(&v6, 22, &[0xff])),
    ] {
        assert_eq!(DatagramFrame::parse(&frame), None, "{what}");
    }
    // Without a port, the checksum is otherwise right.
    let from_no_port = with(&with(&v4, 34, &[0, 0]), 40, &[0x30, 0x2e]);
    assert_eq!(DatagramFrame::parse(&from_no_port), None);
}

#[test]
fn checksums_may_be_absent_or_partial() {
    assert!(DatagramFrame::parse(&with(&ipv4(), 40, &[0, 0])).is_some());
    for (frame, at, addresses) in [(ipv4(), 40, 26..34), (ipv6(), 60, 22..54)] {
        let partial = fold(pseudo_header(&frame[addresses], 13));
        assert!(DatagramFrame::parse(&with(&frame, at, &partial.to_be_bytes())).is_some());
    }
}

#[test]
fn a_reply_goes_back() {
    for request in [ipv4(), ipv6()] {
        let found = DatagramFrame::parse(&request).unwrap();
        let mut frame = [request.clone(), vec![0; 100]].concat();
        let len = found.write_reply(&mut frame, b"a reply", 1500).unwrap();
        assert_eq!(frame[..6], request[6..12]);
        assert_eq!(frame[6..12], request[..6]);
        let reply = DatagramFrame::parse(&frame[..len]).unwrap();
        assert_eq!(reply.peer.ip(), found.local);
        assert_eq!(reply.peer.port(), 2000);
        assert_eq!(reply.local, found.peer.ip());
        assert_eq!(&frame[reply.payload], b"a reply");
        assert_eq!(found.write_reply(&mut frame, &[0; 200], 1500), None);
        assert_eq!(found.write_reply(&mut frame, &[0; 20], 47), None);
    }
}

#[test]
fn the_checksum_of_rfc_1071() {
    // Its section 3 has this sum.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(fold(sum(&bytes)), 0xddf2);
    assert_eq!(fold(sum(&[])), 0);
    assert_eq!(fold(sum(&[0x12])), 0x1200);
}

proptest! {
    #[test]
    fn the_sum_is_that_of_all_words(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let words = bytes.chunks(2).map(|word| {
            u64::from(word[0]) << 8 | word.get(1).map_or(0, |&byte| u64::from(byte))
        });
        prop_assert_eq!(fold(sum(&bytes)), fold(words.sum()));
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic(
        start in prop_oneof![Just(ipv4()), Just(ipv6()), Just(vec![])],
        changes in prop::collection::vec((0usize..80, any::<u8>()), 0..6),
        end in prop::collection::vec(any::<u8>(), 0..40),
        reply in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut frame = [start, end].concat();
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        if let Some(found) = DatagramFrame::parse(&frame) {
            prop_assert!(found.payload.end <= frame.len());
            frame.resize(256, 0);
            if let Some(len) = found.write_reply(&mut frame, &reply, 1500) {
                let written = DatagramFrame::parse(&frame[..len]);
                let written = written.map(|it| frame[it.payload].to_vec());
                // An address that sends nothing may be a destination.
                prop_assert!(written.is_none_or(|written| written == reply));
            }
        }
    }
}
