//! The options of a communicator, by their Python names.

use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ucall_queue::{Acknowledge, FullPolicy, Identity, Options};

/// Reads the options in `given`.
pub(super) fn options(given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let mut options = Options::default();
    for (name, value) in given {
        let name = name.extract::<String>()?;
        match name.as_str() {
            "queue_size" => options.queue_bytes_max = count(&name, &value)?,
            "message_size" => options.message_bytes_max = count(&name, &value)?,
            "transport_size" => options.window_bytes = count(&name, &value)?,
            "trusted" => options.trusts_peers = value.extract()?,
            "full" => options.full = full(&value)?,
            "ack" => options.acknowledge = acknowledge(&value)?,
            "keepalive_s" => options.keepalive = time(&name, &value)?,
            "expire_s" => options.expire = time(&name, &value)?,
            "handshake_s" => options.handshake = time(&name, &value)?,
            "handshakes" => options.handshakes_max = count(&name, &value)?,
            "reconnect" => {
                let (first, most) = value.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
                options.reconnect = (time(&name, &first)?, time(&name, &most)?);
            }
            _ => return Err(PyTypeError::new_err(format!("no option is named {name}"))),
        }
    }
    Ok(options)
}

fn full(value: &Bound<'_, PyAny>) -> PyResult<FullPolicy> {
    match value.extract::<String>()?.as_str() {
        "error" => Ok(FullPolicy::Error),
        "block" => Ok(FullPolicy::Block),
        "drop_oldest" => Ok(FullPolicy::DropOldest),
        "drop_newest" => Ok(FullPolicy::DropNewest),
        _ => Err(PyValueError::new_err(
            "full: expected 'error', 'block', 'drop_oldest' or 'drop_newest'",
        )),
    }
}

fn acknowledge(value: &Bound<'_, PyAny>) -> PyResult<Acknowledge> {
    match value.extract::<String>()?.as_str() {
        "received" => Ok(Acknowledge::Received),
        "taken" => Ok(Acknowledge::Taken),
        "explicit" => Ok(Acknowledge::Explicit),
        _ => Err(PyValueError::new_err("ack: expected 'received', 'taken' or 'explicit'")),
    }
}

fn count(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    match value.extract::<usize>() {
        Ok(count) if count > 0 && count < 1 << 48 => Ok(count),
        _ => Err(PyValueError::new_err(format!("{name}: expected a whole number above 0"))),
    }
}

fn time(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(value.extract::<f64>()?) {
        // A duration that overflows the clock means no limit.
        Ok(time) if !time.is_zero() => Ok(time.min(Duration::from_secs(1 << 32))),
        _ => Err(PyValueError::new_err(format!("{name}: expected a number of seconds above 0"))),
    }
}

/// The id in a `uuid.UUID`.
pub(super) fn identity(uuid: &Bound<'_, PyAny>) -> PyResult<Identity> {
    // `UUID.bytes` runs Python code; `int` is an attribute.
    let number = uuid.getattr("int").and_then(|number| number.extract::<u128>());
    match number {
        Ok(number) => Ok(Identity(number.to_be_bytes())),
        Err(_) => {
            let kind = crate::ffi::type_name(uuid);
            Err(PyTypeError::new_err(format!("expected a uuid.UUID as an id, not {kind}")))
        }
    }
}
