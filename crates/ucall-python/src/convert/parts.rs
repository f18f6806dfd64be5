//! Values that lie in the binary parts of the document, to which the text refers.

use std::os::raw::c_int;
use std::sync::Arc;

use pyo3::ffi as capi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};
use ucall_proto::json::ValueKind;
use ucall_proto::{Part, Parts};

use super::{ConversionFault, Convert, Input};

type Built<'py> = Result<Bound<'py, PyAny>, ConversionFault>;

/// The key of the only member of an object that stands for a part.
const KEY: &[u8] = b"$part";

/// The memory of a document's parts, while views of it exist. It shows the bytes of one part.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Debug)]
pub(crate) struct PartMemory {
    parts: Arc<Parts>,
    index: usize,
    /// Whether one array or view of the part is all that exists.
    has_one_view: bool,
}

impl PartMemory {
    /// The memory of a part of which more arrays or views may be made.
    pub(crate) fn new(
        py: Python<'_>,
        parts: Arc<Parts>,
        index: usize,
    ) -> PyResult<Bound<'_, Self>> {
        Bound::new(py, Self { parts, index, has_one_view: false })
    }

    /// The memory of a part that was taken, for the array of it.
    pub(super) fn taken(
        py: Python<'_>,
        parts: Arc<Parts>,
        index: usize,
    ) -> PyResult<Bound<'_, Self>> {
        Bound::new(py, Self { parts, index, has_one_view: true })
    }

    /// Whether one array or view of the part is all that exists.
    pub(super) fn has_one_view(&self) -> bool {
        self.has_one_view
    }

    /// The memory of all parts, in which those of other documents may lie.
    pub(super) fn memory(&self) -> &[u8] {
        self.parts.memory()
    }

    fn bytes(&self) -> &[u8] {
        self.parts.get(self.index).map_or(&[], |part| part.bytes)
    }
}

#[pymethods]
impl PartMemory {
    /// Shows the bytes, read-only.
    ///
    /// # Safety
    /// The interpreter passes a view to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut capi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().bytes();
        let (data, len) = (bytes.as_ptr().cast_mut().cast(), bytes.len() as capi::Py_ssize_t);
        // SAFETY: the view holds a reference to this object, which keeps the bytes in place. They
        // are read-only, and a writable view is refused.
        match unsafe { capi::PyBuffer_FillInfo(view, slf.as_ptr(), data, len, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

impl<'py> Input<'_, '_, 'py> {
    /// Consumes an object that stands for a part, and returns its index. Another object stays to be
    /// read.
    #[inline]
    pub(super) fn part_index(&mut self) -> Option<usize> {
        match self.scratch.parts {
            Some(_) => self.find_part_index(),
            None => None,
        }
    }

    #[cold]
    fn find_part_index(&mut self) -> Option<usize> {
        let mut reader = self.reader.clone();
        if !reader.enter_object() || reader.next_key()?.unescaped().as_ref() != KEY {
            return None;
        }
        if reader.kind() != ValueKind::Number {
            return None;
        }
        let index = usize::try_from(reader.number().as_i64()?).ok()?;
        if reader.next_key().is_some() {
            return None;
        }
        self.reader = reader;
        Some(index)
    }

    /// Calls `read` with a part, of which nothing else is built.
    pub(super) fn take_part<T>(
        &mut self,
        index: usize,
        read: impl FnOnce(Python<'py>, &Arc<Parts>, Part<'_>) -> Result<T, ConversionFault>,
    ) -> Result<T, ConversionFault> {
        let parts = self.scratch.parts.clone();
        let Some(parts) = parts else { return Err(ConversionFault::value("there are no parts")) };
        let part = parts.take(index).map_err(|error| ConversionFault::value(error.to_string()))?;
        read(self.py, &parts, part)
    }

    /// The value of a part. `Any` is bytes.
    #[cold]
    pub(super) fn part(&mut self, convert: &Convert, index: usize) -> Built<'py> {
        self.take_part(index, |py, parts, part| {
            Ok(match convert {
                Convert::ByteArray => PyByteArray::new(py, part.bytes).into_any(),
                Convert::MemoryView => {
                    let memory = PartMemory::new(py, parts.clone(), index)?;
                    PyMemoryView::from(memory.as_any())?.into_any()
                }
                _ => PyBytes::new(py, part.bytes).into_any(),
            })
        })
    }

    /// The text of the next value, with base64 in place of parts.
    pub(super) fn inlined(&mut self) -> Result<std::borrow::Cow<'_, [u8]>, ConversionFault> {
        let text = self.reader.skip();
        match &self.scratch.parts {
            Some(parts) if text.len() > KEY.len() => match parts.inline(text) {
                Ok(text) => Ok(text.into()),
                Err(error) => Err(ConversionFault::value(error.to_string())),
            },
            _ => Ok(text.into()),
        }
    }

    /// Lets parts be taken again, for another reading of the same text. Nothing that was built of
    /// them before is left. Returns the parts as they are for the readings of other texts.
    pub(crate) fn take_parts_again(&mut self) -> Option<Arc<Parts>> {
        let untaken = self.scratch.parts.as_ref().map(|parts| Arc::new(parts.untaken()));
        std::mem::replace(&mut self.scratch.parts, untaken)
    }

    /// Ends that.
    pub(crate) fn restore_parts(&mut self, parts: Option<Arc<Parts>>) {
        self.scratch.parts = parts;
    }
}
