//! Runs the program on frames, where the kernel allows it (`BPF_PROG_TEST_RUN`).

use std::os::fd::AsFd;

use super::*;

const PROGRAM_RUN: libc::c_int = 10;
/// What the tests let the program do with a frame for a socket that is not there.
const DROP: i32 = 1;

#[repr(C)]
#[derive(Default)]
struct ProgramRun {
    program: u32,
    result: u32,
    frame_bytes: u32,
    output_bytes: u32,
    frame: u64,
    output: u64,
    repeat: u32,
    duration: u32,
    context_bytes: [u32; 2],
    context: [u64; 2],
}

/// Whether the program takes a frame.
fn takes(program: &OwnedFd, frame: &[u8]) -> bool {
    let mut run = ProgramRun {
        program: program.as_raw_fd().unsigned_abs(),
        frame_bytes: frame.len() as u32,
        frame: frame.as_ptr() as u64,
        repeat: 1,
        ..ProgramRun::default()
    };
    // SAFETY: the structure and the frame outlive the call, which writes the result.
    let status =
        unsafe { libc::syscall(libc::SYS_bpf, PROGRAM_RUN, &raw mut run, size_of::<ProgramRun>()) };
    assert_eq!(status, 0, "{}", io::Error::last_os_error());
    run.result == DROP as u32
}

fn ipv4(to: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
    frame.extend([0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1]);
    frame.extend(to);
    frame.extend([0x03, 0xe8, 0x07, 0xd0, 0, 8, 0, 0]);
    frame
}

fn ipv6(to: &str) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 8, 17, 64]);
    frame.extend([0; 16]);
    frame.extend(to.parse::<std::net::Ipv6Addr>().unwrap().octets());
    frame.extend([0x03, 0xe8, 0x07, 0xd0, 0, 8, 0, 0]);
    frame
}

fn with(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

#[test]
fn only_whole_datagrams_to_the_socket_are_taken() {
    let destination = Destination {
        hardware: [2, 0, 0, 0, 0, 2],
        addresses: ["192.0.2.2", "192.0.2.250", "2001:db8::2", "2001:db8::1:2"]
            .map(|address| address.parse().unwrap())
            .to_vec(),
        port: 2000,
        frame_bytes_max: 200,
    };
    let loaded = bpf::create_map(1).and_then(|sockets| load(sockets.as_fd(), &destination, DROP));
    let program = match loaded {
        Ok(program) => program,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return eprintln!("skipped: the kernel forbids programs ({error})");
        }
        Err(error) => panic!("{error}"),
    };
    let (v4, v6) = (ipv4([192, 0, 2, 2]), ipv6("2001:db8::2"));
    for (is_taken, what, frame) in [
        (true, "IPv4", v4.clone()),
        (true, "the second address", ipv4([192, 0, 2, 250])),
        (true, "may be fragmented", with(&v4, 20, &[0, 0])),
        (true, "the longest frame", [&v4[..], &[0; 158]].concat()),
        (true, "IPv6", v6.clone()),
        (true, "the second address", ipv6("2001:db8::1:2")),
        (false, "a longer frame", [&v4[..], &[0; 159]].concat()),
        (false, "another card", with(&v4, 0, &[3])),
        (false, "another card", with(&v4, 5, &[3])),
        (false, "ARP", with(&v4, 12, &[8, 6])),
        (false, "VLAN", with(&v4, 12, &[0x81, 0])),
        (false, "options", with(&v4, 14, &[0x46])),
        (false, "the first fragment", with(&v4, 20, &[0x20, 0])),
        (false, "a later fragment", with(&v4, 20, &[0, 1])),
        (false, "a far later fragment", with(&v4, 20, &[0x1f, 0])),
        (false, "TCP", with(&v4, 23, &[6])),
        (false, "another address", ipv4([192, 0, 2, 3])),
        (false, "another port", with(&v4, 36, &[7, 0xd1])),
        (false, "TCP", with(&v6, 20, &[6])),
        (false, "a fragment header", with(&v6, 20, &[44])),
        (false, "another address", ipv6("2001:db8::3")),
        (false, "another network", ipv6("2002:db8::2")),
        (false, "another port", with(&v6, 56, &[7, 0xd1])),
        (false, "half of IPv6", v6[..61].to_vec()),
        (false, "half of IPv4", v4[..41].to_vec()),
    ] {
        assert_eq!(takes(&program, &frame), is_taken, "{what}");
    }
}
