//! The metrics of a server as Prometheus and OpenMetrics text.
//!
//! All names of metrics and labels are in this file. Those of calls are the names of
//! OpenTelemetry's semantic conventions for RPC (1.45), in the form that Prometheus gives them:
//! dots are underscores, and the unit is the end of the name.

use std::fmt::{self, Write};

use super::{
    Histogram, Measure, MetricsSnapshot, OTHER_CODE, OTHER_METHOD, UpstreamCounts, duration_bounds,
    size_bounds,
};
use crate::counters::{DatagramCounts, Stats};

/// What the metrics of a server show: the sums over its workers.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct ServerMetrics {
    /// The metrics of calls.
    pub calls: MetricsSnapshot,
    /// The counters of workers.
    pub stats: Stats,
    /// Whether connections are encrypted.
    pub is_tls: bool,
    /// Whether functions run in an interpreter, which has a lock, a pool of threads and batches.
    pub has_interpreter: bool,
}

impl ServerMetrics {
    /// The metrics as Prometheus text.
    pub fn text(&self) -> String {
        write(self, Format::Prometheus)
    }
}

/// A format of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    Prometheus,
    OpenMetrics,
}

/// The text of all metrics.
pub(super) fn write(metrics: &ServerMetrics, format: Format) -> String {
    let mut text = MetricsText { out: String::new(), format, family: String::new() };
    text.calls(&metrics.calls, metrics.has_interpreter);
    text.connections(&metrics.stats, metrics.is_tls);
    text.counters(&metrics.stats);
    text.datagrams(&metrics.stats.datagrams);
    text.process(&metrics.calls, metrics.has_interpreter);
    text.upstreams(&metrics.calls);
    if format == Format::OpenMetrics {
        text.out.push_str("# EOF\n");
    }
    text.out
}

type Labels<'a> = [(&'a str, &'a str)];

/// A text, and the name of the family that is being written.
struct MetricsText {
    out: String,
    format: Format,
    family: String,
}

impl MetricsText {
    fn calls(&mut self, calls: &MetricsSnapshot, has_interpreter: bool) {
        self.durations(calls);
        if has_interpreter {
            self.batches(calls);
            self.models(calls);
        }
        self.gauge(
            "ucall_running_calls",
            "Calls in tasks, threads, processes, batches and streams.",
            calls.running,
        );
        if has_interpreter {
            self.family("ucall_waiting_calls", "gauge", "Running calls that have to wait.");
            self.sample("", &[("queue", "thread")], calls.waiting_for_thread);
            self.sample("", &[("queue", "batch")], calls.waiting_for_batch);
        }
    }

    fn durations(&mut self, calls: &MetricsSnapshot) {
        self.family(
            "rpc_server_call_duration_seconds",
            "histogram",
            "Time from the begin of a call, or the receipt of a deferred one, to its reply.",
        );
        let bounds = shown_durations();
        for ((method, measure), histogram) in &calls.series {
            let code = match measure {
                Measure::Success => None,
                Measure::Error(OTHER_CODE) => Some("_OTHER".to_owned()),
                Measure::Error(code) => Some(code.to_string()),
                _ => continue,
            };
            let mut labels = vec![("rpc_system_name", "jsonrpc"), ("rpc_method", method.as_str())];
            // The conventions have both labels, and the code of JSON-RPC is both.
            let errors = ["error_type", "rpc_response_status_code"];
            labels.extend(code.iter().flat_map(|code| errors.map(|name| (name, code.as_str()))));
            self.histogram(&labels, &bounds, histogram, &Seconds(histogram.sum));
        }
    }

    fn batches(&mut self, calls: &MetricsSnapshot) {
        let durations = shown_durations();
        let seconds = |sum| Seconds(sum).to_string();
        self.by_method(
            calls,
            Measure::QueueWait,
            (
                "ucall_queue_wait_seconds",
                "Time that calls have waited for a thread or their batch.",
            ),
            (&durations, seconds),
        );
        self.by_method(
            calls,
            Measure::BatchDuration,
            ("ucall_batch_duration_seconds", "Time that batches of server.batch have run."),
            (&durations, seconds),
        );
        self.by_method(
            calls,
            Measure::BatchSize,
            ("ucall_batch_calls", "Calls that ran together in one batch of server.batch."),
            (&shown_sizes(), |sum| sum.to_string()),
        );
    }

    /// The models of the program, if it has any.
    fn models(&mut self, calls: &MetricsSnapshot) {
        let loaded = calls.series.iter().filter(|((_, it), _)| *it == Measure::LoadedModel);
        let mut loaded = loaded.filter(|((name, _), _)| name != OTHER_METHOD).peekable();
        if loaded.peek().is_some() {
            self.family("ucall_loaded_models", "gauge", "Processes that have loaded a model.");
        }
        for ((name, _), histogram) in loaded {
            self.sample("", &[("model", name)], histogram.sum);
        }
    }

