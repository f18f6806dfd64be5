//! The params of a call that is made of a request other than JSON-RPC.

use std::ops::Range;
use std::sync::Arc;

use super::Refusal;
use crate::MemoryBudget;
use crate::arrays::Tensor;
use crate::json::write_string;
use crate::rpc::frame::FRAME_ALIGNMENT;
use crate::rpc::{Parts, RpcError};

/// The text of a call's params, and the parts beside it, each aligned as in a frame.
#[derive(Debug, Default)]
pub(crate) struct CallParams {
    pub(crate) text: Vec<u8>,
    memory: Vec<u8>,
    parts: Vec<(Range<usize>, Option<Tensor>)>,
    /// What the memory is of, and reserved of.
    budget: MemoryBudget,
}

impl CallParams {
    /// With memory for parts of so many bytes together. It grows for more, at the cost of a copy.
    ///
    /// # Errors
    /// There is not as much.
    pub(crate) fn with_capacity(
        bytes: usize,
        parts: usize,
        budget: &MemoryBudget,
    ) -> Result<Self, Refusal> {
        let all = bytes.saturating_add((parts + 1) * FRAME_ALIGNMENT);
        let mut memory = budget.pool().allocate(all).map_err(|_| overloaded())?;
        memory.resize(memory.as_ptr().align_offset(FRAME_ALIGNMENT), 0);
        let (parts, budget) = (Vec::with_capacity(parts), budget.clone());
        Ok(Self { text: Vec::new(), memory, parts, budget })
    }

    /// Begins a member of the params.
    pub(crate) fn begin_member(&mut self, name: &str) {
        self.text.push(if self.text.is_empty() { b'{' } else { b',' });
        write_string(&mut self.text, name);
        self.text.push(b':');
    }

    /// Ends an object of members.
    pub(crate) fn end_members(&mut self) {
        self.text.extend_from_slice(if self.text.is_empty() { b"{}" } else { b"}" });
    }

    /// Adds a part, and writes what stands for it.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn write_part(
        &mut self,
        bytes: &[u8],
        tensor: Option<Tensor>,
    ) -> Result<(), Refusal> {
        let padding = self.padding();
        if self.memory.capacity() - self.memory.len() < padding + bytes.len() {
            self.grow(bytes.len())?;
        }
        let start = self.memory.len() + self.padding();
        self.memory.resize(start, 0);
        self.memory.extend_from_slice(bytes);
        let index = self.parts.len();
        self.parts.push((start..self.memory.len(), tensor));
        self.text.extend_from_slice(format!("{{\"$part\":{index}}}").as_bytes());
        Ok(())
    }

    /// How many bytes the next part has before it.
    fn padding(&self) -> usize {
        self.memory.as_ptr().wrapping_add(self.memory.len()).align_offset(FRAME_ALIGNMENT)
    }

    /// Moves the parts to memory for another one of so many bytes.
    fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        let all = self.memory.len().saturating_add(bytes).saturating_mul(2);
        let mut grown = Self::with_capacity(all, self.parts.len() + 1, &self.budget)?;
        for (range, _) in &mut self.parts {
            let start = grown.memory.len() + grown.padding();
            grown.memory.resize(start, 0);
            grown.memory.extend_from_slice(self.memory.get(range.clone()).unwrap_or_default());
            *range = start..grown.memory.len();
        }
        self.memory = grown.memory;
        Ok(())
    }

    /// The text, and the parts if there are any.
    pub(crate) fn finish(self) -> (Vec<u8>, Option<Arc<Parts>>) {
        let Self { text, memory, parts, budget } = self;
        if parts.is_empty() {
            return (text, None);
        }
        let reserved = budget.reserve_large(memory.capacity());
        let parts = Parts::new(budget.pool().share(memory), parts);
        (text, Some(Arc::new(parts.reserving(reserved))))
    }
}

#[cold]
fn overloaded() -> Refusal {
    Refusal { status: 503, error: RpcError::overloaded() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_also_after_their_memory_has_grown() {
        let budget = MemoryBudget::default();
        let mut params = CallParams::with_capacity(3, 1, &budget).expect("memory");
        for size in [3_usize, 1, 200, 64, 0, 100_000] {
            params.write_part(&vec![size as u8; size], None).expect("memory");
        }
        let (text, parts) = params.finish();
        let parts = parts.expect("parts");
        assert!(text.starts_with(br#"{"$part":0}{"$part":1}"#));
        for (index, size) in [3_usize, 1, 200, 64, 0, 100_000].into_iter().enumerate() {
            let bytes = parts.get(index).expect("a part").bytes;
            assert_eq!(bytes, vec![size as u8; size]);
            assert_eq!(bytes.as_ptr().align_offset(FRAME_ALIGNMENT), 0, "{size}");
        }
        assert!(budget.bytes() >= 100_000);
        drop(parts);
        assert_eq!(budget.bytes(), 0);
        assert!(CallParams::with_capacity(usize::MAX, 0, &budget).is_err());
    }
}
