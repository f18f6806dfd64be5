//! Work that must not grow with what a connection has waiting, in instructions: callgrind counts
//! them for this program, which runs one case with few and with many of what waits.

use std::process::Command;

use ucall_engine::fake::SendMode;
use ucall_server::{Overflow, ServerMessage};

use crate::harness::{Harness, text};

/// Names the variable of the environment that says how much waits in the case.
const WAITING: &str = "UCALL_TEST_GROWTH";
const STEPS: usize = 100;
const FEW: usize = 64;
const MANY: usize = 4_096;

fn waiting() -> usize {
    std::env::var(WAITING).unwrap().parse().unwrap()
}

/// Runs the steps of a case. Callgrind counts the instructions of this function alone.
#[inline(never)]
fn measured(steps: impl FnOnce()) {
    steps();
}

/// The instructions of a step; `None` without valgrind.
fn instructions(case: &str, waiting: usize) -> Option<u64> {
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*growth::measured*")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", case, "--ignored", "--test-threads=1"])
        .env(WAITING, waiting.to_string())
        .output()
        .ok()?;
    let report = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{report}");
    let (_, count) = report.split_once("Collected : ").unwrap();
    let count: u64 = count.split_whitespace().next().unwrap().parse().unwrap();
    assert!(count > 0, "{report}");
    Some(count / STEPS as u64)
}

fn assert_no_growth(case: &str) {
    let (Some(few), Some(many)) = (instructions(case, FEW), instructions(case, MANY)) else {
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
    let waiting = waiting();
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
    let mut cancel_and_await = |ids: std::ops::Range<usize>, reply: &str| {
        for id in ids {
            let id = waiting + id;
            let request = r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"#;
            peer.write(format!("{request}{id}}}}}").as_bytes());
        }
        let request = r#"{"jsonrpc":"2.0","method":"echo","id":1,"params":"#;
        peer.write(format!("{request}{reply}}}").as_bytes());
        harness.turn_until(|_| text(&peer).contains(reply));
    };
    // The first one makes the index.
    cancel_and_await(0..1, "[1]");
    measured(|| cancel_and_await(1..STEPS + 1, "[2]"));
}

#[test]
fn an_item_of_a_batch_costs_the_same_beside_many_calls() {
    assert_no_growth("growth::case_of_items_of_a_batch");
}

#[test]
#[ignore = "a case, which counts when it runs alone"]
fn case_of_items_of_a_batch() {
    let waiting = waiting();
    let mut harness = Harness::with(|config| config.limits.batch_calls_max = MANY);
    let peer = harness.connect();
    let request = |id| {
        let meta = r#""_meta":{"progressToken":1}"#;
        format!(r#"{{"jsonrpc":"2.0","method":"stream",{meta},"id":{id}}}"#)
    };
    let requests: Vec<String> = (0..waiting).map(request).collect();
    peer.write(format!("[{}]", requests.join(",")).as_bytes());
    harness.turn_until(|harness| harness.worker.handler_mut().unfinished.len() == waiting);
    let mut send_item = |step: usize| {
        // Far from one another, so that the last one found is no help.
        let id = step * (waiting / 2 + 1) % waiting;
        harness.items(&id.to_string(), Overflow::Pause, [format!("\"item {step}\"")]);
        assert!(text(&peer).contains(&format!("item {step}")));
    };
    send_item(0);
    measured(|| (1..=STEPS).for_each(send_item));
}

#[test]
fn a_message_to_a_full_client_costs_the_same_with_many_topics() {
    assert_no_growth("growth::case_of_messages");
}

#[test]
#[ignore = "a case, which counts when it runs alone"]
fn case_of_messages() {
    let waiting = waiting();
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
    measured(|| publish_and_await(0..STEPS, 1 + STEPS as u64));
}
