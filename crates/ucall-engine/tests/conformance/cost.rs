//! System calls, counted: the budget of the hot path.

use std::net::TcpStream;
use std::thread;

use ucall_buffer::Payload;
use ucall_engine::{Completion, Engine, SendState};

use crate::harness::{Harness, read, write};

const ROUND_TRIPS: usize = 5_000;

pub fn one_connection_costs_few_system_calls(harness: &mut Harness<impl Engine>) {
    let cost = cost_per_round_trip(harness, 1, false);
    let budget = if is_posix(harness) { 3.1 } else { 2.1 };
    assert!(cost <= budget, "{cost} system calls a round trip");
}

pub fn last_sends_cost_no_system_call(harness: &mut Harness<impl Engine>) {
    let cost = cost_per_round_trip(harness, 1, true);
    // Before Linux 6.1 it costs as much as a send.
    let budget = match () {
        () if is_posix(harness) => 3.1,
        () if harness.skips_send_completions => 1.1,
        () => 2.1,
    };
    assert!(cost <= budget, "{cost} system calls a round trip");
}

pub fn many_connections_share_system_calls(harness: &mut Harness<impl Engine>) {
    let cost = cost_per_round_trip(harness, 32, false);
    let budget = if is_posix(harness) { 3.0 } else { 1.5 };
    assert!(cost <= budget, "{cost} system calls a round trip");
}

fn is_posix<E: Engine>(_: &Harness<E>) -> bool {
    E::NAME == "posix"
}

fn cost_per_round_trip(harness: &mut Harness<impl Engine>, connections: usize, last: bool) -> f64 {
    let (_, address) = harness.listen();
    let peers: Vec<_> = (0..connections).map(|_| harness.connect(address).0).collect();
    // Excludes the kernel's set-up of a connection from the measurement.
    harness.turn_until_quiet();
    let before = harness.engine.system_calls();
    let client = thread::spawn(move || ping(peers, ROUND_TRIPS / connections));
    echo(harness, ROUND_TRIPS / connections * connections, last);
    client.join().unwrap();
    let calls = harness.engine.system_calls() - before;
    println!("{} calls for {ROUND_TRIPS} round trips", calls);
    calls as f64 / ROUND_TRIPS as f64
}

/// Questions go out on all connections before any answer is awaited.
fn ping(mut peers: Vec<TcpStream>, rounds: usize) {
    for _ in 0..rounds {
        for peer in &mut peers {
            write(peer, b"ping");
        }
        for peer in &mut peers {
            assert_eq!(read(peer, 4), b"ping");
        }
    }
}

/// A server's loop, as tight as can be.
fn echo(harness: &mut Harness<impl Engine>, round_trips: usize, last: bool) {
    let mut completions = Vec::new();
    let mut answered = 0;
    let mut cached = Vec::new();
    while answered < round_trips {
        harness.engine.wait(None, &mut completions).unwrap();
        for completion in completions.drain(..) {
            match completion {
                Completion::Received(arrival) => {
                    let socket = arrival.socket;
                    let mut payload: Payload = cached.pop().unwrap_or_default();
                    payload.extend(harness.engine.receive(arrival).unwrap());
                    if let SendState::Done(mut payload) = harness.start_send(socket, payload, last)
                    {
                        payload.clear();
                        cached.push(payload);
                    }
                    answered += 1;
                }
                Completion::Sent { mut payload, .. } => {
                    payload.clear();
                    cached.push(payload);
                }
                _ => {}
            }
        }
    }
    // The last answers of an engine that queues them.
    harness.turn_until_quiet();
}
