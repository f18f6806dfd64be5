//! The batcher beside one that starts at once and one that knows the future.

use std::time::Duration;

use super::super::Batcher;
use super::super::rate::Rate;
use super::simulator::{Callers, Device, Host, Outcome, Policy, Simulation, Times, micros, rules};

const SECOND: Duration = Duration::from_secs(1);
const LINE: Times = Times { fixed: micros(2000), each: micros(50), step: 1 };
const STEPS: Times = Times { fixed: micros(1000), each: micros(100), step: 8 };
const EACH: Times = Times { fixed: micros(50), each: micros(300), step: 1 };
/// As a launcher of kernels: any batch takes as long.
const CONSTANT: Times = Times { fixed: micros(5000), each: micros(0), step: 1 };
const LAUNCHER: Host = Host { reply: micros(20), holds: micros(2000) };

fn simulation(times: Times, size_max: usize, callers: Callers) -> Simulation {
    let (rules, device, length) = (rules(size_max), Device::Serial, 4 * SECOND);
    Simulation { rules, times, device, callers, host: Host::default(), length }
}

fn at_once(mut simulation: Simulation, running_max: usize, device: Device) -> Simulation {
    simulation.rules.running_max = running_max;
    simulation.device = device;
    simulation
}

/// Calls that arrive while a batch begins are seen late, so callers seem to return late.
fn launcher(callers: usize) -> Simulation {
    Simulation { host: LAUNCHER, ..simulation(CONSTANT, 64, Callers::closed(callers)) }
}

struct Compared {
    greedy: Outcome,
    batcher: Outcome,
    oracle: Outcome,
}

fn batched(simulation: &Simulation) -> Outcome {
    simulation.run(Policy::Batcher(Box::new(Batcher::new(simulation.rules))))
}

fn compare(simulation: &Simulation) -> Compared {
    Compared {
        greedy: simulation.run(Policy::Greedy),
        batcher: batched(simulation),
        oracle: simulation.run(Policy::Oracle(Rate::default())),
    }
}

fn capacity(times: Times, size_max: usize) -> f64 {
    simulation(times, size_max, Callers::closed(size_max)).best(size_max)
}

fn bursts(size: usize, every: Duration, count: usize) -> Callers {
    let of_burst =
        |burst: usize| (0..size).map(move |it| every * burst as u32 + micros(20) * it as u32);
    Callers::Open((0..count).flat_map(of_burst).collect())
}

fn scenarios() -> Vec<(String, Simulation)> {
    let mut all = Vec::new();
    for (name, times) in [("line", LINE), ("steps", STEPS), ("each", EACH)] {
        for count in [1, 2, 8, 64, 256, 512] {
            let simulation = simulation(times, 64, Callers::closed(count));
            all.push((format!("{name}, {count} in a loop"), simulation));
        }
        for load in [0.2, 0.5, 0.8, 0.95] {
            let rate = load * capacity(times, 64);
            let callers = Callers::poisson(rate, (4.0 * rate) as usize);
            all.push((format!("{name}, poisson {load}"), simulation(times, 64, callers)));
        }
    }
    let leave = Callers::Closed { count: 16, leave: 15, every: SECOND / 5 };
    all.push(("line, 16 of which 15 leave".into(), simulation(LINE, 64, leave)));
    let burst = bursts(20, micros(20_000), 200);
    all.push(("line, bursts of 20".into(), simulation(LINE, 64, burst)));
    for count in [8, 32, 64, 256] {
        all.push((format!("launcher, {count} in a loop"), launcher(count)));
    }
    for (name, device) in
        [("serial", Device::Serial), ("parallel", Device::Parallel), ("launched", Device::Launched)]
    {
        for count in [1, 8, 64, 512] {
            let one = simulation(LINE, 64, Callers::closed(count));
            all.push((format!("{name}, {count}, parallel=1"), at_once(one, 1, device)));
            let two = simulation(LINE, 64, Callers::closed(count));
            all.push((format!("{name}, {count}, parallel=2"), at_once(two, 2, device)));
        }
    }
    all
}

