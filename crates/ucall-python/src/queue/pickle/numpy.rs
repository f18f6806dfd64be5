//! NumPy arrays, scalars and dtypes, never of Python objects.

use std::sync::OnceLock;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyInt, PyMemoryView, PyString, PyTuple, PyType,
};
use ucall_pickle::{Accepts, Budget, Made, Product, Weight};

use super::error::{Refused, because};
use super::names::{Known, Placeholder};
use super::objects::{Built, Objects, Pending};
use super::values::made;
use crate::ffi::{self, Imported};
use crate::queue::incoming::Block;

type Result<T> = std::result::Result<T, Refused>;

/// Bytes of an array without its items.
const ARRAY: u64 = 256;
/// Temporary bytes that NumPy needs to copy an item, per value in its dtype.
const VALUE_OF_ARRAY: u64 = 16;
/// Bytes of a dtype per value in its state.
const VALUE_OF_DTYPE: u64 = 32;

/// Calls an entry of the table.
pub(super) fn call<'a, 'py>(
    objects: &mut Objects<'a, 'py>,
    known: Known,
    arguments: &Bound<'py, PyTuple>,
    values: u32,
    budget: &mut Budget,
) -> Result<Made<Objects<'a, 'py>>> {
    budget.allocate(ARRAY + VALUE_OF_ARRAY * u64::from(values))?;
    let product = match (known, arguments.as_slice()) {
        (Known::Array, [buffer, name, shape, order]) => {
            let dtype = dtype_of_name(text(name)?)?;
            Product::Object(over_buffer(buffer, &dtype, shape, order, budget)?)
        }
        (Known::WritableArray, [buffer, name, shape, order]) if is_memory(buffer) => {
            let dtype = dtype_of_name(text(name)?)?;
            let memory = objects.writable(buffer)?;
            Product::Object(over_buffer(&memory, &dtype, shape, order, budget)?)
        }
        (Known::NumpyFromBuffer, [buffer, dtype, shape, order]) => {
            Product::Object(from_buffer(buffer, dtype, shape, order, None, budget)?)
        }
        (Known::NumpyFromBuffer, [buffer, dtype, shape, order, axes]) => {
            Product::Object(from_buffer(buffer, dtype, shape, order, Some(axes), budget)?)
        }
        // NumPy writes byte order, unit and fields as the state.
        (Known::NumpyDtype, [name, _, _]) => Product::Pending(Pending::Dtype(text(name)?.clone())),
        (Known::NumpyDtype, [name]) => Product::Object(dtype_of_name(text(name)?)?),
        (Known::NumpyReconstruct, [class, shape, _]) => {
            let is_plain =
                class.cast::<Placeholder>().is_ok_and(|it| it.get().0 == Known::NumpyArrayClass);
            if !is_plain || !shape.cast_exact::<PyTuple>().is_ok_and(|it| it.len() == 1) {
                return Err(because("an array must be a plain ndarray"));
            }
            Product::Pending(Pending::Array)
        }
        (Known::NumpyScalar, [dtype, data]) => return scalar(dtype, data, budget),
        _ => return Err(because("the arguments of an array are not those that NumPy writes")),
    };
    Ok(Made { product, accepts: Accepts::NOTHING, weight: Weight::Contents })
}

fn text<'a, 'py>(object: &'a Bound<'py, PyAny>) -> Result<&'a Bound<'py, PyString>> {
    object.cast_exact::<PyString>().map_err(|_| because("a dtype has no name"))
}

fn array_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: Imported<PyType> = Imported::new("numpy", "ndarray");
    CLASS.get(py)
}

fn dtype_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: Imported<PyType> = Imported::new("numpy", "dtype");
    CLASS.get(py)
}

fn from_buffer_function(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static FUNCTION: Imported<PyAny> = Imported::new("numpy", "frombuffer");
    FUNCTION.get(py)
}

/// The dtype of a short name, such as `<f8`, `S5` or `M8[us]`, but never of objects.
fn dtype_of_name<'py>(name: &Bound<'py, PyString>) -> Built<'py> {
    let py = name.py();
    let known = known_dtypes(py)?;
    if let Some(dtype) = known.get_item(name)? {
        return Ok(dtype);
    }
    let short = name.to_cow()?;
    if !is_plain(&short) {
        return Err(because("a dtype must be of numbers, bytes, text or times"));
    }
    let dtype = dtype_class(py)?.call1((name,))?;
    // Do not cache dtypes of text and bytes: there is one per length.
    if !short.contains(['S', 'U', 'V', 'M', 'm']) {
        known.set_item(name, &dtype)?;
    }
    Ok(dtype)
}

