//! The memory of objects with the buffer protocol: each buffer enters here.
//!
//! The memory of an array of objects is their addresses, and that of some `ctypes` types a pointer.
//! Sent or stored, they would tell where things are in this process, and mean nothing elsewhere. So
//! each view names its format, which must have no pointer.

use std::ffi::{CStr, c_char};

use bytes::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
#[cfg(feature = "queue")]
use pyo3::types::{PyBytes, PyMemoryView, PyType};
use ucall_proto::arrays::{DIMENSIONS_MAX, DType, Kind, Tensor};

use super::DropAttached;
#[cfg(feature = "queue")]
use super::Imported;
use super::type_name;

/// Calls `read` with the memory of an object in C order; others raise `TypeError`.
pub(crate) fn with_buffer<T>(
    object: &Bound<'_, PyAny>,
    read: impl FnOnce(&[u8]) -> T,
) -> PyResult<T> {
    let mut view = BufferView(ffi::Py_buffer::new());
    fill(object, &mut view.0)?;
    match is_contiguous(&view.0, b'C') {
        true => Ok(read(view.bytes())),
        false => Err(not_contiguous(object)),
    }
}

/// Calls `read` with the items of an object in C order, copied if its memory has steps or another
/// order; others raise `TypeError`.
pub(crate) fn with_items<T>(
    object: &Bound<'_, PyAny>,
    read: impl FnOnce(&[u8]) -> T,
) -> PyResult<T> {
    let mut view = BufferView(ffi::Py_buffer::new());
    fill(object, &mut view.0)?;
    match is_contiguous(&view.0, b'C') {
        true => Ok(read(view.bytes())),
        false => Ok(read(&view.copied(object.py())?)),
    }
}

/// What the items of a buffer are.
pub(crate) enum Memory {
    /// Bytes.
    Bytes,
    /// Those of an array, in the order of C.
    Array(Tensor),
}

/// Whether an object has a buffer.
pub(crate) fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}

/// Calls `read` with the items of an object in C order, and what they are. Others raise
/// `TypeError`. One dimension of bytes is bytes, but for an `array.array`.
pub(crate) fn with_memory<T>(
    object: &Bound<'_, PyAny>,
    read: impl FnOnce(Memory, &[u8]) -> T,
) -> PyResult<T> {
    let mut view = BufferView(ffi::Py_buffer::new());
    fill(object, &mut view.0)?;
    let Some(tensor) = tensor_of(&view.0) else {
        return Err(unexpected(object, "its items are neither bool nor numbers"));
    };
    let is_bytes = tensor.shape.len() <= 1
        && tensor.dtype.item_bytes == 1
        && tensor.dtype.kind != Kind::Bool
        && type_name(object) != "array.array";
    let memory = if is_bytes { Memory::Bytes } else { Memory::Array(tensor) };
    match is_contiguous(&view.0, b'C') {
        true => Ok(read(memory, view.bytes())),
        false => Ok(read(memory, &view.copied(object.py())?)),
    }
}

