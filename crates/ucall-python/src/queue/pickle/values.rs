//! Values of the standard library, from the arguments that CPython pickles for them.

use pyo3::exceptions::{PyUnicodeDecodeError, PyUnicodeEncodeError, PyUnicodeTranslateError};
use pyo3::ffi as raw;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyDelta, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType, PyTzInfo,
};
use ucall_pickle::{Accepts, Budget, Made, Product, Weight};

use super::error::{Refused, because};
use super::names::{Global, Known, Placeholder};
use super::objects::Objects;
use crate::ffi;

type Result<T> = std::result::Result<T, Refused>;

/// Bits of the parts of a fraction or a range, which CPython divides in quadratic time.
const DIVIDED_BITS_MAX: usize = 16 * 1024;
/// Characters of an IP address, network or zone key.
const SHORT_TEXT_MAX: usize = 255;
/// Bytes of these objects without their arguments.
const SMALL_OBJECT: u64 = 256;
const DEQUE: u64 = 768;
const ZONE: u64 = 16 * 1024;
const KEY: u64 = 112;
/// Bytes per character of a path, each of which may be a part of its own.
const PATH_CHARACTER: u64 = 16;

/// A complete value that is hashed by its contents.
pub(super) fn made<'a, 'py>(product: Product<Objects<'a, 'py>>) -> Made<Objects<'a, 'py>> {
    Made { product, accepts: Accepts::NOTHING, weight: Weight::Contents }
}

/// The cost of a hash that is computed in Python.
const HASHED_IN_PYTHON: Weight = Weight::Fixed(64);

/// Calls an entry of the table.
pub(super) fn call<'a, 'py>(
    objects: &Objects<'a, 'py>,
    known: Known,
    arguments: &Bound<'py, PyTuple>,
    budget: &mut Budget,
) -> Result<Made<Objects<'a, 'py>>> {
    let checked = Arguments { known, items: arguments };
    let make = |module: &str, name: &str| class(objects.py, module, name)?.call1(arguments);
    budget.allocate(SMALL_OBJECT)?;
    let mut accepts = Accepts::NOTHING;
    let mut weight = Weight::Contents;
    let object: Bound<'py, PyAny> = match known {
        Known::ByteArray => {
            budget.allocate(checked.only::<PyBytes>()?.len()? as u64)?;
            make("builtins", "bytearray")?
        }
        Known::Complex => {
            checked.all::<PyFloat>(2..=2)?;
            make("builtins", "complex")?
        }
        Known::FrozenSet | Known::Set => {
            checked.count(0..=0)?;
            let is_set = known == Known::Set;
            accepts = if is_set { Accepts::MEMBERS } else { accepts };
            make("builtins", if is_set { "set" } else { "frozenset" })?
        }
        Known::Range => {
            checked.divided(3, budget)?;
            make("builtins", "range")?
        }
        Known::Slice => {
            checked.slice()?;
            make("builtins", "slice")?
        }
        Known::Counter => {
            budget.allocate(KEY * checked.only::<PyDict>()?.len()? as u64)?;
            make("collections", "Counter")?
        }
        Known::Deque => {
            checked.deque()?;
            budget.allocate(DEQUE)?;
            accepts = Accepts::ITEMS;
            make("collections", "deque")?
        }
        Known::OrderedDict => {
            checked.count(0..=0)?;
            accepts = Accepts::KEYS;
            make("collections", "OrderedDict")?
        }
        Known::Date | Known::DateTime | Known::Time | Known::TimeDelta | Known::TimeZone => {
            weight = HASHED_IN_PYTHON;
            make("datetime", checked.of_datetime()?)?
        }
        Known::Decimal => {
            budget.allocate(checked.only::<PyString>()?.len()? as u64)?;
            make("decimal", "Decimal")?
        }
        Known::Fraction => {
            checked.divided(2, budget)?;
            weight = Weight::Fixed(64 + DIVIDED_BITS_MAX as u32 / 64);
            make("fractions", "Fraction")?
        }
        Known::IpAddress(name) => {
            checked.ip_address()?;
            weight = HASHED_IN_PYTHON;
            make("ipaddress", name)?
        }
        Known::Path(name) => {
            checked.all::<PyString>(0..=usize::MAX)?;
            for part in arguments.iter() {
                budget.allocate(PATH_CHARACTER * (part.len()? as u64 + 1))?;
            }
            make("pathlib", name)?
        }
        Known::GetAttr => return attribute(arguments),
        _ => return Err(ucall_pickle::Error::NotCallable.into()),
    };
    Ok(Made { product: Product::Object(object), accepts, weight })
}

