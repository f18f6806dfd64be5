//! The response of `GET /metrics`.

use std::fmt;
use std::sync::Arc;

use ucall_proto::http1::Head;

use super::text::{self, Format, ServerMetrics};

pub(crate) const PATH: &str = "/metrics";

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Reads the metrics of a server, on the thread of any of its workers.
#[derive(Clone)]
pub struct MetricsReader(Arc<dyn Fn() -> ServerMetrics + Send + Sync>);

impl MetricsReader {
    /// A reader that calls `read`, which must not block.
    pub fn new(read: impl Fn() -> ServerMetrics + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The response to a request. Not inlined: calls would pass over its stack.
    #[cold]
    pub(crate) fn response(&self, head: Option<&Head<'_>>) -> Vec<u8> {
        let is_open = head.is_some_and(|head| {
            let lines: Vec<_> =
                head.headers().named("accept").map(String::from_utf8_lossy).collect();
            prefers_open_metrics(&lines.join(","))
        });
        let (format, content_type) = match is_open {
            true => (Format::OpenMetrics, OPEN_METRICS),
            false => (Format::Prometheus, PROMETHEUS),
        };
        let text = text::write(&(self.0)(), format);
        let length = text.len();
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nContent-Type: {content_type}\r\n\
             Cache-Control: no-store\r\nVary: Accept\r\n\r\n{text}"
        )
        .into_bytes()
    }
}

impl fmt::Debug for MetricsReader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MetricsReader").finish_non_exhaustive()
    }
}

/// Whether an `Accept` header prefers OpenMetrics to Prometheus text.
fn prefers_open_metrics(accept: &str) -> bool {
    let weight = |names: &[&str]| {
        let ranges = accept.split(',').filter_map(|range| {
            let (name, parameters) = range.split_once(';').unwrap_or((range, ""));
            let is_named = names.iter().any(|known| name.trim().eq_ignore_ascii_case(known));
            is_named.then(|| quality(parameters))
        });
        ranges.fold(0.0, f64::max)
    };
    weight(&["application/openmetrics-text"]) > weight(&["text/plain", "text/*", "*/*"])
}

/// The weight of a media range (RFC 9110, section 12.4.2); 0 if it is invalid.
fn quality(parameters: &str) -> f64 {
    let mut named = parameters.split(';').filter_map(|it| it.split_once('='));
    let weight = named.rfind(|(name, _)| name.trim() == "q").map(|(_, value)| value.trim());
    weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_header_chooses_the_format() {
        const PROMETHEUS_ASKS: &str =
            "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3";
        for (accept, is_open) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text", true),
            (PROMETHEUS_ASKS, true),
            ("application/openmetrics-text;q=0.1, text/plain;q=0.2", false),
            ("application/openmetrics-text;q=0", false),
            ("application/openmetrics-text;q=x", false),
            ("Application/OpenMetrics-Text; version=1.0.0, */*;q=0.1", true),
        ] {
            assert_eq!(prefers_open_metrics(accept), is_open, "{accept}");
        }
    }
}