    /// A family of histograms, one for each method.
    fn by_method(
        &mut self,
        calls: &MetricsSnapshot,
        measure: Measure,
        (name, help): (&str, &str),
        (bounds, sum): (&[Bound], fn(u64) -> String),
    ) {
        self.family(name, "histogram", help);
        for ((method, _), histogram) in calls.series.iter().filter(|((_, it), _)| *it == measure) {
            self.histogram(&[("rpc_method", method)], bounds, histogram, &sum(histogram.sum));
        }
    }

    fn connections(&mut self, stats: &Stats, is_tls: bool) {
        self.family("ucall_connections", "gauge", "Open connections.");
        let counts = &stats.protocols;
        let known = [("http", counts.http), ("websocket", counts.websocket), ("raw", counts.raw)];
        // Counted at another time than all connections, so there may be more of them.
        let sum: u64 = known.iter().map(|(_, count)| count).sum();
        let unknown = ("unknown", stats.connections.saturating_sub(sum));
        let tls = if is_tls { "true" } else { "false" };
        for (protocol, count) in known.into_iter().chain([unknown]) {
            self.sample("", &[("protocol", protocol), ("tls", tls)], count);
        }
    }

    fn counters(&mut self, stats: &Stats) {
        self.counter("ucall_accepted_connections", "Connections accepted.", stats.accepted);
        self.counter("ucall_received_bytes", "Bytes received.", stats.bytes_received);
        self.counter("ucall_sent_bytes", "Bytes sent.", stats.bytes_sent);
        self.counter(
            "ucall_turns",
            "Turns of workers: waits for events, and the work after each.",
            stats.turns,
        );
        self.counter(
            "ucall_system_calls",
            "System calls of workers for their sockets.",
            stats.system_calls,
        );
        self.gauge(
            "ucall_subscriptions",
            "Subscriptions of connections to topics.",
            stats.subscriptions,
        );
        self.counter(
            "ucall_dropped_messages",
            "Messages of the server that were dropped for slow clients or busy workers.",
            stats.dropped_messages,
        );
        self.counter(
            "ucall_dropped_log_lines",
            "Lines of the access log that were dropped.",
            stats.dropped_log_lines,
        );
    }

    /// The metrics of UDP, if the server has received any datagram.
    fn datagrams(&mut self, counts: &DatagramCounts) {
        if *counts == DatagramCounts::default() {
            return;
        }
        for (name, help, count) in [
            ("received", "Datagrams received.", counts.received),
            ("sent", "Replies in datagrams.", counts.sent),
            (
                "invalid",
                "Datagrams without a valid request, which are not answered.",
                counts.invalid,
            ),
            ("repeated", "Datagrams that were sent again.", counts.repeated),
            ("refused", "Datagrams past a limit, or whose reply needs a cookie.", counts.refused),
            ("dropped", "Datagrams that the kernel has dropped.", counts.dropped),
        ] {
            self.counter(&format!("ucall_{name}_datagrams"), help, count);
        }
    }

    fn process(&mut self, calls: &MetricsSnapshot, has_interpreter: bool) {
        if has_interpreter {
            self.counter(
                "ucall_gil_wait_seconds",
                "Time that workers with events have waited for the interpreter's lock.",
                Seconds(calls.lock_wait_ns),
            );
        }
        self.counter("ucall_worker_starts", "Workers that have started.", calls.worker_starts);
        self.gauge(
            "process_start_time_seconds",
            "Start of the server, or of its supervisor, in Unix time.",
            Number(calls.started_ms as f64 / 1e3),
        );
    }

    /// The metrics of relays, if the server has any.
    fn upstreams(&mut self, calls: &MetricsSnapshot) {
        let upstreams: Vec<_> = calls
            .upstreams
            .iter()
            .filter(|(name, counts)| *name != OTHER_METHOD || **counts != UpstreamCounts::default())
            .map(|(name, counts)| (("upstream", name.as_str()), counts))
            .collect();
        if upstreams.is_empty() {
            return;
        }
        self.family("ucall_upstream_calls", "gauge", "Relayed calls that wait for an upstream.");
        for (label, counts) in &upstreams {
            self.sample("", &[*label], counts.outstanding);
        }
        self.family("ucall_upstream_failures", "counter", "Failures of an upstream.");
        for (label, counts) in &upstreams {
            self.sample("_total", &[*label], counts.failures);
        }
        self.family(
            "ucall_upstream_circuits",
            "gauge",
            "Circuit breakers by state: each worker has one for each relay and upstream.",
        );
        for (label, counts) in &upstreams {
            self.states(*label, ["closed", "open", "probing"], counts.circuits);
        }
        let is_checked = |counts: &UpstreamCounts| counts.health != [0; 2];
        if !upstreams.iter().any(|(_, counts)| is_checked(counts)) {
            return;
        }
        self.family(
            "ucall_upstream_health",
            "gauge",
            "Health checks by their verdict: each worker has one for each relay and upstream.",
        );
        for (label, counts) in upstreams.iter().filter(|(_, counts)| is_checked(counts)) {
            self.states(*label, ["healthy", "unhealthy"], counts.health);
        }
    }

