//! A segment of a message in shared memory.
#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
pub use ucall_engine::shared::View;

/// One that no system without shared memory has.
#[cfg(not(target_os = "linux"))]
#[derive(Clone, Debug)]
pub enum View {}

#[cfg(not(target_os = "linux"))]
impl View {
    /// Its address.
    pub fn as_ptr(&self) -> *const u8 {
        match *self {}
    }

    /// Its length.
    pub fn len(&self) -> usize {
        match *self {}
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        match *self {}
    }

    /// The bytes, if no process can change them.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match *self {}
    }

    /// A copy.
    pub fn to_vec(&self) -> Vec<u8> {
        match *self {}
    }
}