/// The arguments of one call, and the entry that is called.
struct Arguments<'a, 'py> {
    known: Known,
    items: &'a Bound<'py, PyTuple>,
}

impl<'py> Arguments<'_, 'py> {
    #[cold]
    fn wrong(&self) -> Refused {
        because(format!("the arguments of {:?} are not those that CPython writes", self.known))
    }

    fn check(&self, is_right: bool) -> Result<()> {
        if is_right { Ok(()) } else { Err(self.wrong()) }
    }

    fn count(&self, allowed: std::ops::RangeInclusive<usize>) -> Result<()> {
        self.check(allowed.contains(&self.items.len()))
    }

    fn item(&self, index: usize) -> Result<Bound<'py, PyAny>> {
        self.items.get_item(index).map_err(|_| self.wrong())
    }

    /// All arguments, which must be `N` of exactly this type.
    fn all<T: pyo3::PyTypeInfo>(&self, count: std::ops::RangeInclusive<usize>) -> Result<()> {
        self.count(count)?;
        self.check(self.items.iter().all(|item| item.is_exact_instance_of::<T>()))
    }

    /// The only argument, which must be of exactly this type.
    fn only<T: pyo3::PyTypeInfo>(&self) -> Result<Bound<'py, PyAny>> {
        self.all::<T>(1..=1)?;
        self.item(0)
    }

    fn deque(&self) -> Result<()> {
        if self.items.is_empty() {
            return Ok(());
        }
        self.count(2..=2)?;
        let (items, maxlen) = (self.item(0)?, self.item(1)?);
        self.check(items.cast_exact::<PyTuple>().is_ok_and(|items| items.is_empty()))?;
        self.check(maxlen.is_none() || maxlen.is_exact_instance_of::<PyInt>())
    }

    /// `N` integers that CPython divides by each other; charges the division.
    fn divided(&self, count: usize, budget: &mut Budget) -> Result<()> {
        self.all::<PyInt>(count..=count)?;
        let mut digits = 0;
        for part in self.items.iter() {
            let bits: usize = part.call_method0("bit_length")?.extract()?;
            self.check(bits <= DIVIDED_BITS_MAX)?;
            digits += bits as u64 / 30;
        }
        Ok(budget.hash(digits * digits / 64)?)
    }

    /// Refuses values that could contain a slice: CPython frees nested slices recursively.
    fn slice(&self) -> Result<()> {
        self.count(3..=3)?;
        self.check(self.items.iter().all(|item| !may_hold_others(&item)))
    }

    fn ip_address(&self) -> Result<()> {
        self.count(1..=1)?;
        let address = self.item(0)?;
        let is_short = is_short_text(&address)?;
        self.check(is_short || address.is_exact_instance_of::<PyInt>())?;
        // `ipaddress` caches every spelling of a prefix for ever.
        let text = if is_short { address.extract::<String>()? } else { String::new() };
        let prefix = text.split_once('/').map_or("0", |(_, prefix)| prefix);
        let is_digits = prefix.len() <= 3 && prefix.bytes().all(|it| it.is_ascii_digit());
        self.check(is_digits && (prefix == "0" || !prefix.starts_with('0')))
    }

    /// A class of `datetime`, called with these arguments.
    fn of_datetime(&self) -> Result<&'static str> {
        Ok(match self.known {
            Known::TimeDelta => {
                self.all::<PyInt>(3..=3)?;
                "timedelta"
            }
            Known::TimeZone => {
                self.count(1..=2)?;
                self.check(self.item(0)?.is_exact_instance_of::<PyDelta>())?;
                let has_name = self.items.len() == 2;
                self.check(!has_name || is_short_text(&self.item(1)?)?)?;
                "timezone"
            }
            Known::Date => {
                let bytes = self.only::<PyBytes>()?;
                self.check(bytes.cast::<PyBytes>().is_ok_and(|it| is_date(it.as_bytes())))?;
                "date"
            }
            known => {
                self.count(1..=2)?;
                let bytes = self.item(0)?;
                let bytes = bytes.cast_exact::<PyBytes>().map_err(|_| self.wrong())?.as_bytes();
                let has_zone = self.items.len() == 2;
                self.check(!has_zone || self.item(1)?.is_instance_of::<PyTzInfo>())?;
                let is_time = known == Known::Time;
                self.check(if is_time { is_time_of_day(bytes) } else { is_date_and_time(bytes) })?;
                if is_time { "time" } else { "datetime" }
            }
        })
    }
}

