//! Echoes what it receives: `echo [posix|uring] [ADDRESS]`. For measuring an engine alone.

use std::env;
use std::error::Error;
use std::net::SocketAddr;

use ucall_buffer::Payload;
use ucall_engine::posix::Posix;
use ucall_engine::uring::{Config, Uring};
use ucall_engine::{Completion, Engine, EngineKind, SendState, bind, raise_descriptor_limit};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let wanted = arguments.next();
    let address = arguments.next().as_deref().unwrap_or("127.0.0.1:8545").parse()?;
    raise_descriptor_limit();
    match (wanted.as_deref(), EngineKind::probe_uring()) {
        (Some("posix"), _) | (_, Ok(EngineKind::Posix)) => serve(Posix::new()?, address),
        (_, Ok(EngineKind::Uring(features))) => {
            serve(Uring::new(Config::default(), features)?, address)
        }
        (Some("uring"), Err(unavailable)) => Err(unavailable.into()),
        (_, Err(unavailable)) => {
            eprintln!("{unavailable}");
            serve(Posix::new()?, address)
        }
    }
}

fn serve<E: Engine>(mut engine: E, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let listener = bind(address, false)?;
    eprintln!("{} on {}", E::NAME, listener.local_addr()?);
    engine.listen(listener)?;
    let mut completions = Vec::new();
    let mut cached: Vec<Payload> = Vec::new();
    loop {
        engine.wait(None, &mut completions)?;
        for completion in completions.drain(..) {
            match completion {
                Completion::Received(arrival) => {
                    let socket = arrival.socket;
                    let mut payload = cached.pop().unwrap_or_default();
                    payload.clear();
                    payload.extend(engine.receive(arrival).unwrap_or_default());
                    if payload.is_empty() {
                        engine.close(socket);
                    } else if let SendState::Done(payload) = engine.send_last(socket, payload) {
                        cached.push(payload);
                    }
                }
                Completion::Sent { payload, .. } => cached.push(payload),
                _ => {}
            }
        }
    }
}
