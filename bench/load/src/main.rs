//! A load over raw TCP, WebSocket or HTTP, which repeats its requests and compares every reply.
//!
//! It is a wrk for WebSocket and raw TCP; it supports HTTP so that the two can be compared. It has
//! one thread, and prints one line of JSON at the end. `--help` lists the options.

mod arrivals;
mod load;
mod options;
mod pace;
mod stream;
mod wire;

use std::io::{self, BufRead, Write};

use load::{Load, Outcome};
use options::Options;
use stream::Stream;
use wire::Wire;

/// Bytes of the first reply that are printed: a reply to a batch of 1,000 is checked as a whole.
const REPLY_PRINTED_MAX: usize = 64 << 10;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Opens the idle connections, prints a line, and waits for a line on standard input, so that the
/// server's memory can be measured meanwhile.
fn open_idle(wire: &Wire, count: usize) -> Result<Vec<Stream>, Error> {
    let idle = (0..count).map(|_| wire.call_once()).collect::<Result<Vec<_>, _>>()?;
    if count > 0 {
        println!("idle {count}");
        io::stdout().flush()?;
        io::stdin().lock().read_line(&mut String::new())?;
    }
    Ok(idle)
}

/// `None` without values.
fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

fn report(wire: &Wire, outcome: &Outcome) -> serde_json::Value {
    let first = &wire.clients[0][0];
    let percentile = |share| outcome.latency.value_at_quantile(share) as f64 / 1e3;
    serde_json::json!({
        "requests": outcome.latency.len(),
        "duration": outcome.elapsed.as_secs_f64(),
        "errors": outcome.errors,
        "unanswered": outcome.unanswered,
        "p50": percentile(0.5),
        "p99": percentile(0.99),
        "p999": percentile(0.999),
        "p999_windows": median(outcome.windows.clone()).map(|median| median as f64 / 1e3),
        "max": outcome.latency.max() as f64 / 1e3,
        "reply": String::from_utf8_lossy(&first.body[..first.body.len().min(REPLY_PRINTED_MAX)]),
    })
}

fn run() -> Result<(), Error> {
    let Some(options) = Options::parse()? else {
        print!("{}", options::USAGE);
        return Ok(());
    };
    let wire = Wire::learn(&options)?;
    let _idle = open_idle(&wire, options.idle)?;
    let outcome = Load::new(&wire, &options)?.run()?;
    println!("{}", report(&wire, &outcome));
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("load: {error}");
        std::process::exit(1);
    }
}
