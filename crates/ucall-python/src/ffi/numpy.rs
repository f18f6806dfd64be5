//! NumPy's arrays, by its C API: none of its Python code runs for a call.
//!
//! The API is a table of functions in a capsule. What is used of it, and of the objects' memory, is
//! the same in all of NumPy 1.x and 2.x; the version of the interface is checked first.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::OnceLock;

use pyo3::exceptions::PyImportError;
use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};
use pyo3::{Borrowed, intern};
use ucall_proto::arrays::{DType, Kind, Tensor};

use super::{Imported, has_one_reference, owned};

/// The functions and classes of NumPy that are used.
pub(crate) struct NumPy {
    new_from_descr: NewFromDescr,
    set_base_object: SetBaseObject,
    array_class: *mut PyTypeObject,
    long_double_bytes: u8,
    /// The dtype objects that were used, by their kind, size and order.
    dtypes: [OnceLock<Py<PyAny>>; DTYPES],
}

// SAFETY: the functions and the class live as long as the process; they are only used by threads
// that are attached to the interpreter.
unsafe impl Send for NumPy {}
// SAFETY: as above.
unsafe impl Sync for NumPy {}

type NewFromDescr = unsafe extern "C" fn(
    subtype: *mut PyTypeObject,
    descr: *mut PyObject,
    dimensions: c_int,
    shape: *const isize,
    strides: *const isize,
    data: *mut c_void,
    flags: c_int,
    parent: *mut PyObject,
) -> *mut PyObject;
type SetBaseObject = unsafe extern "C" fn(array: *mut PyObject, base: *mut PyObject) -> c_int;
type Version = unsafe extern "C" fn() -> c_uint;

/// Places in the table.
mod api {
    pub(super) const VERSION: usize = 0;
    pub(super) const ARRAY_CLASS: usize = 2;
    pub(super) const NEW_FROM_DESCR: usize = 94;
    pub(super) const SET_BASE_OBJECT: usize = 282;
}

/// Bits of an array's flags.
mod flags {
    use std::ffi::c_int;

    pub(super) const C_CONTIGUOUS: c_int = 0x1;
    pub(super) const F_CONTIGUOUS: c_int = 0x2;
    pub(super) const OWNS_DATA: c_int = 0x4;
    pub(super) const WRITEABLE: c_int = 0x400;
}

/// The versions of the interface of NumPy 1.x and 2.x.
const VERSIONS: [c_uint; 2] = [0x0100_0009, 0x0200_0000];

/// A `PyArrayObject`.
#[repr(C)]
struct ArrayFields {
    head: PyObject,
    data: *mut c_char,
    dimensions: c_int,
    shape: *mut isize,
    strides: *mut isize,
    base: *mut PyObject,
    descr: *mut DescrFields,
    flags: c_int,
    weak_references: *mut PyObject,
}

/// What all versions of a `PyArray_Descr` begin with.
#[repr(C)]
struct DescrFields {
    head: PyObject,
    scalar_class: *mut PyTypeObject,
    kind: c_char,
    letter: c_char,
    byte_order: c_char,
    former_flags: c_char,
    number: c_int,
}

/// The numbers of the dtypes that users define.
const USER_DEFINED: c_int = 256;

const KINDS: usize = 6;
const SIZES: usize = 6;
const DTYPES: usize = KINDS * SIZES * 2;

static NUMPY: OnceLock<NumPy> = OnceLock::new();