/// The array that a filled view shows, if it is one.
fn tensor_of(view: &ffi::Py_buffer) -> Option<Tensor> {
    let format = match view.format.is_null() {
        true => b"B",
        // SAFETY: a format is a text that lives as long as its view.
        false => unsafe { CStr::from_ptr(view.format) }.to_bytes(),
    };
    let (order, letters) = match format {
        [order @ (b'<' | b'>' | b'=' | b'@' | b'!' | b'|'), letters @ ..] => (*order, letters),
        letters => (b'@', letters),
    };
    let kind = match letters {
        b"?" => Kind::Bool,
        b"b" | b"h" | b"i" | b"l" | b"q" | b"n" => Kind::Int,
        b"c" | b"B" | b"H" | b"I" | b"L" | b"Q" | b"N" => Kind::UInt,
        b"e" | b"f" | b"d" | b"g" => Kind::Float,
        b"Zf" | b"Zd" | b"Zg" | b"F" | b"D" | b"G" => Kind::Complex,
        _ => return None,
    };
    let native = DType::native(kind, u8::try_from(view.itemsize).ok()?);
    let dtype = DType::of_descr(&native.to_string())?;
    let is_big_endian = match order {
        b'<' => false,
        b'>' | b'!' => dtype.item_bytes > 1,
        _ => dtype.is_big_endian,
    };
    let sides = match usize::try_from(view.ndim) {
        Ok(count @ 1..=DIMENSIONS_MAX) if !view.shape.is_null() => {
            // SAFETY: a view has a side for each dimension.
            unsafe { std::slice::from_raw_parts(view.shape, count) }
        }
        Ok(0) => &[],
        _ => return None,
    };
    let shape = sides.iter().map(|side| usize::try_from(*side).ok()).collect::<Option<_>>()?;
    let tensor = Tensor { dtype: DType { is_big_endian, ..dtype }, shape, is_fortran: false };
    (tensor.bytes() == usize::try_from(view.len).ok()).then_some(tensor)
}

/// The bytes of an object in C order where they lie, which stay in place until the last of them is
/// dropped; `None` if there are fewer than `bytes_min`, or they are in another order.
pub(crate) fn shared_buffer(
    object: &Bound<'_, PyAny>,
    bytes_min: usize,
) -> PyResult<Option<Bytes>> {
    let mut view = Box::new(BufferView(ffi::Py_buffer::new()));
    fill(object, &mut view.0)?;
    let is_shared = is_contiguous(&view.0, b'C') && view.0.len as usize >= bytes_min;
    Ok(is_shared.then(|| Bytes::from_owner(SharedView(DropAttached::new(view)))))
}

struct SharedView(DropAttached<Box<BufferView>>);

// SAFETY: the memory is only read, and a thread that is attached releases the view.
unsafe impl Send for SharedView {}

impl AsRef<[u8]> for SharedView {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Fills a view of memory that is contiguous in any order, which its caller releases; other objects
/// raise `TypeError`, and leave nothing to release. A view that is filled must not move.
#[cfg(feature = "queue")]
pub(crate) fn fill_view(object: &Bound<'_, PyAny>, view: &mut ffi::Py_buffer) -> PyResult<()> {
    fill(object, view)?;
    if is_contiguous(view, b'A') {
        return Ok(());
    }
    // SAFETY: the view was filled, and this thread is attached.
    unsafe { ffi::PyBuffer_Release(view) };
    Err(not_contiguous(object))
}

/// A view of an object's bytes, without a copy. A single number has no bytes to send. A
/// `PickleBuffer` may be in any order, which its pickle has.
///
/// Raises:
///     TypeError: It is neither bytes nor an array of numbers in C order.
#[cfg(feature = "queue")]
#[pyfunction]
pub(crate) fn bytes_view<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static PICKLE_BUFFER: Imported<PyType> = Imported::new("pickle", "PickleBuffer");
    let mut view = BufferView(ffi::Py_buffer::new());
    fill(object, &mut view.0)?;
    if object.is_exact_instance(PICKLE_BUFFER.get(object.py())?) {
        return object.call_method0("raw");
    }
    if view.0.ndim == 0 {
        return Err(unexpected(object, "a single number"));
    }
    if !is_contiguous(&view.0, b'C') {
        return Err(not_contiguous(object));
    }
    if view.0.len == 0 {
        // An empty shape cannot be cast.
        return Ok(PyMemoryView::from(PyBytes::new(object.py(), b"").as_any())?.into_any());
    }
    PyMemoryView::from(object)?.call_method1("cast", ("B",))
}

