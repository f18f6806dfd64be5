//! The program that steers datagrams to the sockets, as instructions of the kernel's virtual
//! machine (RFC 9669).
//!
//! It takes whole UDP datagrams without IP options or VLAN tag that are sent to the interface, one
//! of `addresses` and the port. All other frames go to the kernel's network stack.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::bpf;

/// What becomes of a frame (`enum xdp_action`).
pub(super) const PASS: i32 = 2;

const CALL_REDIRECT_MAP: i32 = 51;
/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

/// Opcodes.
const LOAD_8: u8 = 0x71;
const LOAD_16: u8 = 0x69;
const LOAD_32: u8 = 0x61;
const LOAD_MAP: u8 = 0x18;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const AND: u8 = 0x57;
const JUMP: u8 = 0x05;
const JUMP_IF_GREATER: u8 = 0x2d;
const JUMP_IF_EQUAL: u8 = 0x16;
const JUMP_IF_NOT_EQUAL: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Registers.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const FRAME: u8 = 2;
const END: u8 = 3;
const LIMIT: u8 = 4;
const VALUE: u8 = 5;
const SAVED_CONTEXT: u8 = 6;

/// What a datagram is sent to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Destination {
    pub(super) hardware: [u8; 6],
    pub(super) addresses: Vec<IpAddr>,
    pub(super) port: u16,
    /// Longer frames have no room in the memory of the sockets.
    pub(super) frame_bytes_max: i32,
}

/// Loads the program. `otherwise` is for frames of a queue that has no socket in `sockets`.
pub(super) fn load(
    sockets: BorrowedFd<'_>,
    destination: &Destination,
    otherwise: i32,
) -> io::Result<OwnedFd> {
    bpf::load(&instructions(sockets, destination, otherwise))
}

/// Where a jump ends that is written before its end is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Pass,
    Redirect,
    Ipv6,
}

#[derive(Default)]
struct Assembler {
    code: Vec<[u8; 8]>,
    jumps: Vec<(usize, Label)>,
}

fn instructions(
    sockets: BorrowedFd<'_>,
    destination: &Destination,
    otherwise: i32,
) -> Vec<[u8; 8]> {
    let mut program = Assembler::default();
    program.add(MOVE, SAVED_CONTEXT, CONTEXT, 0, 0);
    program.add(LOAD_32, FRAME, CONTEXT, DATA, 0);
    program.add(LOAD_32, END, CONTEXT, DATA_END, 0);
    program.add(MOVE, LIMIT, FRAME, 0, 0);
    program.add(ADD, LIMIT, 0, 0, destination.frame_bytes_max);
    program.jump(JUMP_IF_GREATER, END, LIMIT, 0, Label::Pass);
    program.expect_bytes(14 + 20 + 8);
    let hardware = &destination.hardware;
    program.expect(LOAD_32, 0, number(&hardware[..4]));
    program.expect(LOAD_16, 4, number(&hardware[4..]));
    program.add(LOAD_16, VALUE, FRAME, 12, 0);
    program.jump(JUMP_IF_NOT_EQUAL, VALUE, 0, number(&[0x08, 0x00]), Label::Ipv6);
    program.match_ipv4(destination);
    program.place(Label::Ipv6);
    program.match_ipv6(destination);
    program.place(Label::Pass);
    program.add(SET, RESULT, 0, 0, PASS);
    program.add(EXIT, 0, 0, 0, 0);
    program.place(Label::Redirect);
    program.add(LOAD_32, 2, SAVED_CONTEXT, QUEUE, 0);
    program.add(LOAD_MAP, 1, 1, 0, sockets.as_raw_fd());
    program.add(0, 0, 0, 0, 0);
    program.add(SET, 3, 0, 0, otherwise);
    program.add(CALL, 0, 0, 0, CALL_REDIRECT_MAP);
    program.add(EXIT, 0, 0, 0, 0);
    program.code
}