/// `cargo test -p ucall-server --lib batching -- --ignored --nocapture table`
#[test]
#[ignore = "prints what the others compare"]
fn table() {
    println!("{:32} {:^25} {:^25} {:^25}", "", "at once", "batcher", "knows the future");
    let columns = "share  p50    p99    size";
    println!("{:32} {columns:25} {columns:25} {columns:25}", "");
    for (name, simulation) in scenarios() {
        let callers = match simulation.callers {
            Callers::Closed { count, .. } => count,
            Callers::Open(_) => 64,
        };
        let best = simulation.best(callers);
        let row = |it: &Outcome| {
            let millis = |part| it.quantile(part).as_secs_f64() * 1e3;
            let share = it.per_second() / best;
            format!(
                "{share:4.2} {:6.2} {:6.2} {:5.1}",
                millis(0.5),
                millis(0.99),
                it.average_size()
            )
        };
        let Compared { greedy, batcher, oracle } = compare(&simulation);
        println!("{name:32} {:25} {:25} {:25}", row(&greedy), row(&batcher), row(&oracle));
    }
}

#[test]
fn callers_in_a_loop_are_served_as_fast_as_if_the_future_were_known() {
    for count in [8, 64, 256, 512] {
        let Compared { greedy, batcher, oracle } =
            compare(&simulation(LINE, 64, Callers::closed(count)));
        let (served, best) = (batcher.per_second(), oracle.per_second());
        assert!(served > 0.94 * best, "{count}: {served} of {best}");
        assert!(served > 0.99 * greedy.per_second(), "{count}");
    }
}

#[test]
fn callers_in_a_loop_share_a_batch_although_a_batch_delays_them() {
    for count in [8, 32, 64, 256] {
        let Compared { batcher, oracle, .. } = compare(&launcher(count));
        let (served, best) = (batcher.per_second(), oracle.per_second());
        assert!(served > 0.94 * best, "{count}: {served} of {best}");
    }
}

#[test]
fn eight_callers_make_batches_of_eight() {
    let Compared { batcher, .. } = compare(&simulation(LINE, 64, Callers::closed(8)));
    let whole = batcher.sizes.iter().filter(|size| **size == 8).count();
    assert!(whole * 10 >= batcher.sizes.len() * 8, "{whole} of {}", batcher.sizes.len());
}

#[test]
fn a_single_caller_is_not_delayed() {
    let Compared { batcher, .. } = compare(&simulation(LINE, 64, Callers::closed(1)));
    assert_eq!(batcher.waited_by_choice, Duration::ZERO);
    assert_eq!(batcher.quantile(1.0), LINE.of(1));
}

#[test]
fn arrivals_at_random_are_hardly_delayed() {
    let kinds = [("line", LINE), ("steps", STEPS), ("each", EACH)];
    for ((name, times), load) in
        kinds.into_iter().flat_map(|it| [0.2, 0.5, 0.8, 0.95].map(|load| (it, load)))
    {
        let rate = load * capacity(times, 64);
        let callers = Callers::poisson(rate, (4.0 * rate) as usize);
        let Compared { greedy, batcher, oracle } = compare(&simulation(times, 64, callers));
        for part in [0.5, 0.99] {
            let ideal = greedy.quantile(part).min(oracle.quantile(part));
            let took = batcher.quantile(part);
            assert!(took < ideal.mul_f64(1.3), "{name}, {load}, {part}: {took:?}, ideal {ideal:?}");
        }
    }
}

#[test]
fn callers_who_leave_are_waited_for_once() {
    let leave = Callers::Closed { count: 16, leave: 15, every: SECOND / 5 };
    let simulation = simulation(LINE, 64, leave);
    let Compared { greedy, batcher, .. } = compare(&simulation);
    assert!(batcher.waited_by_choice <= batcher.longest_batch);
    // The one that is left has nobody to wait for.
    assert_eq!(batcher.quantile(0.01), greedy.quantile(0.01));
}

#[test]
fn two_batches_at_once_are_never_slower_than_one() {
    for device in [Device::Serial, Device::Parallel, Device::Launched] {
        for count in [1, 8, 64, 512] {
            let served = |running_max| {
                let simulation = simulation(LINE, 64, Callers::closed(count));
                batched(&at_once(simulation, running_max, device)).per_second()
            };
            let (one, two) = (served(1), served(2));
            assert!(two > 0.97 * one, "{count}: {two} beside {one}");
            if count == 512 {
                let gain = two / one;
                let expected = match device {
                    Device::Serial => 1.0,
                    Device::Parallel => 2.0,
                    Device::Launched => 5.0 / 3.0,
                };
                assert!((gain - expected).abs() < 0.1, "{gain}, expected {expected}");
            }
        }
    }
}
