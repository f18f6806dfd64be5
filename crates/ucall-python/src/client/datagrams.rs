//! Sends and receives the datagrams of a connected UDP socket: on Linux many in one system call.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};

use super::socket::{duration, poll_in};

/// Datagrams of one system call.
const BATCH: usize = 32;
/// No datagram is longer (the length field of RFC 768 has 16 bits).
const DATAGRAM_BYTES_MAX: usize = 1 << 16;

/// Sends datagrams without waiting; returns how many of them the system took.
#[pyfunction]
pub(crate) fn send_datagrams(
    py: Python<'_>,
    descriptor: RawFd,
    datagrams: Vec<PyBackedBytes>,
) -> PyResult<usize> {
    Ok(py.detach(|| send_all(descriptor, &datagrams))?)
}

/// The datagrams that have arrived, at most `count_max` of them and 32. Waits for the first one;
/// returns none after the timeout, and perhaps none after a signal.
#[pyfunction]
pub(crate) fn receive_datagrams(
    py: Python<'_>,
    descriptor: RawFd,
    count_max: usize,
    timeout_s: f64,
) -> PyResult<Bound<'_, PyList>> {
    let timeout = duration(timeout_s)?;
    let count = count_max.clamp(1, BATCH);
    // The system provides pages of it as datagrams fill them.
    let mut buffer = Vec::with_capacity(count * DATAGRAM_BYTES_MAX);
    let (rooms, mut lengths) = (buffer.spare_capacity_mut(), [0; BATCH]);
    let received = py.detach(|| {
        receive_in(descriptor, timeout, rooms, lengths.get_mut(..count).unwrap_or_default())
    });
    let received = match received {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            py.check_signals()?;
            0
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        received => received?,
    };
    let rooms = rooms.chunks_exact(DATAGRAM_BYTES_MAX).zip(lengths).take(received);
    let datagrams = rooms.map(|(room, len)| {
        // SAFETY: the system has written the first `len` bytes of the room.
        let bytes = unsafe { std::slice::from_raw_parts(room.as_ptr().cast(), len) };
        PyBytes::new(py, bytes)
    });
    let list = PyList::empty(py);
    for datagram in datagrams {
        list.append(datagram)?;
    }
    Ok(list)
}

fn send_all(descriptor: RawFd, datagrams: &[PyBackedBytes]) -> io::Result<usize> {
    let mut sent = 0;
    while let Some(rest) = datagrams.get(sent..).filter(|rest| !rest.is_empty()) {
        match send_batch(descriptor, rest.get(..BATCH).unwrap_or(rest)) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// Receives a datagram into each room of [`DATAGRAM_BYTES_MAX`] bytes, at most as many as there
/// are lengths; returns their number.
fn receive_in(
    descriptor: RawFd,
    timeout: Duration,
    rooms: &mut [MaybeUninit<u8>],
    lengths: &mut [usize],
) -> io::Result<usize> {
    if !timeout.is_zero() && !poll_in(descriptor, timeout)? {
        return Ok(0);
    }
    receive_batch(descriptor, rooms, lengths)
}

#[cfg(target_os = "linux")]
fn send_batch(descriptor: RawFd, datagrams: &[PyBackedBytes]) -> io::Result<usize> {
    // SAFETY: zeros are a valid value of these plain structures.
    let mut parts: [libc::iovec; BATCH] = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    for ((datagram, part), header) in datagrams.iter().zip(&mut parts).zip(&mut headers) {
        *part =
            libc::iovec { iov_base: datagram.as_ptr().cast_mut().cast(), iov_len: datagram.len() };
        header.msg_hdr.msg_iov = part;
        header.msg_hdr.msg_iovlen = 1;
    }
    let (count, flags) = (datagrams.len().min(BATCH), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    // SAFETY: the first `count` headers name memory that outlives the call.
    let sent = unsafe { libc::sendmmsg(descriptor, headers.as_mut_ptr(), count as _, flags as _) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(target_os = "linux")]
fn receive_batch(
    descriptor: RawFd,
    rooms: &mut [MaybeUninit<u8>],
    lengths: &mut [usize],
) -> io::Result<usize> {
    // SAFETY: zeros are a valid value of these plain structures.
    let mut parts: [libc::iovec; BATCH] = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    let rooms = rooms.chunks_exact_mut(DATAGRAM_BYTES_MAX).take(lengths.len());
    let mut count = 0;
    for ((room, part), header) in rooms.zip(&mut parts).zip(&mut headers) {
        *part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        header.msg_hdr.msg_iov = part;
        header.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    // SAFETY: the first `count` headers name memory that outlives the call.
    let received = unsafe {
        libc::recvmmsg(
            descriptor,
            headers.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT as _,
            std::ptr::null_mut(),
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for (length, header) in lengths.iter_mut().zip(headers).take(received) {
        *length = header.msg_len as usize;
    }
    Ok(received)
}

/// Systems without calls for several datagrams.
#[cfg(not(target_os = "linux"))]
fn send_batch(descriptor: RawFd, datagrams: &[PyBackedBytes]) -> io::Result<usize> {
    let Some(first) = datagrams.first() else { return Ok(0) };
    // SAFETY: pointer and length are of one slice, which outlives the call.
    let sent =
        unsafe { libc::send(descriptor, first.as_ptr().cast(), first.len(), libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) }
}

/// Systems without calls for several datagrams.
#[cfg(not(target_os = "linux"))]
fn receive_batch(
    descriptor: RawFd,
    rooms: &mut [MaybeUninit<u8>],
    lengths: &mut [usize],
) -> io::Result<usize> {
    let mut count = 0;
    for (room, length) in rooms.chunks_exact_mut(DATAGRAM_BYTES_MAX).zip(lengths) {
        // SAFETY: pointer and length are those of the room.
        let received = unsafe {
            libc::recv(descriptor, room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT)
        };
        match usize::try_from(received) {
            Ok(received) => *length = received,
            Err(_) if count > 0 => break,
            Err(_) => return Err(io::Error::last_os_error()),
        }
        count += 1;
    }
    Ok(count)
}
