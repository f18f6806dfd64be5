//! Native procedures: beside those of the handler, at once and deferred.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ucall_proto::{CallOutcome, Reply, RpcError};
use ucall_server::{
    AccessLog, Drain, LogFormat, Message, NativeCall, NativeContext, NativeHandler, NativeModule,
    NativeOutcomes, NativeProcedure, Token,
};

use super::frames::framed;
use super::harness::{Harness, Procedure, call, post, reply, text};
use super::timeouts::Output;

/// What the handlers of a module have been told.
#[derive(Debug, Default)]
struct Events {
    /// By the text of the id; notifications have none.
    deferred: HashMap<Vec<u8>, Token>,
    cancelled: Vec<Token>,
    /// The deferred calls at the end of each turn that had some.
    turns: Vec<usize>,
    outcomes: Option<Arc<NativeOutcomes>>,
    deadline: Option<Instant>,
    /// The document that is shared, and those that had the params of a call.
    shared: Option<Arc<Vec<u8>>>,
    kept: Vec<Arc<Vec<u8>>>,
}

/// Echoes its params at once (`native.now`) or later (`native.later`).
#[derive(Debug)]
struct TestModule {
    procedures: Vec<NativeProcedure>,
    events: Arc<Mutex<Events>>,
}

struct TestHandler {
    events: Arc<Mutex<Events>>,
    new_calls: usize,
}

impl NativeModule for TestModule {
    fn procedures(&self) -> &[NativeProcedure] {
        &self.procedures
    }

    fn handler(&self, outcomes: Arc<NativeOutcomes>, _: Instant) -> Box<dyn NativeHandler> {
        self.events.lock().unwrap().outcomes = Some(outcomes);
        Box::new(TestHandler { events: self.events.clone(), new_calls: 0 })
    }
}

impl NativeHandler for TestHandler {
    fn call(&mut self, index: usize, call: NativeCall<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        let request = call.request;
        let mut events = self.events.lock().unwrap();
        if let (Some(document), Some(params)) = (events.shared.clone(), request.params) {
            assert!(document.as_ptr_range().contains(&params.as_ptr()));
            events.kept.push(document);
        }
        drop(events);
        if index == 0 {
            reply.result().extend_from_slice(request.params.unwrap_or(b"null"));
            return CallOutcome::Done;
        }
        self.new_calls += 1;
        match call.defer(0) {
            Ok(token) => {
                let id = request.id.unwrap_or_default().to_vec();
                self.events.lock().unwrap().deferred.insert(id, token);
                CallOutcome::Deferred
            }
            Err(error) => {
                reply.error(&error);
                CallOutcome::Done
            }
        }
    }

    fn share(&mut self, document: Option<&Arc<Vec<u8>>>) {
        self.events.lock().unwrap().shared = document.cloned();
    }

    fn cancel(&mut self, token: Token, _: Instant) {
        self.events.lock().unwrap().cancelled.push(token);
    }

