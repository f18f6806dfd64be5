//! Instances of classes that the program allows, and the state of exceptions.
//!
//! State is set only on objects that this pickle has just made and nothing else refers to; never on
//! a class, a function or a module. A class's own `__setstate__` and `__reduce__` run as they are.

use std::ptr;

use pyo3::exceptions::{PyAttributeError, PyBaseException, PyImportError, PyNameError};
use pyo3::ffi as raw;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyModule, PyString, PyTuple, PyType};
use ucall_pickle::{Accepts, Made, Product, Weight};

use super::error::{Refused, because};
use super::objects::Objects;

type Result<T> = std::result::Result<T, Refused>;

/// Calls an allowed class or function.
pub(super) fn call<'a, 'py>(
    callable: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> Result<Made<Objects<'a, 'py>>> {
    let mut made = instance(callable.call1(arguments)?);
    // A function of `ucall.queue.utils` for another library: no state is set on what it makes.
    if callable.hasattr(intern!(callable.py(), "__ucall_complete__"))? {
        made.accepts = Accepts::NOTHING;
    }
    Ok(made)
}

/// Calls the `__new__` of an allowed class.
pub(super) fn new<'a, 'py>(
    class: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> Result<Made<Objects<'a, 'py>>> {
    let py = class.py();
    let with_class = PyTuple::new(
        py,
        std::iter::once(class.clone()).chain(arguments.iter()).collect::<Vec<_>>(),
    )?;
    Ok(instance(class.getattr(intern!(py, "__new__"))?.call(with_class, keywords)?))
}

fn instance<'a, 'py>(object: Bound<'py, PyAny>) -> Made<Objects<'a, 'py>> {
    let weight = if is_hashed_by_address(&object) { Weight::Fixed(1) } else { Weight::Contents };
    let accepts = if is_new(&object) { Accepts::INSTANCE } else { Accepts::NOTHING };
    Made { product: Product::Object(object), accepts, weight }
}

/// Whether nothing else refers to the object.
fn is_new(object: &Bound<'_, PyAny>) -> bool {
    let is_code = object.is_instance_of::<PyType>()
        || object.is_instance_of::<PyModule>()
        || object.is_callable() && object.hasattr("__code__").unwrap_or(true);
    // SAFETY: the object is alive, and this thread is attached.
    !is_code && unsafe { raw::Py_REFCNT(object.as_ptr()) } == 1
}

fn is_hashed_by_address(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: both types are alive; the second one is static.
    unsafe {
        let hash = (*object.get_type_ptr()).tp_hash;
        let by_address = raw::PyBaseObject_Type.tp_hash;
        hash.map(|it| it as usize) == by_address.map(|it| it as usize)
    }
}

/// Appends to an object other than a list, as `pickle` does.
pub(super) fn append<'py>(
    to: &Bound<'py, PyAny>,
    items: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
) -> Result<()> {
    let py = to.py();
    if let Some(extend) = to.getattr_opt(intern!(py, "extend"))? {
        extend.call1((PyList::new(py, items)?,))?;
        return Ok(());
    }
    let append = to.getattr(intern!(py, "append"))?;
    for item in items {
        append.call1((item,))?;
    }
    Ok(())
}

/// Sets the state of an instance as `pickle` does: by `__setstate__`, or attribute by attribute.
pub(super) fn set_state(of: &Bound<'_, PyAny>, state: &Bound<'_, PyAny>) -> Result<()> {
    let py = of.py();
    let own = of.getattr_opt(intern!(py, "__setstate__"))?;
    if of.is_instance_of::<PyBaseException>() {
        let inherited = py.get_type::<PyBaseException>().getattr("__setstate__")?;
        let class_has = of.get_type().getattr("__setstate__")?;
        if class_has.is(&inherited) {
            return set_state_of_exception(of, state);
        }
    }
    if let Some(set_state) = own {
        set_state.call1((state,))?;
        return Ok(());
    }
    let (attributes, slots) = match state.cast_exact::<PyTuple>() {
        Ok(both) if both.len() == 2 => (both.get_item(0)?, Some(both.get_item(1)?)),
        _ => (state.clone(), None),
    };
    if !attributes.is_none() {
        let into = of.getattr(intern!(py, "__dict__"))?;
        let into = into.cast_exact::<PyDict>().map_err(|_| wrong())?;
        for (name, value) in named(&attributes)? {
            into.set_item(name, value)?;
        }
    }
    if let Some(slots) = slots.filter(|slots| !slots.is_none()) {
        for (name, value) in named(&slots)? {
            if is_special(&name)? {
                return Err(wrong());
            }
            set_attribute(of, &name, &value)?;
        }
    }
    Ok(())
}

/// Sets an attribute, without `setattr` where the class does not know the name: `setattr` interns
/// it, and CPython 3.12 never frees interned strings.
fn set_attribute(
    of: &Bound<'_, PyAny>,
    name: &Bound<'_, PyString>,
    value: &Bound<'_, PyAny>,
) -> Result<()> {
    let class = of.get_type();
    // SAFETY: the type is alive; the function is compared, not called.
    let is_generic = unsafe { (*class.as_type_ptr()).tp_setattro }
        .is_some_and(|it| ptr::fn_addr_eq(it, raw::PyObject_GenericSetAttr as raw::setattrofunc));
    if !is_generic || class.hasattr(name)? {
        return Ok(of.setattr(name, value)?);
    }
    let Some(attributes) = of.getattr_opt(intern!(of.py(), "__dict__"))? else {
        let class = class.name()?;
        let text = format!("'{class}' object has no attribute '{name}'");
        return Err(PyAttributeError::new_err(text).into());
    };
    Ok(attributes.cast::<PyDict>().map_err(|_| wrong())?.set_item(name, value)?)
}

#[cold]
fn wrong() -> Refused {
    because("the state of an object is invalid")
}

/// The names and values of a dict.
fn named<'py>(state: &Bound<'py, PyAny>) -> Result<Vec<(Bound<'py, PyString>, Bound<'py, PyAny>)>> {
    let state = state.cast_exact::<PyDict>().map_err(|_| wrong())?;
    let name_of = |name: Bound<'py, PyAny>| name.cast_into_exact::<PyString>().map_err(|_| wrong());
    state.iter().map(|(name, value)| Ok((name_of(name)?, value))).collect()
}