/// Whether the garbage collector tracks its type.
fn may_hold_others(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive, and its type's flags are read under the interpreter lock.
    unsafe { raw::PyType_HasFeature(object.get_type_ptr(), raw::Py_TPFLAGS_HAVE_GC) != 0 }
}

fn is_short_text(object: &Bound<'_, PyAny>) -> Result<bool> {
    let Ok(text) = object.cast_exact::<PyString>() else { return Ok(false) };
    Ok(text.len()? <= SHORT_TEXT_MAX)
}

/// `datetime.date.__reduce__`: the year in two bytes, month and day.
fn is_date(bytes: &[u8]) -> bool {
    let &[high, low, month, day] = bytes else { return false };
    let year = u16::from_be_bytes([high, low]);
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=9999).contains(&year) && (1..=days).contains(&day)
}

/// `datetime.time.__reduce_ex__`: hours, with the fold in the highest bit, minutes, seconds, and
/// microseconds in three bytes.
fn is_time_of_day(bytes: &[u8]) -> bool {
    let &[hour, minute, second, high, middle, low] = bytes else { return false };
    hour & 0x7f < 24 && is_within_hour(minute, second, [0, high, middle, low])
}

/// `datetime.datetime.__reduce_ex__`: a date, with the fold in the month's highest bit, and a time.
fn is_date_and_time(bytes: &[u8]) -> bool {
    let &[year_high, year_low, month, day, hour, minute, second, high, middle, low] = bytes else {
        return false;
    };
    is_date(&[year_high, year_low, month & 0x7f, day])
        && hour < 24
        && is_within_hour(minute, second, [0, high, middle, low])
}

fn is_within_hour(minute: u8, second: u8, microseconds: [u8; 4]) -> bool {
    minute < 60 && second < 60 && u32::from_be_bytes(microseconds) < 1_000_000
}

fn class<'py>(py: Python<'py>, module: &str, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import(module)?.getattr(name)
}

/// The UUID of a state: an integer, and optionally `is_safe`.
pub(super) fn uuid<'a, 'py>(
    objects: &Objects<'a, 'py>,
    state: &Bound<'py, PyAny>,
) -> Result<Made<Objects<'a, 'py>>> {
    let wrong = || because("the state of a UUID is invalid");
    let state = state.cast_exact::<PyDict>().map_err(|_| wrong())?;
    let number = state.get_item("int")?.ok_or_else(wrong)?;
    let is_safe = state.get_item("is_safe")?;
    let members = 1 + usize::from(is_safe.is_some());
    if !number.is_exact_instance_of::<PyInt>() || state.len() != members {
        return Err(wrong());
    }
    let keywords = PyDict::new(objects.py);
    keywords.set_item("int", number)?;
    if let Some(is_safe) = is_safe.filter(|is_safe| !is_safe.is_none()) {
        let value = class(objects.py, "uuid", "SafeUUID")?.call1((is_safe,))?;
        keywords.set_item("is_safe", value)?;
    }
    let object = class(objects.py, "uuid", "UUID")?.call((), Some(&keywords))?;
    Ok(Made { weight: HASHED_IN_PYTHON, ..made(Product::Object(object)) })
}

/// `getattr(ZoneInfo, "_unpickle")`, which CPython pickles for zones, or `getattr(enum, "MEMBER")`,
/// which CPython 3.11 pickles for enums.
fn attribute<'a, 'py>(arguments: &Bound<'py, PyTuple>) -> Result<Made<Objects<'a, 'py>>> {
    let wrong = || because("getattr is refused");
    let (owner, name) = match arguments.as_slice() {
        [owner, name] => (owner, name.cast_exact::<PyString>().map_err(|_| wrong())?),
        _ => return Err(wrong()),
    };
    if owner.cast::<Placeholder>().is_ok_and(|it| it.get().0 == Known::ZoneInfo) {
        return match name.to_str() {
            Ok("_unpickle") => Ok(made(Product::Global(Global::ZoneInfoByKey))),
            _ => Err(wrong()),
        };
    }
    let enum_class = class(owner.py(), "enum", "Enum")?;
    let owner_class = owner.cast::<PyType>().map_err(|_| wrong())?;
    if !owner_class.is_subclass(&enum_class)? {
        return Err(wrong());
    }
    let member = owner.getattr("__members__")?.get_item(name).map_err(|_| wrong())?;
    Ok(Made { weight: HASHED_IN_PYTHON, ..made(Product::Object(member)) })
}

