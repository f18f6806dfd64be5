//! One suite for every engine. A case is a function over any [`Engine`](ucall_engine::Engine). It
//! uses sockets of the standard library, or the fake's peers if these suffice, waits for events
//! with a time limit, and asserts nothing about time.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod accepting;
mod cost;
mod datagrams;
mod harness;
mod lifetime;
#[cfg(target_os = "linux")]
#[path = "../skipped/mod.rs"]
mod skipped;
mod streams;
mod targets;
mod watches;

/// Runs every case on every engine. `uring_*` use only the features of that kernel version.
macro_rules! conformance {
    ($($module:ident: $($case:ident)*;)*) => {
        conformance!(@engine posix = harness::posix(), $($module: $($case)*;)*);
        #[cfg(target_os = "linux")]
        conformance!(@engine uring = harness::uring((u16::MAX, 0)), $($module: $($case)*;)*);
        #[cfg(target_os = "linux")]
        conformance!(@engine uring_5_19 = harness::uring((5, 19)), $($module: $($case)*;)*);
        #[cfg(target_os = "linux")]
        conformance!(@engine uring_6_0 = harness::uring((6, 0)), $($module: $($case)*;)*);
        #[cfg(target_os = "linux")]
        conformance!(@engine uring_6_1 = harness::uring((6, 1)), $($module: $($case)*;)*);
        #[cfg(target_os = "linux")]
        conformance!(@engine uring_6_10 = harness::uring((6, 10)), $($module: $($case)*;)*);
    };
    (@engine $name:ident = $harness:expr, $($module:ident: $($case:ident)*;)*) => {
        mod $name {
            use super::*;
            $(mod $module {
                use super::*;
                $(#[test]
                fn $case() {
                    if let Some(mut harness) = $harness {
                        super::super::$module::$case(&mut harness);
                    }
                })*
            })*
        }
    };
}

conformance! {
    streams:
        echoes
        takes_bytes_split_anywhere
        serves_many_connections
        moves_megabytes_both_ways
        submits_what_it_has_without_a_wait
        reports_the_progress_of_a_send
        sends_parts_in_order
        sends_an_empty_payload_at_once
        refuses_a_second_send_and_returns_it
        adopts_a_connected_socket
        adopts_a_unix_socket
        finds_that_a_unix_peer_has_left
        reports_a_peer_that_leaves_after_its_end
        reports_an_arrival_again_until_it_is_taken
        delivers_the_bytes_of_several_sockets
        takes_an_arrival_once
        a_fast_peer_leaves_buffers_to_others
        pauses_and_resumes
        a_stream_that_resumes_receives_little_at_once
        sends_to_a_peer_that_shut_down_its_side
        shuts_down_after_the_send_in_flight
        reports_a_reset
        reports_a_reset_after_bytes_when_checked
        reports_the_peer_address;
    targets:
        fills_with_bytes_that_arrive_later
        fills_every_mix_of_early_and_late_bytes
        fills_one_target_after_another
        fills_megabytes
        fills_a_vector_after_its_contents
        fills_while_paused
        extra_room_takes_bytes_that_arrive_together
        returns_an_empty_target_at_once
        returns_a_target_when_the_stream_ends
        returns_a_target_of_a_stream_that_has_ended
        returns_a_target_when_closed
        refuses_a_second_target_and_returns_it;
    accepting:
        pauses_and_resumes_a_listener
        distinguishes_listeners
        accepts_from_a_unix_socket
        a_shared_listener_pauses_after_each_connection
        a_shared_listener_may_be_ended_elsewhere
        a_shared_listener_that_pauses_leaves_its_connection_to_others
        closing_a_listener_stops_listening
        rebinds_at_once_after_a_drop;
    lifetime:
        a_shutdown_reaches_no_later_connection
        forgets_closed_ids
        returns_a_payload_when_closed
        sends_the_last_bytes_before_it_closes
        returns_what_an_unknown_id_was_given
        gives_a_new_generation_to_a_reused_index
        closes_with_unread_bytes
        drops_with_everything_in_flight
        survives_churn;
    watches:
        reports_a_pipe_once_for_each_arming
        reports_existing_readiness
        watches_for_writing
        watches_an_epoll_descriptor
        forgets_a_closed_watch
        wakes_from_another_thread
        wakers_outlive_the_engine
        returns_at_the_deadline
        a_far_deadline_delays_no_nearer_one
        polls_once_when_the_deadline_has_passed;
    datagrams:
        carries_datagrams_both_ways
        carries_the_largest_and_the_smallest
        carries_bursts_in_order
        reports_again_what_the_caller_has_left
        replies_from_the_address_that_was_asked
        counts_the_datagrams_that_it_drops
        many_datagrams_share_system_calls
        pauses_and_resumes_datagrams
        closes_datagrams;
    cost:
        one_connection_costs_few_system_calls
        last_sends_cost_no_system_call
        many_connections_share_system_calls;
}

/// The cases that the fake engine must pass as well, so that tests on top of it are meaningful.
macro_rules! conformance_of_fakes {
    ($($cases:tt)*) => {
        conformance!(@engine fake = harness::fake(), $($cases)*);
        conformance!(@engine fake_slow = harness::fake_slow(), $($cases)*);
    };
}

conformance_of_fakes! {
    streams:
        echoes
        takes_bytes_split_anywhere
        sends_an_empty_payload_at_once
        reports_an_arrival_again_until_it_is_taken
        delivers_the_bytes_of_several_sockets
        takes_an_arrival_once
        pauses_and_resumes
        sends_to_a_peer_that_shut_down_its_side
        reports_a_reset;
    targets:
        fills_with_bytes_that_arrive_later
        fills_every_mix_of_early_and_late_bytes
        fills_one_target_after_another
        fills_megabytes
        fills_a_vector_after_its_contents
        fills_while_paused
        extra_room_takes_bytes_that_arrive_together
        returns_an_empty_target_at_once
        returns_a_target_when_the_stream_ends
        returns_a_target_of_a_stream_that_has_ended
        returns_a_target_when_closed
        refuses_a_second_target_and_returns_it;
    accepting:
        pauses_and_resumes_a_listener;
    lifetime:
        returns_what_an_unknown_id_was_given
        gives_a_new_generation_to_a_reused_index;
}
