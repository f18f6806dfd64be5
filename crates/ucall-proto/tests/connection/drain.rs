//! A server that is on its way to its end, and what its connections do about it.

use ucall_proto::{Drain, LoadState, Wish};

use crate::harness::{Driver, bodies, later, post, sum, sum_reply};

#[test]
fn http_says_that_a_reply_is_its_last() {
    for drain in [Drain::Serving, Drain::Refusing] {
        let mut driver = Driver::new();
        driver.receive(post(&sum(1)).as_bytes());
        assert!(!driver.sent().contains("Connection: close"));
        driver.drain = drain;
        driver.receive((post(&sum(2)) + &post(&sum(3))).as_bytes());
        let sent = driver.sent();
        assert!(sent.contains("Connection: close"), "{sent}");
        assert_eq!(bodies(&sent), [sum_reply(2)]);
        assert_eq!(driver.connection.wish(), Wish::Finish);
    }
}

#[test]
fn a_deferred_reply_over_http_is_the_last_too() {
    let mut driver = Driver::new();
    driver.receive((post(&later(1)) + &post(&later(2))).as_bytes());
    driver.drain = Drain::Refusing;
    let [first, second] = driver.service.deferred[..] else { panic!("two deferred calls") };
    driver.complete(first, Ok(b"1"));
    assert!(!driver.sent().contains("Connection: close"));
    assert_eq!(driver.connection.wish(), Wish::Receive);
    driver.complete(second, Ok(b"2"));
    assert!(driver.sent().contains("Connection: close"));
    assert_eq!(driver.connection.wish(), Wish::Finish);
}

#[test]
fn raw_goes_on_while_it_is_served_and_ends_when_it_is_refused() {
    let mut driver = Driver::new();
    driver.drain = Drain::Serving;
    driver.receive(sum(1).as_bytes());
    assert_eq!((driver.sent(), driver.connection.wish()), (sum_reply(1) + "\n", Wish::Receive));
    driver.receive(later(2).as_bytes());
    driver.drain = Drain::Refusing;
    driver.receive((sum(3) + &sum(4)).as_bytes());
    assert_eq!(driver.sent(), sum_reply(3) + "\n" + &sum_reply(4) + "\n");
    assert_eq!(driver.connection.wish(), Wish::Receive, "the deferred call is waited for");
    let deferred = driver.service.deferred[0];
    driver.complete(deferred, Ok(b"2"));
    assert_eq!(driver.connection.wish(), Wish::Finish);
}

#[test]
fn overload_refuses_until_the_drain_does() {
    for (drain, is_refused) in [(Drain::No, true), (Drain::Serving, true), (Drain::Refusing, false)]
    {
        let mut driver = Driver::new();
        (driver.drain, driver.load) = (drain, LoadState::Overloaded);
        let request = post(&sum(1));
        driver.receive(&request.as_bytes()[..request.len() - 10]);
        let sent = driver.sent();
        assert_eq!(sent.contains(" 503 ") && sent.contains("Retry-After: 1\r\n"), is_refused);
    }
}