impl Assembler {
    fn match_ipv4(&mut self, destination: &Destination) {
        self.expect(LOAD_8, 14, 0x45);
        self.add(LOAD_16, VALUE, FRAME, 20, 0);
        // All bits but "don't fragment".
        self.add(AND, VALUE, 0, 0, number(&[0xbf, 0xff]));
        self.jump(JUMP_IF_NOT_EQUAL, VALUE, 0, 0, Label::Pass);
        self.expect(LOAD_8, 23, libc::IPPROTO_UDP);
        self.expect(LOAD_16, 36, number(&destination.port.to_be_bytes()));
        self.add(LOAD_32, VALUE, FRAME, 30, 0);
        for address in &destination.addresses {
            if let IpAddr::V4(address) = address {
                let address = number(&address.octets());
                self.jump(JUMP_IF_EQUAL, VALUE, 0, address, Label::Redirect);
            }
        }
        self.jump(JUMP, 0, 0, 0, Label::Pass);
    }

    fn match_ipv6(&mut self, destination: &Destination) {
        self.jump(JUMP_IF_NOT_EQUAL, VALUE, 0, number(&[0x86, 0xdd]), Label::Pass);
        self.expect_bytes(14 + 40 + 8);
        self.expect(LOAD_8, 20, libc::IPPROTO_UDP);
        self.expect(LOAD_16, 56, number(&destination.port.to_be_bytes()));
        for address in &destination.addresses {
            let IpAddr::V6(address) = address else { continue };
            for (index, word) in address.octets().chunks(4).enumerate() {
                self.add(LOAD_32, VALUE, FRAME, 38 + 4 * index as i16, 0);
                // Past the words that follow, and the jump to the end.
                let next = 2 * (3 - index as i16) + 1;
                self.add(JUMP_IF_NOT_EQUAL, VALUE, 0, next, number(word));
            }
            self.jump(JUMP, 0, 0, 0, Label::Redirect);
        }
        self.jump(JUMP, 0, 0, 0, Label::Pass);
    }

    fn add(&mut self, opcode: u8, target: u8, source: u8, offset: i16, immediate: i32) {
        let registers = match cfg!(target_endian = "little") {
            true => source << 4 | target,
            false => target << 4 | source,
        };
        let ([o1, o2], [i1, i2, i3, i4]) = (offset.to_ne_bytes(), immediate.to_ne_bytes());
        self.code.push([opcode, registers, o1, o2, i1, i2, i3, i4]);
    }

    fn jump(&mut self, opcode: u8, target: u8, source: u8, immediate: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.add(opcode, target, source, 0, immediate);
    }

    /// Lets the jumps to `label` end here.
    fn place(&mut self, label: Label) {
        for (from, _) in self.jumps.iter().filter(|(_, to)| *to == label) {
            let offset = (self.code.len() - from - 1) as i16;
            self.code[*from][2..4].copy_from_slice(&offset.to_ne_bytes());
        }
    }

    /// Passes a frame that is shorter.
    fn expect_bytes(&mut self, len: i32) {
        self.add(MOVE, LIMIT, FRAME, 0, 0);
        self.add(ADD, LIMIT, 0, 0, len);
        self.jump(JUMP_IF_GREATER, LIMIT, END, 0, Label::Pass);
    }

    /// Passes a frame that has another value at `offset`.
    fn expect(&mut self, load: u8, offset: i16, value: i32) {
        self.add(load, VALUE, FRAME, offset, 0);
        self.jump(JUMP_IF_NOT_EQUAL, VALUE, 0, value, Label::Pass);
    }
}

/// The number that the machine loads from these bytes.
fn number(bytes: &[u8]) -> i32 {
    match *bytes {
        [a, b] => u16::from_ne_bytes([a, b]).into(),
        [a, b, c, d] => i32::from_ne_bytes([a, b, c, d]),
        _ => 0,
    }
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
