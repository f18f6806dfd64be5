//! What a server is told when it is made, by the names that Python has for it.

use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ucall_proto::Limits;
use ucall_server::Config;

/// Where one limit is kept.
enum Place<'a> {
    /// A number of bytes or things, at least 1.
    Count(&'a mut usize),
    /// Seconds, more than 0.
    Time(&'a mut Duration),
}

/// Every limit, by name.
fn places<'a>(
    limits: &'a mut Limits,
    connections_max: &'a mut usize,
) -> [(&'static str, Place<'a>); 14] {
    [
        ("max_connections", Place::Count(connections_max)),
        ("max_head_bytes", Place::Count(&mut limits.head.bytes_max)),
        ("max_headers", Place::Count(&mut limits.head.headers_max)),
        ("max_body_bytes", Place::Count(&mut limits.body_bytes_max)),
        ("max_nesting", Place::Count(&mut limits.nesting_max)),
        ("max_batch_calls", Place::Count(&mut limits.batch_calls_max)),
        ("max_reply_bytes", Place::Count(&mut limits.reply_bytes_max)),
        ("max_id_bytes", Place::Count(&mut limits.id_bytes_max)),
        ("max_pipeline", Place::Count(&mut limits.pipeline_max)),
        ("max_output_bytes", Place::Count(&mut limits.output_bytes_max)),
        ("head_timeout_s", Place::Time(&mut limits.head_timeout)),
        ("body_timeout_s", Place::Time(&mut limits.body_timeout)),
        ("idle_timeout_s", Place::Time(&mut limits.idle_timeout)),
        ("send_timeout_s", Place::Time(&mut limits.send_timeout)),
    ]
}

/// Sets the limits that `options` names.
pub(crate) fn apply(config: &mut Config, options: &Bound<'_, PyDict>) -> PyResult<()> {
    let mut places = places(&mut config.limits, &mut config.connections_max);
    for (name, value) in options {
        let name = name.extract::<String>()?;
        let Some((_, place)) = places.iter_mut().find(|(known, _)| *known == name) else {
            return Err(PyTypeError::new_err(format!("no limit is named {name}")));
        };
        match place {
            Place::Count(count) => **count = counted(&name, &value)?,
            Place::Time(time) => **time = timed(&name, &value)?,
        }
    }
    Ok(())
}

fn counted(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    match value.extract::<u32>() {
        Ok(count @ 1..) => Ok(count as usize),
        _ => Err(PyValueError::new_err(format!("{name}: expected an int from 1 to 2³² - 1"))),
    }
}

fn timed(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds = value.extract::<f64>()?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(PyValueError::new_err(format!("{name}: expected a number of seconds above 0"))),
    }
}

/// The limits of a server that is told none, by name.
pub(crate) fn defaults(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let (mut limits, mut connections_max) = (Limits::default(), Config::CONNECTIONS_MAX);
    let defaults = PyDict::new(py);
    for (name, place) in places(&mut limits, &mut connections_max) {
        match place {
            Place::Count(count) => defaults.set_item(name, *count)?,
            Place::Time(time) => defaults.set_item(name, time.as_secs_f64())?,
        }
    }
    Ok(defaults)
}