impl NumPy {
    /// Imports NumPy, if that has not been done yet.
    pub(crate) fn get(py: Python<'_>) -> PyResult<&'static Self> {
        if let Some(known) = NUMPY.get() {
            return Ok(known);
        }
        let found = Self::import(py)?;
        // Another thread may have been first.
        Ok(NUMPY.get_or_init(|| found))
    }

    /// NumPy, unless no code has imported it: then there are no arrays.
    #[inline]
    pub(crate) fn imported(py: Python<'_>) -> PyResult<Option<&'static Self>> {
        match NUMPY.get() {
            Some(known) => Ok(Some(known)),
            None => Self::get_if_imported(py),
        }
    }

    #[cold]
    fn get_if_imported(py: Python<'_>) -> PyResult<Option<&'static Self>> {
        let modules = py.import("sys")?.getattr(intern!(py, "modules"))?;
        match modules.contains(intern!(py, "numpy"))? {
            true => Self::get(py).map(Some),
            false => Ok(None),
        }
    }

    #[cold]
    fn import(py: Python<'_>) -> PyResult<Self> {
        let numpy = py.import("numpy")?;
        let is_version_1 = numpy.getattr("__version__")?.extract::<String>()?.starts_with("1.");
        let module = if is_version_1 { "numpy.core" } else { "numpy._core" };
        let module = py.import(format!("{module}._multiarray_umath").as_str())?;
        let capsule = module.getattr("_ARRAY_API")?.cast_into::<PyCapsule>()?;
        let table = capsule.pointer_checked(None)?.as_ptr().cast::<*const c_void>();
        // SAFETY: the capsule has the table, which lives as long as the module; it is never
        // unloaded. Each place has a function of that type, or a class.
        let (version, found) = unsafe {
            let at = |place: usize| *table.add(place).cast_const();
            let version = mem::transmute::<*const c_void, Version>(at(api::VERSION))();
            let found = Self {
                new_from_descr: mem::transmute::<*const c_void, NewFromDescr>(at(
                    api::NEW_FROM_DESCR,
                )),
                set_base_object: mem::transmute::<*const c_void, SetBaseObject>(at(
                    api::SET_BASE_OBJECT,
                )),
                array_class: at(api::ARRAY_CLASS).cast_mut().cast(),
                long_double_bytes: numpy
                    .call_method1("dtype", ("g",))?
                    .getattr("itemsize")?
                    .extract()?,
                dtypes: [const { OnceLock::new() }; DTYPES],
            };
            (version, found)
        };
        match VERSIONS.contains(&version) {
            true => Ok(found),
            false => Err(PyImportError::new_err(format!(
                "NumPy has the binary interface {version:#x}, which ucall does not know"
            ))),
        }
    }

    /// The object as an array, if it is one.
    #[inline]
    pub(crate) fn array<'a, 'py>(
        &'static self,
        object: &'a Bound<'py, PyAny>,
    ) -> Option<Array<'a, 'py>> {
        // SAFETY: the object and its class are alive.
        let is_array = unsafe { ffi::PyObject_TypeCheck(object.as_ptr(), self.array_class) != 0 };
        is_array.then_some(Array { object, numpy: self })
    }

    /// The object of a dtype.
    pub(crate) fn dtype<'py>(&self, py: Python<'py>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
        let Some(cached) = index_of(dtype).and_then(|index| self.dtypes.get(index)) else {
            return make_dtype(py, dtype);
        };
        if let Some(known) = cached.get() {
            return Ok(known.bind(py).clone());
        }
        let made = make_dtype(py, dtype)?;
        let made = cached.get_or_init(|| made.unbind());
        Ok(made.bind(py).clone())
    }

    /// Makes an array in memory of its own, whose bytes `fill` writes; `None` if it returns false.
    /// The shape must have been checked: it is allocated.
    pub(crate) fn new_array<'py>(
        &self,
        py: Python<'py>,
        tensor: &Tensor,
        fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let array = self.make(py, tensor, ptr::null_mut(), c_int::from(tensor.is_fortran))?;
        let len = tensor.bytes().unwrap_or(0);
        // SAFETY: it is a new array of that many bytes, to which no other code has a reference.
        let target = unsafe {
            let data = (*array.as_ptr().cast::<ArrayFields>()).data;
            std::slice::from_raw_parts_mut(data.cast::<MaybeUninit<u8>>(), len)
        };
        Ok(fill(target).then_some(array))
    }

    /// As [`NumPy::new_array`], with memory that is all zeros before `fill` writes it.
    pub(crate) fn zeros<'py, T>(
        &self,
        py: Python<'py>,
        tensor: &Tensor,
        fill: impl FnOnce(&mut [u8]) -> T,
    ) -> PyResult<(Bound<'py, PyAny>, Option<T>)> {
        let mut filled = None;
        let array = self.new_array(py, tensor, |target| {
            target.fill(MaybeUninit::new(0));
            // SAFETY: all of it was written just now.
            filled = Some(fill(unsafe {
                std::slice::from_raw_parts_mut(target.as_mut_ptr().cast::<u8>(), target.len())
            }));
            true
        })?;
        let array = array.unwrap_or_else(|| py.None().into_bound(py));
        Ok((array, filled))
    }

