//! The options of a server, by their Python names.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ucall_proto::http1::AccessRules;
use ucall_proto::{Compression, Limits};
use ucall_server::{AccessLog, CallRates, DatagramConfig, LogFormat, WorkerConfig};

use crate::features;

/// The field that holds one limit.
enum LimitField<'a> {
    /// A number of bytes or items, at least 1.
    Count(&'a mut usize),
    /// Seconds, above 0.
    Time(&'a mut Duration),
    /// Seconds, at least 0.
    Delay(&'a mut Duration),
    /// Items a second, if there is a limit.
    Rate(&'a mut Option<f64>),
    /// A number of items, if there is a limit.
    Burst(&'a mut Option<u32>),
}

/// Limits of calls and their results.
#[derive(Clone, Debug)]
pub(crate) struct CallLimits {
    /// Calls that run at once, of those that do not end within their turn.
    pub(crate) running_max: usize,
    /// Threads for blocking functions.
    pub(crate) threads_max: usize,
    /// Bytes of a result.
    pub(crate) reply_bytes_max: usize,
    /// A function that holds up all other calls this long is logged.
    pub(crate) slow: Duration,
    /// Calls a second of one caller, and how many of them may come at once.
    calls_per_s_max: Option<f64>,
    burst_calls_max: Option<u32>,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            running_max: 10_000,
            threads_max: 128,
            reply_bytes_max: Limits::default().reply_bytes_max,
            slow: Duration::from_millis(100),
            calls_per_s_max: None,
            burst_calls_max: None,
        }
    }
}

/// Every limit, by name.
fn limit_fields<'a>(
    config: &'a mut WorkerConfig,
    call_limits: &'a mut CallLimits,
) -> [(&'static str, LimitField<'a>); 44] {
    let limits = &mut config.limits;
    let datagrams = &mut config.datagrams;
    [
        ("max_datagram_bytes", LimitField::Count(&mut datagrams.datagram_bytes_max)),
        ("max_dedupe_bytes", LimitField::Count(&mut datagrams.dedupe_bytes_max)),
        ("max_source_calls", LimitField::Count(&mut datagrams.source_calls_max)),
        ("dedupe_s", LimitField::Time(&mut datagrams.dedupe_lifetime)),
        ("max_connections", LimitField::Count(&mut config.connections_max)),
        ("max_shared_bytes", LimitField::Count(&mut config.shared_bytes_max)),
        ("max_subscriptions", LimitField::Count(&mut config.subscriptions_max)),
        ("max_topic_bytes", LimitField::Count(&mut config.topic_bytes_max)),
        ("max_running_calls", LimitField::Count(&mut call_limits.running_max)),
        ("max_threads", LimitField::Count(&mut call_limits.threads_max)),
        ("max_calls_per_s", LimitField::Rate(&mut call_limits.calls_per_s_max)),
        ("max_burst_calls", LimitField::Burst(&mut call_limits.burst_calls_max)),
        ("drain_timeout_s", LimitField::Time(&mut config.drain_timeout)),
        ("shutdown_delay_s", LimitField::Delay(&mut config.shutdown_delay)),
        ("slow_call_s", LimitField::Time(&mut call_limits.slow)),
        ("max_head_bytes", LimitField::Count(&mut limits.head.bytes_max)),
        ("max_headers", LimitField::Count(&mut limits.head.headers_max)),
        ("max_body_bytes", LimitField::Count(&mut limits.body_bytes_max)),
        ("max_body_ratio", LimitField::Count(&mut limits.body_ratio_max)),
        ("max_frame_bytes", LimitField::Count(&mut limits.frame_bytes_max)),
        ("max_message_frames", LimitField::Count(&mut limits.message_frames_max)),
        ("max_unanswered_pings", LimitField::Count(&mut limits.unanswered_pings_max)),
        ("max_chunk_overhead_bytes", LimitField::Count(&mut limits.chunk_overhead_bytes_max)),
        ("max_nesting", LimitField::Count(&mut limits.nesting_max)),
        ("max_batch_calls", LimitField::Count(&mut limits.batch_calls_max)),
        ("max_parts", LimitField::Count(&mut limits.parts_max)),
        ("max_reply_bytes", LimitField::Count(&mut limits.reply_bytes_max)),
        ("max_id_bytes", LimitField::Count(&mut limits.id_bytes_max)),
        ("max_meta_bytes", LimitField::Count(&mut limits.meta_bytes_max)),
        ("max_stream_bytes", LimitField::Count(&mut limits.stream_bytes_max)),
        ("max_waiting_messages", LimitField::Count(&mut limits.waiting_messages_max)),
        ("max_waiting_message_bytes", LimitField::Count(&mut limits.waiting_message_bytes_max)),
        ("max_pipeline", LimitField::Count(&mut limits.pipeline_max)),
        ("max_connection_calls", LimitField::Count(&mut limits.connection_calls_max)),
        ("max_output_bytes", LimitField::Count(&mut limits.output_bytes_max)),
        ("max_held_bytes", LimitField::Count(&mut limits.held_bytes_max)),
        ("max_discarded_bytes", LimitField::Count(&mut limits.discarded_bytes_max)),
        ("handshake_timeout_s", LimitField::Time(&mut limits.handshake_timeout)),
        ("head_timeout_s", LimitField::Time(&mut limits.head_timeout)),
        ("body_timeout_s", LimitField::Time(&mut limits.body_timeout)),
        ("idle_timeout_s", LimitField::Time(&mut limits.idle_timeout)),
        ("ping_interval_s", LimitField::Time(&mut limits.ping_interval)),
        ("send_timeout_s", LimitField::Time(&mut limits.send_timeout)),
        ("discard_timeout_s", LimitField::Time(&mut limits.discard_timeout)),
    ]
}

/// The options of `ucall.Compression`, among the limits.
const COMPRESSION_MIN: &str = "compression.min_bytes";
const COMPRESSION_MAX: &str = "compression.max_bytes";

/// Compresses replies if `options` says from which length on.
fn apply_compression(limits: &mut Limits, options: &Bound<'_, PyDict>) -> PyResult<()> {
    let (Some(min), Some(max)) =
        (options.get_item(COMPRESSION_MIN)?, options.get_item(COMPRESSION_MAX)?)
    else {
        return Ok(());
    };
    features::require("compression")?;
    limits.compress(compression(&min, &max)?);
    Ok(())
}

/// The lengths of `ucall.Compression`.
pub(crate) fn compression(min: &Bound<'_, PyAny>, max: &Bound<'_, PyAny>) -> PyResult<Compression> {
    let bytes_min = parse_count(COMPRESSION_MIN, min)?;
    let bytes_max = parse_count(COMPRESSION_MAX, max)?;
    if bytes_min > bytes_max {
        let expected = format!("{COMPRESSION_MAX}: expected at least {COMPRESSION_MIN}");
        return Err(PyValueError::new_err(format!("{expected}, got {bytes_max}")));
    }
    Ok(Compression { bytes_min, bytes_max })
}

/// Sets the limits that `options` names.
pub(crate) fn apply(
    config: &mut WorkerConfig,
    call_limits: &mut CallLimits,
    options: &Bound<'_, PyDict>,
) -> PyResult<()> {
    apply_compression(&mut config.limits, options)?;
    let mut limit_fields = limit_fields(config, call_limits);
    for (name, value) in options {
        let name = name.extract::<String>()?;
        if name == COMPRESSION_MIN || name == COMPRESSION_MAX {
            continue;
        }
        let Some((_, field)) = limit_fields.iter_mut().find(|(known, _)| *known == name) else {
            return Err(PyTypeError::new_err(format!("unknown limit {name}")));
        };
        match field {
            LimitField::Count(count) => **count = parse_count(&name, &value)?,
            LimitField::Time(time) => **time = parse_time(&name, &value, ABOVE_0)?,
            LimitField::Delay(delay) => **delay = parse_time(&name, &value, "from 0 on")?,
            // `CallRates` checks their range.
            LimitField::Rate(rate) if !value.is_none() => {
                **rate = Some(value.extract().unwrap_or(f64::NAN));
            }
            LimitField::Burst(burst) if !value.is_none() => {
                **burst = Some(value.extract().unwrap_or(0));
            }
            LimitField::Rate(_) | LimitField::Burst(_) => {}
        }
    }
    if let Some(rate) = call_limits.calls_per_s_max {
        let rates = CallRates::new(rate, call_limits.burst_calls_max);
        config.call_rates = Some(rates.map_err(|(name, expected)| {
            let value = options.get_item(name).ok().flatten();
            let got = value.and_then(|value| value.repr().ok()).map(|it| it.to_string());
            let got = got.unwrap_or_else(|| rate.to_string());
            PyValueError::new_err(format!("{name}: expected {expected}, got {got}"))
        })?);
    }
    let nesting = config.limits.nesting_max;
    if nesting > Limits::NESTING_MAX {
        let expected = format!("max_nesting: expected at most {}", Limits::NESTING_MAX);
        return Err(PyValueError::new_err(format!("{expected}, got {nesting}")));
    }
    let datagram = config.datagrams.datagram_bytes_max;
    if datagram > DatagramConfig::DATAGRAM_BYTES_MAX {
        let max = DatagramConfig::DATAGRAM_BYTES_MAX;
        let expected = format!("max_datagram_bytes: expected at most {max}, got {datagram}");
        return Err(PyValueError::new_err(expected));
    }
    let dedupe = config.datagrams.dedupe_lifetime;
    if dedupe < DatagramConfig::DEDUPE_LIFETIME_MIN {
        let min = DatagramConfig::DEDUPE_LIFETIME_MIN.as_secs_f64();
        let expected = format!("dedupe_s: expected at least {min}, got {}", dedupe.as_secs_f64());
        return Err(PyValueError::new_err(expected));
    }
    call_limits.reply_bytes_max = config.limits.reply_bytes_max;
    Ok(())
}

const ABOVE_0: &str = "above 0";

fn parse_count(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    match value.extract::<u32>() {
        Ok(count @ 1..) => Ok(count as usize),
        _ => Err(invalid(name, "an int from 1 to 2³² - 1", value)?),
    }
}

fn parse_time(name: &str, value: &Bound<'_, PyAny>, range: &str) -> PyResult<Duration> {
    let seconds = value.extract::<f64>().unwrap_or(f64::NAN);
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() || range != ABOVE_0 => Ok(time),
        _ => Err(invalid(name, &format!("a number of seconds {range}"), value)?),
    }
}