/// `ZoneInfo._unpickle(key, from_cache)`.
pub(super) fn zone_info<'a, 'py>(
    objects: &Objects<'a, 'py>,
    arguments: &Bound<'py, PyTuple>,
    budget: &mut Budget,
) -> Result<Made<Objects<'a, 'py>>> {
    let wrong = || because("the key of a time zone is not a plain name");
    let [key, from_cache] = arguments.as_slice() else { return Err(wrong()) };
    let is_flag = from_cache.is_exact_instance_of::<PyBool>()
        || from_cache.cast_exact::<PyInt>().is_ok_and(|it| ffi::small_integer(it).is_some());
    let name = key.cast_exact::<PyString>().map_err(|_| wrong())?;
    if !is_flag || !is_zone_key(&name.to_cow().map_err(|_| wrong())?) {
        return Err(wrong());
    }
    budget.allocate(ZONE)?;
    let zone = class(objects.py, "zoneinfo", "ZoneInfo")?;
    let object = match from_cache.is_truthy()? {
        true => zone.call1((key,))?,
        false => zone.call_method1("no_cache", (key,))?,
    };
    Ok(Made { weight: Weight::Fixed(1), ..made(Product::Object(object)) })
}

/// Whether a key is one like `America/Argentina/Buenos_Aires`, not a path out of the database.
fn is_zone_key(key: &str) -> bool {
    let is_part = |part: &str| {
        let mut characters = part.bytes();
        !part.is_empty()
            && characters.all(|byte| byte.is_ascii_alphanumeric() || b"_+-".contains(&byte))
    };
    key.len() <= SHORT_TEXT_MAX && key.split('/').all(is_part)
}

/// An exception of a builtin class.
pub(super) fn exception<'a, 'py>(
    class: &Bound<'py, PyType>,
    arguments: &Bound<'py, PyTuple>,
    budget: &mut Budget,
) -> Result<Made<Objects<'a, 'py>>> {
    budget.allocate(2 * SMALL_OBJECT)?;
    for argument in arguments.iter() {
        // Some classes keep a copy of their arguments.
        if let Ok(list) = argument.cast::<PyList>() {
            budget.allocate(8 * list.len() as u64)?;
        }
    }
    if !has_positions_within(class, arguments)? {
        return Err(because("the positions of a Unicode error are outside of its text"));
    }
    let object = class.call1(arguments)?;
    let product = Product::Object(object);
    Ok(Made { product, accepts: Accepts::STATE, weight: Weight::Fixed(1) })
}

/// Checks the positions of a Unicode error: some versions of CPython do not check them when they
/// format it.
fn has_positions_within(class: &Bound<'_, PyType>, arguments: &Bound<'_, PyTuple>) -> Result<bool> {
    let py = class.py();
    let is_decode = class.is_subclass(&py.get_type::<PyUnicodeDecodeError>())?;
    let is_translate = class.is_subclass(&py.get_type::<PyUnicodeTranslateError>())?;
    if !is_decode && !is_translate && !class.is_subclass(&py.get_type::<PyUnicodeEncodeError>())? {
        return Ok(true);
    }
    let skipped = usize::from(!is_translate);
    let Some([object, start, end, _]) = arguments.as_slice().get(skipped..) else {
        return Ok(false);
    };
    let length = match (object.cast_exact::<PyBytes>(), object.cast_exact::<PyString>()) {
        (Ok(bytes), _) if is_decode => bytes.as_bytes().len(),
        (_, Ok(text)) if !is_decode => text.len()?,
        _ => return Ok(false),
    };
    let position = |it: &Bound<'_, PyAny>| {
        it.cast_exact::<PyInt>().ok().and_then(ffi::small_integer).map(usize::try_from)
    };
    let (Some(Ok(start)), Some(Ok(end))) = (position(start), position(end)) else {
        return Ok(false);
    };
    Ok(start <= end && end <= length && (start < length || length == 0))
}