fn known_dtypes(py: Python<'_>) -> PyResult<&Bound<'_, PyDict>> {
    // Made before the lock is taken: see `Imported`.
    static KNOWN: OnceLock<Py<PyDict>> = OnceLock::new();
    let Some(known) = KNOWN.get() else {
        let made = PyDict::new(py).unbind();
        return Ok(KNOWN.get_or_init(|| made).bind(py));
    };
    Ok(known.bind(py))
}

/// Parses an optional byte order, a kind, and the bytes or characters of one item.
fn is_plain(name: &str) -> bool {
    let name = name.strip_prefix(['<', '>', '=', '|']).unwrap_or(name);
    let mut characters = name.chars();
    let kind = characters.next();
    let rest = characters.as_str();
    match kind {
        Some('?') => rest.is_empty(),
        Some('M' | 'm') => matches!(rest, "" | "8"),
        Some('b' | 'i' | 'u' | 'f' | 'c') => matches!(rest, "1" | "2" | "4" | "8" | "16" | "32"),
        Some('S' | 'U' | 'V') => rest.len() <= 10 && rest.bytes().all(|it| it.is_ascii_digit()),
        _ => false,
    }
}

/// The dtype of a short name and the state that NumPy writes after it.
pub(super) fn dtype_of_state<'a, 'py>(
    objects: &Objects<'a, 'py>,
    name: &Bound<'py, PyString>,
    state: &Bound<'py, PyAny>,
    values: u32,
    budget: &mut Budget,
) -> Result<Made<Objects<'a, 'py>>> {
    let py = objects.py;
    budget.allocate(VALUE_OF_DTYPE * u64::from(values))?;
    let state =
        state.cast_exact::<PyTuple>().map_err(|_| because("the state of a dtype is invalid"))?;
    if let Some(order) = order_alone(state) {
        let whole = PyString::new(py, &format!("{}{}", order.to_cow()?, name.to_cow()?));
        return Ok(made(Product::Object(dtype_of_name(&whole)?)));
    }
    if !is_plain(&name.to_cow()?) {
        return Err(because("a dtype must be of numbers, bytes, text or times"));
    }
    let module = py.import("ucall.queue.utils.arrays")?;
    let dtype = module.getattr("dtype_of_state")?.call1((name, state))?;
    Ok(made(Product::Object(dtype)))
}

/// The byte order of a number's state, if the state has nothing else.
fn order_alone<'py>(state: &Bound<'py, PyTuple>) -> Option<Bound<'py, PyString>> {
    let [_, order, subarray, names, fields, size, alignment, _] = state.as_slice() else {
        return None;
    };
    let is_default = |it: &Bound<'py, PyAny>| {
        it.cast_exact::<PyInt>().ok().and_then(ffi::small_integer) == Some(-1)
    };
    let is_number = subarray.is_none() && names.is_none() && fields.is_none();
    let order = order.cast_exact::<PyString>().ok()?;
    let is_order = matches!(order.to_str(), Ok("<" | ">" | "|" | "="));
    (is_number && is_order && is_default(size) && is_default(alignment)).then(|| order.clone())
}

/// `numpy._core.numeric._frombuffer`.
fn from_buffer<'py>(
    buffer: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyAny>,
    shape: &Bound<'py, PyAny>,
    order: &Bound<'py, PyAny>,
    axes: Option<&Bound<'py, PyAny>>,
    budget: &mut Budget,
) -> Built<'py> {
    let py = buffer.py();
    check_dtype(dtype)?;
    let Some(axes) = axes.filter(|axes| !axes.is_none()) else {
        return over_buffer(buffer, dtype, shape, order, budget);
    };
    let is_axes = axes
        .cast_exact::<PyTuple>()
        .is_ok_and(|axes| axes.iter().all(|axis| axis.is_exact_instance_of::<PyInt>()));
    if !is_axes {
        return Err(because("the shape of an array is not a tuple of integers"));
    }
    let array = over_buffer(buffer, dtype, shape, intern!(py, "C").as_any(), budget)?;
    Ok(array.call_method1(intern!(py, "transpose"), (axes,))?)
}

/// Refuses a dtype with objects, which a class that the program allows may make.
fn check_dtype(dtype: &Bound<'_, PyAny>) -> Result<()> {
    let py = dtype.py();
    if !dtype.is_instance(dtype_class(py)?)? {
        return Err(because("a dtype is expected"));
    }
    let kind = dtype.getattr(intern!(py, "kind"))?;
    let is_plain = "?bBiufcSUVmM".contains(kind.cast::<PyString>().map_err(PyErr::from)?.to_str()?);
    if !is_plain || dtype.getattr(intern!(py, "hasobject"))?.is_truthy()? {
        return Err(because("an array of objects is refused"));
    }
    Ok(())
}