    /// Makes a writable array over memory that `owner` keeps.
    ///
    /// # Safety
    /// The memory has the bytes of the tensor, which stay in place while the owner is alive, and
    /// nothing else reads or writes them.
    pub(crate) unsafe fn array_over<'py>(
        &self,
        tensor: &Tensor,
        data: *mut u8,
        owner: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let order = if tensor.is_fortran { flags::F_CONTIGUOUS } else { flags::C_CONTIGUOUS };
        let py = owner.py();
        let array = self.make(py, tensor, data.cast(), order | flags::WRITEABLE)?;
        // SAFETY: it is a new array, and takes over the reference.
        match unsafe { (self.set_base_object)(array.as_ptr(), owner.into_ptr()) } {
            0 => Ok(array),
            _ => Err(PyErr::fetch(py)),
        }
    }

    fn make<'py>(
        &self,
        py: Python<'py>,
        tensor: &Tensor,
        data: *mut c_void,
        flags: c_int,
    ) -> PyResult<Bound<'py, PyAny>> {
        let descr = self.dtype(py, tensor.dtype)?;
        let strides = (!data.is_null()).then(|| strides_of(tensor));
        let strides = strides.as_ref().map_or(ptr::null(), |strides| strides.as_ptr());
        let dimensions = tensor.shape.len() as c_int;
        // SAFETY: shape and strides have that many numbers, and a `usize` up to `isize::MAX` is the
        // same as an `isize`; others are refused as negative. The reference to the dtype is taken
        // over.
        owned(py, unsafe {
            (self.new_from_descr)(
                self.array_class,
                descr.into_ptr(),
                dimensions,
                tensor.shape.as_ptr().cast(),
                strides,
                data,
                flags,
                ptr::null_mut(),
            )
        })
    }
}

/// The strides of contiguous items, with which NumPy checks the alignment of given memory.
fn strides_of(tensor: &Tensor) -> Vec<isize> {
    let mut strides = vec![0; tensor.shape.len()];
    let mut next = isize::from(tensor.dtype.item_bytes);
    let mut step = |(stride, side): (&mut isize, &usize)| {
        *stride = next;
        next = next.saturating_mul((*side).max(1) as isize);
    };
    let pairs = strides.iter_mut().zip(&tensor.shape);
    match tensor.is_fortran {
        true => pairs.for_each(&mut step),
        false => pairs.rev().for_each(&mut step),
    }
    strides
}

fn index_of(dtype: DType) -> Option<usize> {
    let size = match dtype.item_bytes {
        1 => 0,
        2 => 1,
        4 => 2,
        8 => 3,
        16 => 4,
        32 => 5,
        _ => return None,
    };
    Some((dtype.kind as usize * SIZES + size) * 2 + usize::from(dtype.is_big_endian))
}

#[cold]
fn make_dtype(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: Imported<PyType> = Imported::new("numpy", "dtype");
    if dtype.kind == Kind::BFloat {
        static BFLOAT: Imported<PyType> = Imported::new("ml_dtypes", "bfloat16");
        return CLASS.get(py)?.call1((BFLOAT.get(py)?,));
    }
    CLASS.get(py)?.call1((dtype.to_string(),))
}

/// A NumPy array.
#[derive(Clone, Copy)]
pub(crate) struct Array<'a, 'py> {
    object: &'a Bound<'py, PyAny>,
    numpy: &'static NumPy,
}