/// Fills a view, which its caller releases; others raise `TypeError`, and leave nothing to release.
fn fill(object: &Bound<'_, PyAny>, view: &mut ffi::Py_buffer) -> PyResult<()> {
    // SAFETY: fills the view, or raises and leaves nothing to release.
    let state = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view, ffi::PyBUF_FULL_RO) };
    if state != 0 {
        let error = PyErr::fetch(object.py());
        return Err(match error.is_instance_of::<PyTypeError>(object.py()) {
            true => error,
            false => unexpected(object, &error.value(object.py()).to_string()),
        });
    }
    // SAFETY: a format is a text that lives as long as its view.
    if view.format.is_null() || is_plain(unsafe { CStr::from_ptr(view.format) }.to_bytes()) {
        return Ok(());
    }
    // SAFETY: the view was filled, and this thread is attached.
    unsafe { ffi::PyBuffer_Release(view) };
    Err(unexpected(object, "its memory has addresses of objects"))
}

/// Whether the items of a filled view are one piece, in the order `C`, or in any order, `A`.
fn is_contiguous(view: &ffi::Py_buffer, order: u8) -> bool {
    // SAFETY: the view is filled.
    unsafe { ffi::PyBuffer_IsContiguous(view, order as c_char) == 1 }
}

/// A view that its drop releases, on a thread that is attached to the interpreter. It is filled
/// where it is, because some views point to themselves.
struct BufferView(ffi::Py_buffer);

impl BufferView {
    fn bytes(&self) -> &[u8] {
        if self.0.len <= 0 {
            return &[];
        }
        // SAFETY: a contiguous view is one piece of `len` bytes that stays in place while it
        // is held. No Python code runs meanwhile that could write to it.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast(), self.0.len as usize) }
    }

    fn copied(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        let (mut bytes, len) = (vec![0_u8; self.0.len.max(0) as usize], self.0.len);
        let target = bytes.as_mut_ptr().cast();
        // SAFETY: the target has the length of the view, which is filled.
        match unsafe { ffi::PyBuffer_ToContiguous(target, &self.0, len, b'C' as c_char) } {
            0 => Ok(bytes),
            _ => Err(PyErr::fetch(py)),
        }
    }
}

impl Drop for BufferView {
    fn drop(&mut self) {
        // SAFETY: an empty view has nothing to release, and a filled one is released once, by a
        // function whose object proves that this thread is attached.
        unsafe { ffi::PyBuffer_Release(&mut self.0) };
    }
}

/// Whether a format (PEP 3118) is of numbers and text alone, or of structures of such.
fn is_plain(format: &[u8]) -> bool {
    let mut rest = format;
    while let [code, after @ ..] = rest {
        rest = match code {
            // Order, counts, shapes, and the type characters of the `struct` module and PEP 3118.
            b'@' | b'=' | b'<' | b'>' | b'!' | b'^' | b' ' => after,
            b'0'..=b'9' | b'(' | b')' | b',' | b'{' | b'}' | b'T' => after,
            b'?' | b'c' | b'b' | b'B' | b'h' | b'H' | b'i' | b'I' | b'l' | b'L' => after,
            b'q' | b'Q' | b'n' | b'N' | b'e' | b'f' | b'd' | b'g' | b'F' | b'D' | b'G' => after,
            b's' | b'p' | b'u' | b'w' | b'x' => after,
            // A complex number; alone it is a pointer to text.
            b'Z' => match after {
                [b'f' | b'd' | b'g', after @ ..] => after,
                _ => return false,
            },
            // The name of a field.
            b':' => match after.iter().position(|byte| *byte == b':') {
                Some(end) => after.get(end + 1..).unwrap_or_default(),
                None => return false,
            },
            _ => return false,
        };
    }
    true
}

#[cold]
fn not_contiguous(object: &Bound<'_, PyAny>) -> PyErr {
    unexpected(object, "its memory is not contiguous in C order, as numpy.ascontiguousarray makes")
}

#[cold]
fn unexpected(object: &Bound<'_, PyAny>, reason: &str) -> PyErr {
    let got = type_name(object);
    PyTypeError::new_err(format!("expected bytes or an array of numbers, got {got}: {reason}"))
}
