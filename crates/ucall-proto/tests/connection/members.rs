//! The members of params, which the scan notes for the services that need them.

use ucall_proto::{Call, CallOutcome, Limits, Reply, Service};

use crate::harness::{Driver, bodies, post};

/// Replies with the number of members in the call, or `null` without them.
struct Count<const NEEDED: bool>;

impl<const NEEDED: bool> Service for Count<NEEDED> {
    const NEEDS_MEMBERS: bool = NEEDED;

    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        let count = call.members.map_or("null".to_owned(), |members| members.len().to_string());
        reply.result().extend_from_slice(count.as_bytes());
        CallOutcome::Done
    }
}

/// The results for params with `count` members in the form of the fast path, with white space, and
/// in a batch.
fn results<S: Service>(service: S, count: usize) -> Vec<String> {
    let mut driver = Driver::serving(service, Limits::default());
    let params = format!("[{}]", vec!["1"; count].join(","));
    let call = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params},"id":1}}"#);
    for body in [call.clone(), format!(" {call}"), format!("[{call}]")] {
        driver.receive(post(&body).as_bytes());
    }
    let replies = bodies(std::str::from_utf8(&driver.out).unwrap());
    replies.iter().map(|it| it.split("result\":").nth(1).unwrap().replace(['}', ']'], "")).collect()
}

#[test]
fn members_come_with_a_call_up_to_32_of_them() {
    assert_eq!(results(Count::<true>, 2), ["2", "2", "2"]);
    assert_eq!(results(Count::<true>, 32), ["32", "32", "32"]);
    assert_eq!(results(Count::<true>, 33), ["null", "null", "null"]);
}

#[test]
fn a_service_that_needs_no_members_gets_none() {
    assert_eq!(results(Count::<false>, 2), ["null", "null", "null"]);
}