impl<'a, 'py> Array<'a, 'py> {
    fn fields(&self) -> &'a ArrayFields {
        // SAFETY: it is an array, which is borrowed, and no code runs meanwhile that changes it.
        unsafe { &*self.object.as_ptr().cast::<ArrayFields>() }
    }

    /// The object.
    pub(crate) fn object(&self) -> &'a Bound<'py, PyAny> {
        self.object
    }

    /// Whether it is of NumPy's own class, not of a derived one.
    pub(crate) fn is_plain(&self) -> bool {
        self.object.get_type_ptr() == self.numpy.array_class
    }

    /// The length of each dimension.
    pub(crate) fn shape(&self) -> &'a [usize] {
        let ArrayFields { shape, dimensions, .. } = self.fields();
        match usize::try_from(*dimensions) {
            // SAFETY: an array has that many sides, none of which is negative.
            Ok(count @ 1..) => unsafe { std::slice::from_raw_parts(shape.cast(), count) },
            _ => &[],
        }
    }

    /// The type of its items; `None` if it is none that is sent.
    pub(crate) fn dtype(&self) -> PyResult<Option<DType>> {
        // SAFETY: an array has a dtype as long as it lives.
        let descr = unsafe { &*self.fields().descr };
        let long = size_of::<c_ulong>() as u8;
        let (kind, item_bytes) = match descr.number {
            0 => (Kind::Bool, 1),
            1 => (Kind::Int, 1),
            2 => (Kind::UInt, 1),
            3 => (Kind::Int, 2),
            4 => (Kind::UInt, 2),
            5 => (Kind::Int, 4),
            6 => (Kind::UInt, 4),
            7 => (Kind::Int, long),
            8 => (Kind::UInt, long),
            9 => (Kind::Int, 8),
            10 => (Kind::UInt, 8),
            11 => (Kind::Float, 4),
            12 => (Kind::Float, 8),
            13 => (Kind::Float, self.numpy.long_double_bytes),
            14 => (Kind::Complex, 8),
            15 => (Kind::Complex, 16),
            16 => (Kind::Complex, 2 * self.numpy.long_double_bytes),
            23 => (Kind::Float, 2),
            USER_DEFINED.. if self.is_bfloat()? => (Kind::BFloat, 2),
            _ => return Ok(None),
        };
        let native = DType::native(kind, item_bytes);
        Ok(Some(match descr.byte_order as u8 {
            b'>' => DType { is_big_endian: item_bytes > 1, ..native },
            b'<' => DType { is_big_endian: false, ..native },
            _ => native,
        }))
    }

    #[cold]
    fn is_bfloat(&self) -> PyResult<bool> {
        let py = self.object.py();
        let dtype = self.object.getattr(intern!(py, "dtype"))?;
        is_bfloat(&dtype)
    }

    /// Whether its items lie one after another, and if so, whether in the order of Fortran.
    pub(crate) fn fortran_order(&self) -> Option<bool> {
        let flags = self.fields().flags;
        match (flags & flags::C_CONTIGUOUS != 0, flags & flags::F_CONTIGUOUS != 0) {
            (true, _) => Some(false),
            (_, true) => Some(true),
            _ => None,
        }
    }

    /// The bytes of an array whose items lie one after another; of others nothing.
    pub(crate) fn bytes(&self, tensor: &Tensor) -> &'a [u8] {
        match (self.fortran_order(), tensor.bytes()) {
            (Some(_), Some(len @ 1..)) if tensor.shape == self.shape() => {
                // SAFETY: contiguous items are one piece of that length. No Python code runs while
                // it is borrowed that could write to it.
                unsafe { std::slice::from_raw_parts(self.fields().data.cast::<u8>(), len) }
            }
            _ => &[],
        }
    }

    /// The address of its first item.
    pub(crate) fn data(&self) -> *const u8 {
        self.fields().data.cast()
    }

    /// Whether no other code has a reference to it.
    pub(crate) fn is_unshared(&self) -> bool {
        has_one_reference(self.object) && !self.has_weak_references()
    }

    /// Whether there are weak references to it.
    pub(crate) fn has_weak_references(&self) -> bool {
        !self.fields().weak_references.is_null()
    }

    /// Whether its memory is its own.
    pub(crate) fn owns_memory(&self) -> bool {
        let fields = self.fields();
        fields.flags & flags::OWNS_DATA != 0 && fields.base.is_null()
    }

    /// The object that keeps its memory, if that is not its own.
    pub(crate) fn base(&self) -> Option<Borrowed<'a, 'py, PyAny>> {
        // SAFETY: an array holds a reference to its base as long as it lives.
        unsafe { Borrowed::from_ptr_or_opt(self.object.py(), self.fields().base) }
    }
}

/// Memory that is to be written, as memory that may not have been.
pub(crate) fn as_uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    let (start, len) = (bytes.as_mut_ptr().cast::<MaybeUninit<u8>>(), bytes.len());
    // SAFETY: it is the same memory, of which this is the only borrow. It goes to functions of this
    // crate that only write initialised bytes.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

/// Copies all bytes to memory of the same length. Returns whether it is.
pub(crate) fn copy_to(target: &mut [MaybeUninit<u8>], bytes: &[u8]) -> bool {
    if target.len() != bytes.len() {
        return false;
    }
    // SAFETY: both have this length, and a unique borrow does not overlap with another.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_mut_ptr().cast(), bytes.len()) };
    true
}

/// Whether a dtype is that of `ml_dtypes` for the upper half of a 32-bit float.
pub(crate) fn is_bfloat(dtype: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = dtype.py();
    let name: String = dtype.getattr(intern!(py, "name"))?.extract()?;
    let item_bytes: usize = dtype.getattr(intern!(py, "itemsize"))?.extract()?;
    Ok(name == "bfloat16" && item_bytes == 2)
}
