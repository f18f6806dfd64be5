//! Authentication: the program's function that identifies a caller.

use std::cell::OnceCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use ucall_proto::AuthenticationError;
use ucall_proto::http1::Head;
use ucall_proto::tls::{CertificateSummary, TlsSession};
use ucall_server::Caller;

/// What the program's function may ask of a request: `ucall_request_t` points to it.
#[derive(Debug)]
pub struct AuthRequest<'a> {
    pub(crate) head: Option<&'a Head<'a>>,
    session: Option<&'a Arc<TlsSession>>,
    pub(crate) caller: &'a Caller,
    /// Parsed when the program first asks for a part of it, whose text it then borrows.
    summary: OnceCell<CertificateSummary>,
}

impl AuthRequest<'_> {
    /// The client's verified certificate, in DER.
    pub(crate) fn certificate(&self) -> Option<&[u8]> {
        self.session?.peer_certificates.first().map(AsRef::as_ref)
    }

    /// What that certificate names.
    pub(crate) fn certificate_summary(&self) -> Option<&CertificateSummary> {
        let certificate = self.certificate()?;
        Some(self.summary.get_or_init(|| CertificateSummary::of(certificate)))
    }
}

/// `ucall_auth_callback_t`. "unwind" as for [`Function`](crate::callback::Function).
pub type AuthFunction =
    unsafe extern "C-unwind" fn(*const AuthRequest<'static>, *mut c_void, *mut *mut c_void) -> bool;

/// The program's function, and its tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Auth {
    pub(crate) function: AuthFunction,
    pub(crate) tag: *mut c_void,
}

// SAFETY: the header asks the program that the function may run, with its tag, on every thread that
// serves.
unsafe impl Send for Auth {}
// SAFETY: as above.
unsafe impl Sync for Auth {}

/// What the function has returned for a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User(pub(crate) *mut c_void);

// SAFETY: the header asks the program that the pointer may be read on every thread that serves.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

impl Auth {
    pub(crate) fn authenticate(
        &self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
    ) -> Result<User, AuthenticationError> {
        let request = AuthRequest { head, session, caller, summary: OnceCell::new() };
        let mut user = ptr::null_mut();
        // SAFETY: the program promised that the function may be called with its tag. The request
        // lives until it returns, and the header forbids to use it longer.
        match unsafe { (self.function)((&raw const request).cast(), self.tag, &raw mut user) } {
            true => Ok(User(user)),
            false => Err(AuthenticationError::Unauthorized),
        }
    }
}
