//! Close codes (RFC 6455, section 7.4).

/// Why a connection closes: a code of RFC 6455 or of IANA's registry, or an application's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCode(u16);

impl CloseCode {
    /// The peer has what it wanted.
    pub const NORMAL: Self = Self(1000);
    /// The server shuts down.
    pub const GOING_AWAY: Self = Self(1001);
    /// The peer's frames violate the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// A message of a kind that is not accepted.
    pub const UNSUPPORTED: Self = Self(1003);
    /// A message that is not what its kind promises, such as text that is not UTF-8.
    pub const INVALID_PAYLOAD: Self = Self(1007);
    /// The peer violates a policy of this server.
    pub const POLICY_VIOLATION: Self = Self(1008);
    /// A message that is too large.
    pub const TOO_LARGE: Self = Self(1009);
    /// An error of this server.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// The server is overloaded; the peer may connect again later.
    pub const TRY_AGAIN_LATER: Self = Self(1013);

    /// The code of a Close frame, if it may be sent. 1004, 1005, 1006 and 1015 may not, and other
    /// codes below 3000 are reserved.
    #[must_use]
    pub fn new(code: u16) -> Option<Self> {
        matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999).then_some(Self(code))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }
}