    fn turn_ended(&mut self, _: Instant, _: &mut dyn NativeContext) {
        if self.new_calls > 0 {
            self.events.lock().unwrap().turns.push(std::mem::take(&mut self.new_calls));
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.events.lock().unwrap().deadline
    }
}

fn module(events: &Arc<Mutex<Events>>) -> Arc<dyn NativeModule> {
    let procedures = ["native.now", "native.later"].map(|name| NativeProcedure {
        name: name.to_owned(),
        summary: "Returns its params.",
        params: r#"{"type":"object"}"#,
        result: "{}",
        item: None,
    });
    Arc::new(TestModule { procedures: procedures.into(), events: events.clone() })
}

fn harness(timeout: Option<Duration>) -> (Harness, Arc<Mutex<Events>>) {
    let events = Arc::default();
    let harness = Harness::with(|_| {});
    harness.procedures.insert_native(module(&events), timeout);
    (harness, events)
}

/// Sends the outcome of a deferred call, as another thread does.
fn complete(events: &Mutex<Events>, id: &str, outcome: Result<Vec<u8>, RpcError>) {
    let events = events.lock().unwrap();
    events.outcomes.as_ref().unwrap().send(events.deferred[id.as_bytes()], outcome.into());
}

fn running(harness: &Harness) -> usize {
    harness.limit.running()
}

#[test]
fn native_and_other_procedures_answer_in_one_batch() {
    let (mut harness, events) = harness(None);
    let peer = harness.connect();
    let (one, two) = (call("native.now", "[1]", "1"), call("echo", "[2]", "2"));
    let (three, four) = (call("native.later", "[3]", "3"), call(r"native\u002enow", "[4]", "4"));
    peer.write(format!("[{one},{two},{three},{four}]").as_bytes());
    harness.turn();
    assert_eq!((text(&peer), running(&harness)), (String::new(), 1));
    complete(&events, "3", Ok(b"[3]".to_vec()));
    harness.turn();
    let items: Vec<_> = (1..=4)
        .map(|id| reply(&id.to_string(), &format!("[{id}]")).trim_end().to_owned())
        .collect();
    assert_eq!(text(&peer), format!("[{}]\n", items.join(",")));
    assert_eq!((running(&harness), harness.stats().calls), (0, 4));
    assert_eq!(events.lock().unwrap().turns, [1]);
}

#[test]
fn native_procedures_get_base64_in_place_of_parts() {
    let (mut harness, _) = harness(None);
    let peer = harness.connect();
    for (params, expected) in [
        (r#"[{"$part":0},1]"#, reply("1", r#"["YWJj",1]"#)),
        (r#"[{"$part":1}]"#, "-32602".to_owned()),
        (r#"[{"$part":0},{"$part":0}]"#, "part 0 is used twice".to_owned()),
    ] {
        peer.write(&framed(&call("native.now", params, "1"), &[b"abc"]));
        harness.turn();
        assert!(text(&peer).contains(&expected), "{params}");
    }
}

#[test]
fn a_turn_ends_once_for_all_calls_of_all_connections() {
    let (mut harness, events) = harness(None);
    let peers: Vec<_> = (0..3).map(|_| harness.connect()).collect();
    for (number, peer) in peers.iter().enumerate() {
        let id = format!("\"{number}\"");
        peer.write(call("native.later", "[]", &id).repeat(2).as_bytes());
    }
    harness.turn();
    assert_eq!(events.lock().unwrap().turns, [6]);
    complete(&events, "\"2\"", Err(RpcError::new(7, "no")));
    harness.turn();
    assert!(text(&peers[2]).contains(r#""id":"2","error":{"code":7,"#));
    assert_eq!(running(&harness), 5);
}

#[test]
fn calls_go_ahead_of_a_long_document_whose_memory_is_shared() {
    let params = format!("[\"{}\"]", "x".repeat(2 << 20));
    let request = format!(r#"{{"jsonrpc":"2.0","method":"native.later","params":{params}}}"#);
    for input in [format!("{request}\n"), post(&request)] {
        let (mut harness, events) = harness(None);
        let (slow, quick) = (harness.connect(), harness.connect());
        let mut turns = 0;
        input.as_bytes().chunks(60_000).for_each(|chunk| slow.write(chunk));
        while events.lock().unwrap().kept.is_empty() {
            quick.write(call("echo", "[1]", "1").as_bytes());
            harness.turn();
            assert_eq!(text(&quick), reply("1", "[1]"), "in turn {turns}");
            turns += 1;
            assert!(turns < 100, "it is not shared");
        }
        // A turn receives and scans 256 KiB of it at most.
        assert!(turns >= 8, "{turns}");
        assert_eq!(events.lock().unwrap().kept.len(), 1);
    }
}

#[test]
fn a_name_means_the_procedure_that_was_registered_last() {
    let (mut harness, events) = harness(None);
    let peer = harness.connect();
    let ask = |harness: &mut Harness| {
        peer.write((call("native.now", "[1]", "1") + &call("echo", "[2]", "2")).as_bytes());
        harness.turn();
        text(&peer)
    };
    let both = reply("1", "[1]") + &reply("2", "[2]");
    assert_eq!(ask(&mut harness), both);
    harness.procedures.insert("native.now", Procedure::Large);
    assert!(harness.procedures.contains("native.now"));
    assert_eq!(ask(&mut harness), reply("1", "\"x\"") + &reply("2", "[2]"));
    harness.procedures.insert_native(module(&events), None);
    assert_eq!(ask(&mut harness), both);
}

#[test]
fn a_call_that_ends_early_is_cancelled_and_its_outcome_dropped() {
    let (mut harness, events) = harness(None);
    let peer = harness.connect();
    let cancel = r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}"#;
    peer.write(call("native.later", "[]", "1").as_bytes());
    harness.turn();
    peer.write(cancel.as_bytes());
    harness.turn();
    assert!(text(&peer).contains(r#""id":1,"error":{"code":-32800,"#));
    peer.write(call("native.later", "[]", "2").as_bytes());
    harness.turn();
    peer.reset();
    harness.turns(2);
    let tokens = ["1", "2"].map(|id| events.lock().unwrap().deferred[id.as_bytes()]);
    assert_eq!(events.lock().unwrap().cancelled, tokens);
    complete(&events, "1", Ok(b"1".to_vec()));
    complete(&events, "2", Ok(b"2".to_vec()));
    harness.turn();
    assert_eq!((text(&peer), running(&harness)), (String::new(), 0));
}

#[test]
fn a_deadline_precedes_an_outcome_of_the_same_turn() {
    let (mut harness, events) = harness(Some(Duration::from_millis(1)));
    let peer = harness.connect();
    peer.write(call("native.later", "[]", "1").as_bytes());
    harness.turn();
    let due = harness.now() + Duration::from_millis(1);
    assert_eq!(harness.worker.deadline(), Some(due));
    let (network, outcome_of) = (harness.network.clone(), events.clone());
    harness.worker.handler_mut().after_wait = Some(Box::new(move || {
        network.advance(Duration::from_millis(1));
        complete(&outcome_of, "1", Ok(b"1".to_vec()));
    }));
    harness.turn();
    assert!(text(&peer).contains(r#""id":1,"error":{"code":-32001,"#));
    assert_eq!((events.lock().unwrap().cancelled.len(), running(&harness)), (1, 0));
}

#[test]
fn the_timeout_of_a_procedure_is_a_deadline_of_its_calls() {
    let after = |timeout_ms: Option<u64>, requested_ms: u32| {
        let (mut harness, _events) = harness(timeout_ms.map(Duration::from_millis));
        let peer = harness.connect();
        let request = post(&call("native.later", "[]", "1"));
        let header = format!("\r\nUcall-Timeout-Ms: {requested_ms}\r\n\r\n");
        peer.write(request.replace("\r\n\r\n", &header).as_bytes());
        let waited = harness.turn_until(|_| peer.sends() > 0);
        assert!(text(&peer).contains(r#""id":1,"error":{"code":-32001,"#));
        waited.as_millis()
    };
    assert_eq!((after(Some(100), 15_000), after(Some(20_000), 50), after(None, 70)), (100, 50, 70));
}

#[test]
fn the_duration_of_a_deferred_call_is_that_until_its_outcome() {
    let (events, output) = (Arc::default(), Output::default());
    let log = Arc::new(AccessLog::new(LogFormat::Json, 1.0, Box::new(output.clone())));
    log.start(Arc::default()).unwrap();
    let mut harness = Harness::with(|config| config.access_log = Some(log.clone()));
    harness.procedures.insert_native(module(&events), None);
    let peer = harness.connect();
    peer.write(call("native.later", "[]", "1").as_bytes());
    harness.turn();
    harness.advance(Duration::from_millis(1_500));
    complete(&events, "1", Ok(b"1".to_vec()));
    harness.turn();
    log.flush(Duration::from_secs(60));
    assert!(output.text().contains(r#""duration_ms":1500.000,"#), "{}", output.text());
}

#[test]
fn a_handler_s_deadline_is_the_worker_s() {
    let (mut harness, events) = harness(None);
    harness.turn();
    let soon = harness.now() - Duration::from_secs(1);
    events.lock().unwrap().deadline = Some(soon);
    assert_eq!(harness.worker.deadline(), Some(soon));
}

#[test]
fn native_calls_count_against_the_limit_of_the_handler() {
    let (mut harness, events) = harness(None);
    let permits: Vec<_> =
        (1..10_000).map(|_| harness.worker.handler_mut().calls.admit(None).unwrap()).collect();
    let peer = harness.connect();
    let notification = r#"{"jsonrpc":"2.0","method":"native.later"}"#;
    peer.write((notification.to_owned() + &call("native.later", "[]", "2")).as_bytes());
    harness.turn();
    assert!(text(&peer).contains(r#""id":2,"error":{"code":-32003,"#));
    drop(permits);
    assert_eq!(running(&harness), 1);
    complete(&events, "", Ok(b"1".to_vec()));
    harness.turn();
    assert_eq!((text(&peer), running(&harness)), (String::new(), 0));
}

#[test]
fn a_connection_with_many_calls_leaves_the_last_ones_to_others() {
    let (mut harness, events) = harness(None);
    let permits: Vec<_> =
        (0..8_992).map(|_| harness.worker.handler_mut().calls.admit(None).unwrap()).collect();
    let (hog, other) = (harness.connect(), harness.connect());
    let notification = r#"{"jsonrpc":"2.0","method":"native.later"}"#;
    hog.write((notification.repeat(300) + &call("native.later", "[]", "1")).as_bytes());
    harness.turn();
    assert!(text(&hog).contains(r#""id":1,"error":{"code":-32003,"#));
    assert_eq!(running(&harness) - permits.len(), 112, "as many as leave eight times of them");
    other.write(call("native.later", "[]", "2").as_bytes());
    harness.turn();
    complete(&events, "2", Ok(b"3".to_vec()));
    harness.turn();
    assert!(text(&other).contains(r#""id":2,"result":3"#));
    drop(permits);
    hog.write(call("native.later", "[]", "4").as_bytes());
    harness.turn();
    assert_eq!((text(&hog), running(&harness)), (String::new(), 113));
}

#[test]
fn a_drain_waits_for_native_calls() {
    let (mut harness, events) = harness(None);
    let peer = harness.connect();
    peer.write(post(&call("native.later", "[]", "1")).as_bytes());
    harness.turn();
    harness.worker.mailbox().send(Message::drain(Drain::Refusing));
    harness.turns(3);
    assert!(!harness.has_stopped());
    complete(&events, "1", Ok(b"1".to_vec()));
    harness.turn_until(Harness::has_stopped);
    assert!(text(&peer).contains(r#""id":1,"result":1}"#));
}

#[test]
fn a_drain_that_ends_first_abandons_native_calls() {
    let events = Arc::default();
    let mut harness = Harness::with(|config| config.drain_timeout = Duration::from_millis(1));
    harness.procedures.insert_native(module(&events), None);
    let peer = harness.connect();
    peer.write(post(&call("native.later", "[]", "1")).as_bytes());
    harness.turn();
    harness.worker.mailbox().send(Message::drain(Drain::Refusing));
    harness.turn_until(Harness::has_stopped);
    assert!(text(&peer).contains(r#""id":1,"error":{"code":-32007,"#));
    assert_eq!(events.lock().unwrap().cancelled.len(), 1);
}
