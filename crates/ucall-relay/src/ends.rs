//! How connections end, and calls without an answer.

use ucall_proto::tls::TlsError;

use crate::long_call::CallText;
use crate::slots::PendingCall;

/// How a connection has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionEnd {
    /// As it should.
    Done,
    /// By a failure of the upstream.
    Failed(String),
    /// The upstream works, but has refused one of several calls without saying which.
    Refused(String),
    /// Because this process has run out of descriptors or memory, which says nothing about the
    /// upstream.
    Shortage(String),
}

/// Why a call was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GivenUp {
    /// Its time was over.
    Late,
    /// Its caller has cancelled it, or has left.
    Unwanted,
}

/// A call whose connection has failed.
#[derive(Debug)]
pub(crate) struct LostCall {
    pub(crate) call: PendingCall,
    /// Its text up to the params, if it may be sent again.
    pub(crate) text: Option<Box<CallText>>,
    /// Whether the upstream may have run it.
    pub(crate) was_sent: bool,
    /// Why the connection has ended.
    pub(crate) reason: String,
    /// Whether that is a shortage of this process.
    pub(crate) is_shortage: bool,
}

/// How a connection has ended, and the calls that it has not answered.
#[derive(Debug)]
pub(crate) struct EndedConnection {
    pub(crate) end: ConnectionEnd,
    pub(crate) lost: Vec<LostCall>,
}

pub(crate) fn failed(reason: &str) -> ConnectionEnd {
    ConnectionEnd::Failed(reason.to_owned())
}

pub(crate) fn describe_tls(error: &TlsError) -> ConnectionEnd {
    ConnectionEnd::Failed(format!("TLS has failed: {error}"))
}
