//! Work that must not grow with what a connection has waiting, in instructions: callgrind counts
//! them for this program, which runs one case with few and with many of what waits.

use std::process::Command;

use ucall_engine::fake::SendMode;
use ucall_server::{Overflow, ServerMessage};

use crate::harness::{Harness, text};

/// Names the case's sizes in the environment: what waits, and how many steps are measured.
const SIZES: &str = "UCALL_TEST_GROWTH";
const STEPS: u64 = 100;
const FEW: usize = 64;
const MANY: usize = 4_096;

fn sizes() -> (usize, usize) {
    let sizes = std::env::var(SIZES).unwrap();
    let (waiting, steps) = sizes.split_once(' ').unwrap();
    (waiting.parse().unwrap(), steps.parse().unwrap())
}

/// The instructions of a case; `None` without valgrind.
fn instructions(case: &str, waiting: usize, steps: u64) -> Option<u64> {
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", case, "--ignored", "--test-threads=1"])
        .env(SIZES, format!("{waiting} {steps}"))
        .output()
        .ok()?;
    let report = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{report}");
    let (_, count) = report.split_once("Collected : ").unwrap();
    count.split_whitespace().next().unwrap().parse().ok()
}

fn assert_no_growth(case: &str) {
    let of_step = |waiting| {
        let before = instructions(case, waiting, 0)?;
        Some(instructions(case, waiting, STEPS)?.saturating_sub(before) / STEPS)
    };
    let (Some(few), Some(many)) = (of_step(FEW), of_step(MANY)) else {
        return println!("skipped: valgrind is missing");
    };
    println!("{case}: {few} instructions with {FEW}, {many} with {MANY}");
    assert!(many < 2 * few, "{case}: {few} instructions with {FEW}, {many} with {MANY}");
}

#[test]
fn a_request_to_cancel_costs_the_same_beside_many_calls() {
    assert_no_growth("growth::case_of_requests_to_cancel");
}

#[test]
#[ignore = "a case, which counts when it runs alone"]
fn case_of_requests_to_cancel() {
    let (waiting, steps) = sizes();
    let mut harness = Harness::with(|config| {
        config.limits.connection_calls_max = 2 * MANY;
        config.limits.pipeline_max = 2 * MANY;
    });
    let peer = harness.connect();
    for id in 0..waiting {
        let request = r#"{"jsonrpc":"2.0","method":"stream","_meta":{"progressToken":1},"id":"#;
        peer.write(format!("{request}{id}}}").as_bytes());
    }
    let requests = |harness: &mut Harness| harness.worker.handler_mut().unfinished.len();
    harness.turn_until(|harness| requests(harness) == waiting);
    // The first one makes the index.
    for id in 0..=steps {
        let id = waiting + id;
        let request = r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"#;
        peer.write(format!("{request}{id}}}}}").as_bytes());
    }
    peer.write(br#"{"jsonrpc":"2.0","method":"echo","params":[1],"id":1}"#);
    harness.turn_until(|_| text(&peer).contains("[1]"));
}

#[test]
fn an_item_of_a_batch_costs_the_same_beside_many_calls() {
    assert_no_growth("growth::case_of_items_of_a_batch");
}

#[test]
#[ignore = "a case, which counts when it runs alone"]
fn case_of_items_of_a_batch() {
    let (waiting, steps) = sizes();
    let mut harness = Harness::with(|config| config.limits.batch_calls_max = MANY);
    let peer = harness.connect();
    let request = |id| {
        let meta = r#""_meta":{"progressToken":1}"#;
        format!(r#"{{"jsonrpc":"2.0","method":"stream",{meta},"id":{id}}}"#)
    };
    let requests: Vec<String> = (0..waiting).map(request).collect();
    peer.write(format!("[{}]", requests.join(",")).as_bytes());
    harness.turn_until(|harness| harness.worker.handler_mut().unfinished.len() == waiting);
    for step in 0..=steps {
        // Far from one another, so that the last one found is no help.
        let id = step * (waiting / 2 + 1) % waiting;
        harness.items(&id.to_string(), Overflow::Pause, [format!("\"item {step}\"")]);
        assert!(text(&peer).contains(&format!("item {step}")));
    }
}

#[test]
fn a_message_to_a_full_client_costs_the_same_with_many_topics() {
    assert_no_growth("growth::case_of_messages");
}

#[test]
#[ignore = "a case, which counts when it runs alone"]
fn case_of_messages() {
    let (waiting, steps) = sizes();
    let mut harness = Harness::with(|config| {
        config.subscriptions_max = waiting;
        config.limits.waiting_messages_max = waiting;
    });
    let peer = harness.connect();
    let publisher = harness.worker.publisher();
    for topic in 0..waiting {
        let id = peer.socket().unwrap();
        publisher.subscribe(id, &topic.to_string(), Overflow::DropOldest).unwrap();
    }
    peer.write(br#"{"jsonrpc":"2.0","method":"echo","params":[1],"id":1}"#);
    peer.set_send_mode(SendMode::Stalled);
    harness.turns(2);
    let mut publish_and_await = |numbers: std::ops::Range<usize>, dropped: u64| {
        for number in numbers {
            let topic = (number % waiting).to_string();
            publisher.publish(ServerMessage::new(&topic, "m", Some(b"[1]")));
        }
        harness.turn_until(|harness| harness.stats().dropped_messages == dropped);
    };
    // The reply is being sent, and one message more than may wait is dropped.
    publish_and_await(0..waiting + 1, 1);
    publish_and_await(0..steps, 1 + steps as u64);
}
