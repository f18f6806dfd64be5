//! The commands of bpf(2) that steer frames to sockets.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROGRAM_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const MAP_OF_SOCKETS: u32 = 17;
const PROGRAM_FOR_XDP: u32 = 6;
const ATTACH_TO_XDP: u32 = 37;
const LICENSE: &CStr = c"Apache-2.0";

/// Where a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Place {
    /// After the driver has made an `sk_buff`.
    Generic = 1 << 1,
    Driver = 1 << 2,
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u64,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach: u32,
    flags: u32,
}

/// A map from the numbers of queues to sockets.
pub(super) fn create_map(entries_max: u32) -> io::Result<OwnedFd> {
    let attributes = MapCreate { kind: MAP_OF_SOCKETS, key_bytes: 4, value_bytes: 4, entries_max };
    open(MAP_CREATE, &attributes)
}

pub(super) fn set_socket(
    map: BorrowedFd<'_>,
    queue: u32,
    socket: BorrowedFd<'_>,
) -> io::Result<()> {
    let socket = socket.as_raw_fd();
    let map = u64::from(map.as_raw_fd().unsigned_abs());
    // On either byte order: the descriptor of the map is in the first four bytes.
    let map = if cfg!(target_endian = "little") { map } else { map << 32 };
    let (key, value) = (&raw const queue as u64, &raw const socket as u64);
    call(MAP_UPDATE, &MapUpdate { map, key, value, flags: 0 }).map(drop)
}

pub(super) fn load(instructions: &[[u8; 8]]) -> io::Result<OwnedFd> {
    let attributes = ProgramLoad {
        kind: PROGRAM_FOR_XDP,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        name: *b"ucall\0\0\0\0\0\0\0\0\0\0\0",
        expected_attach: ATTACH_TO_XDP,
        ..ProgramLoad::default()
    };
    open(PROGRAM_LOAD, &attributes)
}

/// Attaches a program to an interface until the result is closed, also by the end of the process.
pub(super) fn attach(program: BorrowedFd<'_>, interface: u32, place: Place) -> io::Result<OwnedFd> {
    let program = program.as_raw_fd().unsigned_abs();
    let flags = place as u32;
    open(LINK_CREATE, &LinkCreate { program, interface, attach: ATTACH_TO_XDP, flags })
}

fn open<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: these commands return a descriptor of their own, closed on exec.
    call(command, attributes).map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

pub(super) fn call<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads as many bytes, and the memory that these refer to, which all outlive
    // the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    match libc::c_int::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
