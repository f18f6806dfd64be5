//! What `auth` knows of a request: its transport, its path, its headers and its client.

use std::ffi::c_char;

use ucall_server::Transport;

use super::context::header;
use super::params::write_text_output;
use super::server::write_sized;
use crate::auth::AuthRequest;
use crate::boundary::catch_panic;
use crate::peer::PeerAddress;

/// `ucall_transport_t`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestTransport {
    /// Without a request.
    None = 0,
    /// HTTP.
    Http = 1,
    /// WebSocket.
    WebSocket = 2,
    /// JSON documents without framing.
    Tcp = 3,
    /// A document in a datagram.
    Udp = 4,
}

/// What a request that is authenticated has come by.
///
/// # Safety
/// `request` is NULL, or that of a callback that runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_request_transport(
    request: *const AuthRequest<'static>,
) -> RequestTransport {
    catch_panic(RequestTransport::None, || {
        // SAFETY: our caller says that it is NULL or alive.
        let Some(request) = (unsafe { request.as_ref() }) else { return RequestTransport::None };
        match request.caller.transport(request.head) {
            Transport::Http => RequestTransport::Http,
            Transport::WebSocket => RequestTransport::WebSocket,
            Transport::Tcp => RequestTransport::Tcp,
            Transport::Udp => RequestTransport::Udp,
            // Servers in C have no broker.
            Transport::Nats => RequestTransport::None,
        }
    })
}

/// The path of a request that is authenticated.
///
/// # Safety
/// `request` is NULL, or that of a callback that runs; the outputs are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_request_path(
    request: *const AuthRequest<'static>,
    output: *mut *const c_char,
    output_length: *mut usize,
) -> bool {
    // SAFETY: our caller says that it is NULL or alive.
    let path = catch_panic(None, || Some(unsafe { request.as_ref() }?.head?.path_and_query().0));
    // SAFETY: our caller says that they are NULL or writable.
    path.is_some() && unsafe { write_text_output(path, output, output_length) }
}

/// A header of a request that is authenticated.
///
/// # Safety
/// `request` is NULL, or that of a callback that runs; the others as for
/// [`ucall_call_header`](super::ucall_call_header).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_request_header(
    request: *const AuthRequest<'static>,
    name: *const c_char,
    name_length: usize,
    output: *mut *const c_char,
    output_length: *mut usize,
) -> bool {
    let value = catch_panic(None, || {
        // SAFETY: our caller says that it is NULL or alive, and that the name is readable.
        unsafe { header(request.as_ref()?.head?, name, name_length) }
    });
    // SAFETY: our caller says that they are NULL or writable.
    value.is_some() && unsafe { write_text_output(value, output, output_length) }
}

/// The other end of the connection of a request that is authenticated.
///
/// # Safety
/// `request` is NULL, or that of a callback that runs; `output` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_request_peer(
    request: *const AuthRequest<'static>,
    output: *mut PeerAddress,
    size: usize,
) -> bool {
    // SAFETY: our caller says that it is NULL or alive.
    let peer = catch_panic(None, || PeerAddress::of(unsafe { request.as_ref() }?.caller.peer?));
    // SAFETY: our caller says that it is NULL or writable.
    peer.is_some_and(|peer| output.is_null() || unsafe { write_sized(&peer, output, size) })
}

/// The certificate of the client of a request that is authenticated, in DER.
///
/// # Safety
/// As for [`ucall_request_path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_request_certificate_der(
    request: *const AuthRequest<'static>,
    output: *mut *const c_char,
    output_length: *mut usize,
) -> bool {
    // SAFETY: our caller says that it is NULL or alive.
    let der = catch_panic(None, || unsafe { request.as_ref() }?.certificate());
    // SAFETY: our caller says that they are NULL or writable.
    der.is_some() && unsafe { write_text_output(der, output, output_length) }
}

/// The subject of that certificate.
///
/// # Safety
/// As for [`ucall_request_path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_request_certificate_subject(
    request: *const AuthRequest<'static>,
    output: *mut *const c_char,
    output_length: *mut usize,
) -> bool {
    let subject = catch_panic(None, || {
        // SAFETY: our caller says that it is NULL or alive.
        Some(unsafe { request.as_ref() }?.certificate_summary()?.subject.as_bytes())
    });
    // SAFETY: our caller says that they are NULL or writable.
    subject.is_some() && unsafe { write_text_output(subject, output, output_length) }
}

/// The common name of that subject.
///
/// # Safety
/// As for [`ucall_request_path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_request_certificate_common_name(
    request: *const AuthRequest<'static>,
    output: *mut *const c_char,
    output_length: *mut usize,
) -> bool {
    let name = catch_panic(None, || {
        // SAFETY: our caller says that it is NULL or alive.
        let summary = unsafe { request.as_ref() }?.certificate_summary()?;
        summary.common_name.as_deref().map(str::as_bytes)
    });
    // SAFETY: our caller says that they are NULL or writable.
    name.is_some() && unsafe { write_text_output(name, output, output_length) }
}

/// One of the names that that certificate is issued for.
///
/// # Safety
/// As for [`ucall_request_path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_request_certificate_name(
    request: *const AuthRequest<'static>,
    index: usize,
    output: *mut *const c_char,
    output_length: *mut usize,
) -> bool {
    let name = catch_panic(None, || {
        // SAFETY: our caller says that it is NULL or alive.
        let summary = unsafe { request.as_ref() }?.certificate_summary()?;
        summary.names.get(index).map(String::as_bytes)
    });
    // SAFETY: our caller says that they are NULL or writable.
    name.is_some() && unsafe { write_text_output(name, output, output_length) }
}
