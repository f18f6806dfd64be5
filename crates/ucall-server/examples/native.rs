//! Serves native procedures: procedures in Rust, which a worker calls without its handler.
//!
//! `cargo run --release -p ucall-server --example native -- PORT`
//!
//! `text.echo` is answered at once, `text.later` by another thread. A program in Python or C would
//! register the same module beside its own procedures, as `ucall-store` does.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use ucall_engine::posix::Posix;
use ucall_proto::http1::AccessRules;
use ucall_proto::{Call, CallOutcome, Reply};
use ucall_server::{
    AnyWorker, Caller, Handler, NativeCall, NativeHandler, NativeModule, NativeOutcome,
    NativeOutcomes, NativeProcedure, Procedures, Worker, WorkerConfig,
};

/// The procedures of all workers.
#[derive(Debug)]
struct Texts {
    procedures: Vec<NativeProcedure>,
}

impl Texts {
    fn new() -> Self {
        let described = |(name, summary): (&str, _)| NativeProcedure {
            name: name.to_owned(),
            summary,
            params: r#"{"type":"object","properties":{"text":{"type":"string"}}}"#,
            result: "{}",
            item: None,
        };
        let procedures =
            [("text.echo", "Returns its params."), ("text.later", "Returns them later.")];
        Self { procedures: procedures.map(described).into() }
    }
}

impl NativeModule for Texts {
    fn procedures(&self) -> &[NativeProcedure] {
        &self.procedures
    }

    fn handler(&self, outcomes: Arc<NativeOutcomes>, _now: Instant) -> Box<dyn NativeHandler> {
        Box::new(TextHandler { outcomes })
    }
}

/// The state of one worker, which no other thread uses.
struct TextHandler {
    outcomes: Arc<NativeOutcomes>,
}

impl NativeHandler for TextHandler {
    fn call(&mut self, index: usize, call: NativeCall<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        // The text of the params, which is valid JSON. It is lent for this call.
        let params = call.request.params.unwrap_or(b"null");
        if index == 0 {
            reply.result().extend_from_slice(params);
            return CallOutcome::Done;
        }
        let kept = params.to_vec();
        match call.defer(kept.len()) {
            Ok(token) => {
                let outcomes = self.outcomes.clone();
                thread::spawn(move || outcomes.send(token, NativeOutcome::Reply(Ok(kept))));
                CallOutcome::Deferred
            }
            Err(error) => {
                reply.error(&error);
                CallOutcome::Done
            }
        }
    }
}

/// This server has no other procedures.
struct NoProcedures;

impl Handler for NoProcedures {
    type Procedure = Infallible;

    fn call(
        &mut self,
        procedure: &Infallible,
        _: &Call<'_>,
        _: &Caller,
        _: &mut Reply<'_>,
    ) -> CallOutcome {
        match *procedure {}
    }
}

fn serve(listener: TcpListener) -> io::Result<()> {
    let procedures = Arc::new(Procedures::new());
    procedures.insert_native(Arc::new(Texts::new()), None);
    let access = AccessRules::new(true, &[], &[]).map_err(io::Error::other)?;
    let config = WorkerConfig::new(access);
    let mut worker = Worker::new(Posix::new()?, NoProcedures, procedures, config);
    worker.listen(listener.into())?;
    while !worker.turn(None)?.stopped {}
    Ok(())
}

fn main() -> io::Result<()> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(8545);
    serve(ucall_engine::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), false)?)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn both_procedures_answer() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = ucall_engine::bind(address, false).expect("a listener");
        let address = listener.local_addr().expect("its address");
        // Serves until the program ends.
        thread::spawn(|| serve(listener));
        let mut stream = TcpStream::connect(address).expect("a connection");
        let mut replies = BufReader::new(stream.try_clone().expect("its other half")).lines();
        for method in ["text.echo", "text.later"] {
            let call = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":["a"],"id":1}}"#);
            stream.write_all(call.as_bytes()).expect("sent");
            let reply = replies.next().expect("a reply").expect("a line");
            assert_eq!(reply, r#"{"jsonrpc":"2.0","id":1,"result":["a"]}"#, "{method}");
        }
    }
}
