//! Decodes the operations of a pickle.

use crate::error::Error;

/// An operation that CPython's C pickler writes at protocol 5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation<'a> {
    Stop,
    Frame,
    Mark,
    Pop,
    PopMark,
    None,
    Boolean(bool),
    Integer(i64),
    Long(&'a [u8]),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    ByteArray(&'a [u8]),
    NextBuffer,
    ReadOnlyBuffer,
    EmptyTuple,
    /// A tuple of the top values, this many.
    TupleOf(usize),
    /// A tuple of the values above the mark.
    Tuple,
    EmptyList,
    Append,
    Appends,
    EmptyDict,
    SetItem,
    SetItems,
    EmptySet,
    AddItems,
    FrozenSet,
    Memoize,
    Get(u32),
    Global,
    Reduce,
    NewObject,
    NewObjectEx,
    Build,
    PersistentId,
}

/// The unread bytes of a pickle.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    /// Reads the PROTO operation at the start.
    pub(crate) fn of(pickle: &'a [u8]) -> Result<Self, Error> {
        match pickle {
            [0x80, 5, rest @ ..] => Ok(Self { rest }),
            _ => Err(Error::Protocol),
        }
    }

    /// Reads operations that follow others.
    pub(crate) fn after_start(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// How many bytes are missing of a long object, if one is next and not complete.
    pub(crate) fn missing_of_long(&self) -> Option<usize> {
        let (code, tail) = self.rest.split_first()?;
        let (length, body) = match code {
            b'B' | b'X' => {
                let (length, body) = tail.split_first_chunk::<4>()?;
                (u64::from(u32::from_le_bytes(*length)), body)
            }
            0x8d | 0x8e | 0x96 => {
                let (length, body) = tail.split_first_chunk::<8>()?;
                (u64::from_le_bytes(*length), body)
            }
            _ => return None,
        };
        usize::try_from(length).ok()?.checked_sub(body.len()).filter(|&missing| missing > 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next operation with its arguments.
    // Inlined into the reader's loop, so that the operation stays in registers.
    #[inline(always)]
    pub(crate) fn operation(&mut self) -> Result<Operation<'a>, Error> {
        let [code] = self.take::<1>()?;
        Ok(match code {
            b'K' => Operation::Integer(i64::from(u8::from_le_bytes(self.take()?))),
            b'M' => Operation::Integer(i64::from(u16::from_le_bytes(self.take()?))),
            b'J' => Operation::Integer(i64::from(i32::from_le_bytes(self.take()?))),
            0x8c => Operation::Text(self.short()?),
            0x94 => Operation::Memoize,
            b'h' => Operation::Get(u32::from(u8::from_le_bytes(self.take()?))),
            b'j' => Operation::Get(u32::from_le_bytes(self.take()?)),
            b'N' => Operation::None,
            0x88 => Operation::Boolean(true),
            0x89 => Operation::Boolean(false),
            b'G' => Operation::Float(f64::from_be_bytes(self.take()?)),
            b'(' => Operation::Mark,
            b's' => Operation::SetItem,
            b'u' => Operation::SetItems,
            b'a' => Operation::Append,
            b'e' => Operation::Appends,
            b')' => Operation::EmptyTuple,
            0x85 => Operation::TupleOf(1),
            0x86 => Operation::TupleOf(2),
            0x87 => Operation::TupleOf(3),
            b't' => Operation::Tuple,
            b']' => Operation::EmptyList,
            b'}' => Operation::EmptyDict,
            0x8f => Operation::EmptySet,
            0x90 => Operation::AddItems,
            0x91 => Operation::FrozenSet,
            b'C' => Operation::Bytes(self.short()?),
            b'B' => Operation::Bytes(self.medium()?),
            0x8e => Operation::Bytes(self.large()?),
            b'X' => Operation::Text(self.medium()?),
            0x8d => Operation::Text(self.large()?),
            0x96 => Operation::ByteArray(self.large()?),
            0x8a => Operation::Long(self.short()?),
            0x8b => Operation::Long(self.medium()?),
            0x93 => Operation::Global,
            b'R' => Operation::Reduce,
            0x81 => Operation::NewObject,
            0x92 => Operation::NewObjectEx,
            b'b' => Operation::Build,
            b'Q' => Operation::PersistentId,
            0x97 => Operation::NextBuffer,
            0x98 => Operation::ReadOnlyBuffer,
            b'0' => Operation::Pop,
            b'1' => Operation::PopMark,
            b'.' => Operation::Stop,
            0x95 => {
                let length = u64::from_le_bytes(self.take()?);
                self.check(length)?;
                Operation::Frame
            }
            _ => return Err(Error::Operation(code)),
        })
    }

    #[inline(always)]
    fn take<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], Error> {
        let (taken, rest) = self.rest.split_first_chunk::<COUNT>().ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    #[inline(always)]
    fn short(&mut self) -> Result<&'a [u8], Error> {
        let [length] = self.take::<1>()?;
        self.bytes(u64::from(length))
    }

    fn medium(&mut self) -> Result<&'a [u8], Error> {
        let length = u32::from_le_bytes(self.take()?);
        self.bytes(u64::from(length))
    }

    fn large(&mut self) -> Result<&'a [u8], Error> {
        let length = u64::from_le_bytes(self.take()?);
        self.bytes(length)
    }

    #[inline(always)]
    fn bytes(&mut self, length: u64) -> Result<&'a [u8], Error> {
        self.check(length)?;
        let (taken, rest) = self.rest.split_at_checked(length as usize).ok_or(Error::Length)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline(always)]
    fn check(&self, length: u64) -> Result<(), Error> {
        if length <= self.rest.len() as u64 { Ok(()) } else { Err(Error::Length) }
    }
}
