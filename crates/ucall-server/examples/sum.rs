//! Serves `sum` without any language behind it: what the core costs by itself.
//!
//! `cargo run --release -p ucall-server --example sum -- posix|uring PORT`

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ucall_engine::Engine;
use ucall_proto::http1::AccessRules;
use ucall_proto::json::{Reader, ValueKind, write_i64};
use ucall_proto::{Call, CallOutcome, Reply, RpcError};
use ucall_server::{AnyWorker, Caller, Handler, Procedures, Worker, WorkerConfig};

struct Native;

impl Handler for Native {
    type Procedure = fn(i64, i64) -> i64;

    fn call(
        &mut self,
        procedure: &Self::Procedure,
        call: &Call<'_>,
        _caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        match two_integers(call.params.unwrap_or_default()) {
            Some((a, b)) => write_i64(reply.result(), procedure(a, b)),
            None => reply.error(&RpcError::new(RpcError::INVALID_PARAMS, "Invalid params")),
        }
        CallOutcome::Done
    }
}

fn two_integers(params: &[u8]) -> Option<(i64, i64)> {
    let mut reader = Reader::new(params);
    let (mut a, mut b) = (None, None);
    if reader.kind() != ValueKind::Object {
        return None;
    }
    reader.enter();
    while let Some(key) = reader.next_key() {
        match key.raw() {
            b"a" => a = reader.number().as_i64(),
            b"b" => b = reader.number().as_i64(),
            _ => return None,
        }
    }
    Some((a?, b?))
}

fn serve(engine: impl Engine, port: u16) -> io::Result<()> {
    let procedures = Arc::new(Procedures::<fn(i64, i64) -> i64>::new());
    procedures.insert("sum", |a, b| a + b);
    let access = AccessRules::new(true, &[], &[]).map_err(io::Error::other)?;
    let mut worker = Worker::new(engine, Native, procedures, WorkerConfig::new(access));
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = ucall_engine::bind(address, false)?;
    println!("listening on {}", listener.local_addr()?.port());
    worker.listen(listener.into())?;
    while !worker.turn(None)?.stopped {}
    Ok(())
}

#[cfg(target_os = "linux")]
fn uring() -> io::Result<impl Engine> {
    use ucall_engine::uring::{Config, Features, Uring};
    Uring::new(Config::default(), Features::probe()?)
}

fn main() -> io::Result<()> {
    let engine = std::env::args().nth(1).unwrap_or_default();
    let port = std::env::args().nth(2).and_then(|port| port.parse().ok()).unwrap_or(8545);
    match engine.as_str() {
        "posix" => serve(ucall_engine::posix::Posix::new()?, port),
        #[cfg(target_os = "linux")]
        "uring" => serve(uring()?, port),
        _ => Err(io::Error::other("usage: sum posix|uring [PORT]")),
    }
}