fn is_special(name: &Bound<'_, PyString>) -> Result<bool> {
    let name = name.to_cow()?;
    Ok(name.starts_with("__") && name.ends_with("__"))
}

/// Sets attributes of an exception, except those that its builtin base classes define: CPython
/// does not check the values of some of them.
fn set_state_of_exception(of: &Bound<'_, PyAny>, state: &Bound<'_, PyAny>) -> Result<()> {
    let built_in = built_in_classes(of)?;
    for (name, value) in named(state)? {
        let text = name.to_cow()?;
        let is_known = match text.as_ref() {
            "msg" => of.is_instance_of::<PyImportError>(),
            "name" | "name_from" | "path" => {
                of.is_instance_of::<PyImportError>()
                    || of.is_instance_of::<PyAttributeError>()
                    || of.is_instance_of::<PyNameError>()
            }
            // CPython 3.12 and newer write them in the state of an AttributeError.
            "args" => {
                of.is_instance_of::<PyAttributeError>() && value.is_exact_instance_of::<PyTuple>()
            }
            "__notes__" => value.is_exact_instance_of::<PyList>(),
            _ => !is_special(&name)? && !has_any(&built_in, &name)?,
        };
        if !is_known {
            return Err(because(format!("the attribute {name} of an exception may not be set")));
        }
        set_attribute(of, &name, &value)?;
    }
    Ok(())
}

/// The builtin classes among an exception's class and its bases.
fn built_in_classes<'py>(of: &Bound<'py, PyAny>) -> Result<Vec<Bound<'py, PyType>>> {
    let mut found = Vec::new();
    for class in of.get_type().mro() {
        let class = class.cast_into::<PyType>().map_err(PyErr::from)?;
        // SAFETY: the type is alive, and its flags are read under the interpreter lock.
        let is_made_at_run_time =
            unsafe { raw::PyType_HasFeature(class.as_type_ptr(), raw::Py_TPFLAGS_HEAPTYPE) != 0 };
        if !is_made_at_run_time {
            found.push(class);
        }
    }
    Ok(found)
}

fn has_any(classes: &[Bound<'_, PyType>], name: &Bound<'_, PyString>) -> Result<bool> {
    for class in classes {
        if class.hasattr(name)? {
            return Ok(true);
        }
    }
    Ok(false)
}
