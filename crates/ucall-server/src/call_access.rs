//! Who may call a procedure.

/// Who may call a procedure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallAccess {
    /// Callers that [`Handler::authenticate`](crate::Handler::authenticate) accepts.
    Authenticated,
    /// All, without authentication.
    Public,
    /// Callers that [`Handler::authenticate_call`](crate::Handler::authenticate_call) accepts.
    /// Procedures with this number accept the same.
    Own(usize),
}
