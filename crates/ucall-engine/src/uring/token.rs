//! Identifies a submission, so that its completion is dispatched.
//!
//! A slot is reused only after the last completion of its object, so the index alone identifies the
//! object.

/// What was submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Operation {
    /// Its completion is ignored: cancel, close.
    Ignored,
    Accept,
    Receive,
    Fill,
    Check,
    Hangup,
    Send,
    Shutdown,
    ReceiveFrom,
    SendTo,
    Poll,
    Wake,
    Timer,
    Install,
}

/// An operation and the index of its object, as the kernel's `user_data`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token {
    pub(super) operation: Operation,
    pub(super) index: u32,
}

impl Operation {
    const ALL: [Self; 14] = [
        Self::Ignored,
        Self::Accept,
        Self::Receive,
        Self::Fill,
        Self::Check,
        Self::Hangup,
        Self::Send,
        Self::Shutdown,
        Self::ReceiveFrom,
        Self::SendTo,
        Self::Poll,
        Self::Wake,
        Self::Timer,
        Self::Install,
    ];

    pub(super) const fn at(self, index: u32) -> Token {
        Token { operation: self, index }
    }

    /// Whether `user_data` is of that operation.
    pub(super) const fn is_in(self, user_data: u64) -> bool {
        user_data >> 32 == self as u64
    }
}

impl Token {
    pub(super) const IGNORED: Self = Operation::Ignored.at(0);

    pub(super) const fn encode(self) -> u64 {
        (self.operation as u64) << 32 | self.index as u64
    }

    pub(super) fn decode(user_data: u64) -> Self {
        let operation = Operation::ALL.get((user_data >> 32) as usize).copied();
        operation.unwrap_or(Operation::Ignored).at(user_data as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_decoded_as_encoded() {
        for operation in Operation::ALL {
            let token = operation.at(u32::MAX - 1);
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