    fn states<const N: usize>(&mut self, label: (&str, &str), states: [&str; N], counts: [u64; N]) {
        for (state, count) in states.into_iter().zip(counts) {
            self.sample("", &[label, ("state", state)], count);
        }
    }

    /// A gauge with one sample.
    fn gauge(&mut self, name: &str, help: &str, value: impl fmt::Display) {
        self.family(name, "gauge", help);
        self.sample("", &[], value);
    }

    /// A counter with one sample.
    fn counter(&mut self, name: &str, help: &str, value: impl fmt::Display) {
        self.family(name, "counter", help);
        self.sample("_total", &[], value);
    }

    /// Begins a family.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        name.clone_into(&mut self.family);
        let is_open = self.format == Format::OpenMetrics;
        let end = if kind == "counter" && !is_open { "_total" } else { "" };
        self.line(format_args!("# HELP {name}{end} {help}"));
        self.line(format_args!("# TYPE {name}{end} {kind}"));
        let units = ["seconds", "bytes"];
        let unit = units.into_iter().find(|unit| is_open && name.ends_with(unit));
        if let Some(unit) = unit {
            self.line(format_args!("# UNIT {name} {unit}"));
        }
    }

    /// Writes the samples of a histogram. The last bucket is that of values above all bounds.
    fn histogram(
        &mut self,
        labels: &Labels<'_>,
        bounds: &[Bound],
        histogram: &Histogram,
        sum: &dyn fmt::Display,
    ) {
        // The series of other methods are there from the start.
        let is_other = labels.contains(&("rpc_method", OTHER_METHOD));
        if is_other && histogram.buckets.iter().all(|count| *count == 0) {
            return;
        }
        let mut bounds = bounds.iter().peekable();
        let mut bounded = labels.to_vec();
        let mut total = 0;
        for (at, count) in histogram.buckets.iter().enumerate() {
            total += count;
            if let Some((_, bound)) = bounds.next_if(|(bucket, _)| *bucket == at) {
                bounded.push(("le", bound));
                self.sample("_bucket", &bounded, total);
                bounded.pop();
            }
        }
        bounded.push(("le", "+Inf"));
        self.sample("_bucket", &bounded, total);
        self.sample("_sum", labels, sum);
        self.sample("_count", labels, total);
    }

    /// Writes a sample of the family.
    fn sample(&mut self, end: &str, labels: &Labels<'_>, value: impl fmt::Display) {
        self.out.push_str(&self.family);
        self.out.push_str(end);
        for (at, (name, text)) in labels.iter().enumerate() {
            self.out.push(if at == 0 { '{' } else { ',' });
            self.out.push_str(name);
            self.out.push_str("=\"");
            escape(text, &mut self.out);
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        self.line(format_args!(" {value}"));
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.out.write_fmt(line);
        self.out.push('\n');
    }
}

/// A bucket whose bound is shown, and the bound.
type Bound = (usize, String);

/// Those of durations: two an octave from a millisecond on, where waits and models are, else one.
fn shown_durations() -> Vec<Bound> {
    const FINE_FROM: u64 = 1_000_000;
    let bounds = duration_bounds().into_iter().enumerate();
    let shown = bounds.filter(|(at, bound)| at % 2 == 0 || *bound > FINE_FROM);
    shown.map(|(at, bound)| (at, Seconds(bound).to_string())).collect()
}

fn shown_sizes() -> Vec<Bound> {
    size_bounds().iter().enumerate().map(|(at, bound)| (2 * at, bound.to_string())).collect()
}

fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' => out.push_str("\\\""),
            other => out.push(other),
        }
    }
}

/// Nanoseconds, written as seconds.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Number(self.0 as f64 / 1e9).fmt(formatter)
    }
}

/// A floating-point number, written as Python and Go do: the bounds of buckets are labels, which
/// must not change their spelling.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:?}", self.0);
        match text.split_once('e') {
            None => formatter.write_str(&text),
            Some((digits, exponent)) => {
                let (sign, exponent) = match exponent.strip_prefix('-') {
                    Some(exponent) => ('-', exponent),
                    None => ('+', exponent),
                };
                let digits = digits.strip_suffix(".0").unwrap_or(digits);
                write!(formatter, "{digits}e{sign}{exponent:0>2}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled_as_in_python() {
        for (number, text) in [
            (0.0, "0.0"),
            (1e-5, "1e-05"),
            (1.5e-5, "1.5e-05"),
            (0.00016, "0.00016"),
            (10.48576, "10.48576"),
            (1_795_896_000.25, "1795896000.25"),
            (1e16, "1e+16"),
        ] {
            assert_eq!(Number(number).to_string(), text);
        }
    }
}
