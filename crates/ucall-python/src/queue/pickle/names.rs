//! The names that a pickle may use.
//!
//! A name resolves to an entry of this table or to an object that the program allows, and to
//! nothing else. Each entry is a constructor that accepts exactly the arguments that CPython or
//! NumPy pickles for the type.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use super::error::{Refused, because};
use super::objects::Objects;

/// The object that a name resolves to.
#[derive(Clone)]
pub(super) enum Global<'py> {
    Known(Known, Name<'py>),
    /// A class of `builtins` derived from `Exception`.
    Exception(Bound<'py, PyType>, Name<'py>),
    /// `ZoneInfo._unpickle`.
    ZoneInfoByKey,
    /// A class that the program allows.
    Class(Bound<'py, PyAny>),
    /// Another callable that the program allows.
    Function(Bound<'py, PyAny>),
    /// A value that the program allows.
    Value(Bound<'py, PyAny>),
}

/// A module, and a name in it.
pub(super) type Name<'py> = (Bound<'py, PyString>, Bound<'py, PyString>);

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    ByteArray,
    Complex,
    FrozenSet,
    /// `getattr`, for `ZoneInfo._unpickle` and members of allowed enums.
    GetAttr,
    Range,
    Set,
    Slice,
    Counter,
    Deque,
    OrderedDict,
    Date,
    DateTime,
    Time,
    TimeDelta,
    TimeZone,
    Decimal,
    Fraction,
    IpAddress(&'static str),
    Path(&'static str),
    Uuid,
    ZoneInfo,
    NumpyArrayClass,
    NumpyDtype,
    NumpyFromBuffer,
    NumpyReconstruct,
    NumpyScalar,
    /// `ucall.queue.utils.arrays.array(buffer, dtype, shape, order)`.
    Array,
    /// `ucall.queue.utils.arrays.writable`, with the same arguments.
    WritableArray,
}

impl Known {
    pub(super) fn is_of_numpy(self) -> bool {
        matches!(
            self,
            Self::NumpyArrayClass
                | Self::NumpyDtype
                | Self::NumpyFromBuffer
                | Self::NumpyReconstruct
                | Self::NumpyScalar
                | Self::Array
                | Self::WritableArray
        )
    }

    /// Looks up a name.
    fn of(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            ("ucall.queue.utils.arrays", "array") => Self::Array,
            ("ucall.queue.utils.arrays", "writable") => Self::WritableArray,
            ("numpy._core.numeric" | "numpy.core.numeric", "_frombuffer") => Self::NumpyFromBuffer,
            ("numpy", "dtype") => Self::NumpyDtype,
            ("numpy", "ndarray") => Self::NumpyArrayClass,
            ("numpy._core.multiarray" | "numpy.core.multiarray", "_reconstruct") => {
                Self::NumpyReconstruct
            }
            ("numpy._core.multiarray" | "numpy.core.multiarray", "scalar") => Self::NumpyScalar,
            ("builtins", "bytearray") => Self::ByteArray,
            ("builtins", "complex") => Self::Complex,
            ("builtins", "frozenset") => Self::FrozenSet,
            ("builtins", "getattr") => Self::GetAttr,
            ("builtins", "range") => Self::Range,
            ("builtins", "set") => Self::Set,
            ("builtins", "slice") => Self::Slice,
            ("collections", "Counter") => Self::Counter,
            ("collections", "deque") => Self::Deque,
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("datetime", "date") => Self::Date,
            ("datetime", "datetime") => Self::DateTime,
            ("datetime", "time") => Self::Time,
            ("datetime", "timedelta") => Self::TimeDelta,
            ("datetime", "timezone") => Self::TimeZone,
            ("decimal", "Decimal") => Self::Decimal,
            ("fractions", "Fraction") => Self::Fraction,
            ("ipaddress", name) => Self::IpAddress(listed(&IP_ADDRESSES, name)?),
            // CPython 3.13 has the classes in `pathlib._local`.
            ("pathlib" | "pathlib._local", name) => Self::Path(listed(&PATHS, name)?),
            ("uuid", "UUID") => Self::Uuid,
            ("zoneinfo", "ZoneInfo") => Self::ZoneInfo,
            _ => return None,
        })
    }
}

const IP_ADDRESSES: [&str; 6] =
    ["IPv4Address", "IPv4Interface", "IPv4Network", "IPv6Address", "IPv6Interface", "IPv6Network"];
const PATHS: [&str; 4] = ["PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"];

fn listed(names: &[&'static str], name: &str) -> Option<&'static str> {
    names.iter().copied().find(|&listed| listed == name)
}

/// A stand-in among the arguments of a call for a name that is not a value.
#[pyclass(frozen, module = "ucall._core")]
pub(super) struct Placeholder(pub(super) Known);

/// Resolves a name.
pub(super) fn resolve<'py>(
    objects: &Objects<'_, 'py>,
    module: &Bound<'py, PyString>,
    name: &Bound<'py, PyString>,
) -> Result<Global<'py>, Refused> {
    let not_text = |_| because("a module or name is not valid text");
    let both = || (module.clone(), name.clone());
    let (module, name) = (module.to_str().map_err(not_text)?, name.to_str().map_err(not_text)?);
    if let Some(known) = Known::of(module, name) {
        return Ok(Global::Known(known, both()));
    }
    if let Some(class) = exception(objects.py, module, name)? {
        return Ok(Global::Exception(class, both()));
    }
    let found = objects.find(module, name)?;
    Ok(match found.is_instance_of::<PyType>() {
        true => Global::Class(found),
        false if found.is_callable() => Global::Function(found),
        false => Global::Value(found),
    })
}

/// Whether the loader accepts a name without the program's permission.
pub(in crate::queue) fn is_default(py: Python<'_>, module: &str, name: &str) -> PyResult<bool> {
    Ok(Known::of(module, name).is_some() || exception(py, module, name)?.is_some())
}

/// A class of `builtins` that is derived from `Exception`.
fn exception<'py>(
    py: Python<'py>,
    module: &str,
    name: &str,
) -> PyResult<Option<Bound<'py, PyType>>> {
    if module != "builtins" {
        return Ok(None);
    }
    let Some(found) = py.import("builtins")?.getattr_opt(name)? else { return Ok(None) };
    let Ok(class) = found.cast_into::<PyType>() else { return Ok(None) };
    let is_exception = class.is_subclass_of::<pyo3::exceptions::PyException>()?;
    Ok(is_exception.then_some(class))
}