/// An array that is a view of a buffer of exactly its size.
fn over_buffer<'py>(
    buffer: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyAny>,
    shape: &Bound<'py, PyAny>,
    order: &Bound<'py, PyAny>,
    budget: &mut Budget,
) -> Built<'py> {
    let py = buffer.py();
    let order = match order.cast_exact::<PyString>().map(|it| it.to_str()) {
        Ok(Ok("F")) => intern!(py, "F"),
        Ok(Ok("C" | "A" | "K")) => intern!(py, "C"),
        _ => return Err(because("the order of an array must be 'C' or 'F'")),
    };
    if !is_memory(buffer) {
        return Err(because("an array needs a buffer, but the object has no buffer"));
    }
    let bytes = ffi::with_buffer(buffer, <[u8]>::len)?;
    check_size(dtype, shape, bytes, budget)?;
    let may_move = buffer.is_exact_instance_of::<PyByteArray>()
        || buffer.is_exact_instance_of::<PyMemoryView>();
    if may_move && bytes > 0 {
        // `frombuffer` exports the buffer, so that it cannot be resized; `ndarray` does not.
        let flat = from_buffer_function(py)?.call1((buffer, dtype))?;
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "order"), order)?;
        return Ok(flat.call_method(intern!(py, "reshape"), (shape,), Some(&keywords))?);
    }
    let (zero, none) = (ffi::integer(py, 0)?, py.None().into_bound(py));
    let arguments = [shape, dtype, buffer, &zero, &none, order.as_any()];
    Ok(ffi::call(array_class(py)?, arguments)?)
}

/// Refuses a shape that does not fit the bytes. Charges empty dimensions, which iteration visits,
/// and one item, which NumPy allocates for an empty array.
fn check_size(
    dtype: &Bound<'_, PyAny>,
    shape: &Bound<'_, PyAny>,
    bytes: usize,
    budget: &mut Budget,
) -> Result<()> {
    let wrong = || because("the shape of an array does not fit its bytes");
    let shape = shape.cast_exact::<PyTuple>().map_err(|_| wrong())?;
    let item: u64 = dtype.getattr(intern!(dtype.py(), "itemsize"))?.extract()?;
    let (mut whole, mut dimensions) = (item, 1_u64);
    for dimension in shape.iter() {
        let count = dimension.cast_exact::<PyInt>().ok().and_then(ffi::small_integer);
        let count = count.and_then(|count| u64::try_from(count).ok()).ok_or_else(wrong)?;
        // A zero may come before or after the factors that overflow; both are refused.
        whole = whole.saturating_mul(count);
        dimensions = dimensions.saturating_mul(count.max(1));
    }
    if whole == 0 {
        budget.allocate(dimensions.saturating_add(item))?;
    }
    if whole == bytes as u64 && item > 0 { Ok(()) } else { Err(wrong()) }
}

/// The array of `_reconstruct` and its state, which has the array's bytes.
pub(super) fn array_of_state<'a, 'py>(
    objects: &Objects<'a, 'py>,
    state: &Bound<'py, PyAny>,
    values: u32,
    budget: &mut Budget,
) -> Result<Made<Objects<'a, 'py>>> {
    let py = objects.py;
    budget.allocate(VALUE_OF_ARRAY * u64::from(values))?;
    let wrong = || because("the state of an array is invalid");
    let state = state.cast_exact::<PyTuple>().map_err(|_| wrong())?;
    let [_, shape, dtype, is_fortran, data] = state.as_slice() else { return Err(wrong()) };
    check_dtype(dtype)?;
    let data = data.cast_exact::<PyBytes>().map_err(|_| wrong())?;
    let is_fortran = is_fortran.cast_exact::<PyBool>().map_err(|_| wrong())?.is_true();
    let order = if is_fortran { intern!(py, "F") } else { intern!(py, "C") };
    budget.allocate(data.as_bytes().len() as u64)?;
    let view = over_buffer(data.as_any(), dtype, shape, order.as_any(), budget)?;
    let array = view.call_method1(intern!(py, "copy"), (order,))?;
    Ok(made(Product::Object(array)))
}

/// `numpy._core.multiarray.scalar`.
fn scalar<'a, 'py>(
    dtype: &Bound<'py, PyAny>,
    data: &Bound<'py, PyAny>,
    budget: &mut Budget,
) -> Result<Made<Objects<'a, 'py>>> {
    let py = dtype.py();
    check_dtype(dtype)?;
    let data = data.cast_exact::<PyBytes>().map_err(|_| because("a scalar has no bytes"))?;
    let bytes = data.as_bytes().len();
    budget.allocate(bytes as u64)?;
    let item: usize = dtype.getattr(intern!(py, "itemsize"))?.extract()?;
    if item != bytes {
        return Err(because("the bytes of a scalar do not match its dtype"));
    }
    let shape = PyTuple::empty(py);
    let array = match item {
        // Empty text has no buffer.
        0 => array_class(py)?.call1((&shape, dtype))?,
        _ => array_class(py)?.call1((&shape, dtype, data))?,
    };
    let object = array.get_item(shape)?;
    Ok(made(Product::Object(object)))
}

/// Whether the object's memory stays in place while a view of it exists.
pub(super) fn is_memory(object: &Bound<'_, PyAny>) -> bool {
    object.is_exact_instance_of::<Block>()
        || object.is_exact_instance_of::<PyBytes>()
        || object.is_exact_instance_of::<PyByteArray>()
        || object.is_exact_instance_of::<PyMemoryView>()
}
