//! Tests of dispatch.

use ucall_proto::Reservation;
use ucall_proto::http1::AccessRules;

use super::*;

struct Silent;

impl Handler for Silent {
    type Procedure = ();

    fn call(&mut self, (): &(), _: &Call<'_>, _: &Caller, _: &mut Reply<'_>) -> CallOutcome {
        CallOutcome::Done
    }
}

#[test]
fn the_load_follows_the_budget_and_a_drain_that_refuses_comes_first() {
    let mut config = WorkerConfig::new(AccessRules::new(true, &[], &[]).expect("no rules"));
    config.limits.held_bytes_max = 100;
    let procedures = Arc::new(Procedures::new());
    let mut context = WorkerContext::new(Silent, procedures, config, EngineClock::stopped());
    let (mut held, budget) = (Reservation::default(), context.budget().clone());
    for (bytes, drain, load, rejection) in [
        (100, Drain::No, LoadState::Normal, None),
        (101, Drain::No, LoadState::Overloaded, Some(Rejection::Overload)),
        (101, Drain::Serving, LoadState::Overloaded, Some(Rejection::Overload)),
        (101, Drain::Refusing, LoadState::Overloaded, Some(Rejection::Drain)),
        (0, Drain::Refusing, LoadState::Normal, Some(Rejection::Drain)),
    ] {
        held.resize(bytes, &budget);
        context.update_load();
        context.set_drain(drain);
        assert_eq!((context.load(), context.rejection), (load, rejection));
    }
}