fn invalid(name: &str, expected: &str, value: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    let got = value.repr()?;
    Ok(PyValueError::new_err(format!("{name}: expected {expected}, got {got}")))
}

/// Milliseconds above 0, if given.
pub(crate) fn timeout(timeout_ms: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(timeout_ms) = timeout_ms else { return Ok(None) };
    match Duration::try_from_secs_f64(timeout_ms / 1e3) {
        Ok(timeout) if !timeout.is_zero() => Ok(Some(timeout)),
        _ => Err(PyValueError::new_err("timeout_ms: expected a number of milliseconds above 0")),
    }
}

/// All limits of a server and their defaults, by name.
#[pyfunction]
pub(crate) fn default_limits(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let access = AccessRules::new(true, &[], &[])
        .map_err(|invalid| PyValueError::new_err(invalid.to_string()))?;
    let (mut config, mut call_limits) = (WorkerConfig::new(access), CallLimits::default());
    let defaults = PyDict::new(py);
    for (name, field) in limit_fields(&mut config, &mut call_limits) {
        match field {
            LimitField::Count(count) => defaults.set_item(name, *count)?,
            LimitField::Time(time) | LimitField::Delay(time) => {
                defaults.set_item(name, time.as_secs_f64())?;
            }
            LimitField::Rate(rate) => defaults.set_item(name, *rate)?,
            LimitField::Burst(burst) => defaults.set_item(name, *burst)?,
        }
    }
    Ok(defaults)
}

/// The access log with a format's name and the share of calls that it has.
pub(crate) fn access_log((format, sample): (String, f64)) -> PyResult<Arc<AccessLog>> {
    let format = match &*format {
        "text" => LogFormat::Text,
        "json" => LogFormat::Json,
        _ => {
            let problem = format!("access_log: expected 'text' or 'json', got {format:?}");
            return Err(PyValueError::new_err(problem));
        }
    };
    if !(0.0..=1.0).contains(&sample) {
        let problem = format!("access_log_sample: expected 0 to 1, got {sample}");
        return Err(PyValueError::new_err(problem));
    }
    Ok(Arc::new(AccessLog::new(format, sample, Box::new(std::io::stdout()))))
}
