//! The layout of the configuration, and what it refuses.

use super::*;
use std::io::Write;
use std::mem::offset_of;
use std::process::{Command, Stdio};

#[test]
fn an_older_configuration_is_read_and_written_within_its_size() {
    let mut given = [Config { port: 99, ..Config::EMPTY }, Config { port: 77, ..Config::EMPTY }];
    // SAFETY: the first of the two has that size.
    let mut read = unsafe { Config::read(given.as_ptr()) }.unwrap();
    assert_eq!((read.port, read.size), (99, FIRST_SIZE));
    read.apply_defaults().unwrap();
    // SAFETY: as above.
    unsafe { read.write(given.as_mut_ptr()) };
    assert_eq!((given[0].queue_depth, given[1].queue_depth), (QUEUE_DEPTH, 0));
}

#[test]
fn an_implausible_size_is_refused() {
    for size in [1, FIRST_SIZE - 1, SIZE_MAX + 1, usize::MAX] {
        let given = Config { size, ..Config::EMPTY };
        // SAFETY: such a size is rejected before anything else is read.
        assert!(unsafe { Config::read(&raw const given) }.is_err(), "{size}");
    }
}

/// There is no padding after the last field, which a later version could use for a field: a
/// program's padding is not zero for sure, and its size would include it.
#[test]
fn the_last_field_ends_where_the_configuration_does() {
    let end = offset_of!(Config, compression_max_bytes) + size_of::<usize>();
    assert_eq!(end, size_of::<Config>());
}

#[test]
fn a_newer_configuration_is_refused_only_if_it_sets_new_fields() {
    let mut given = [Config::EMPTY; 2];
    given[0].size = size_of_val(&given);
    // SAFETY: two are twice as large.
    unsafe {
        Config::read(given.as_ptr()).unwrap();
        given[1].port = 1;
        assert!(Config::read(given.as_ptr()).unwrap_err().contains("newer"));
    }
}

/// C code that asserts the offset of each field of `ucall_config_t`.
fn layout_in_c() -> String {
    macro_rules! assertions {
        ($($field:ident)*) => {{
            let mut text = String::from("#include <ucall/ucall.h>\n");
            $(text += &format!(
                "_Static_assert(offsetof(ucall_config_t, {0}) == {1}, \"{0}\");\n",
                stringify!($field),
                offset_of!(Config, $field),
            );)*
            text
        }};
    }
    let fields = assertions! {
        size hostname port queue_depth max_procedures serving_threads logs_file_descriptor
        logs_format logs_callback logs_tag with_peers auth auth_tag
        max_batch_calls max_connections max_lifetime_ms
        max_lifetime_exchanges use_ssl ssl_private_key_path ssl_certificates_paths
        ssl_certificates_count engine pick_port max_head_bytes max_headers max_body_bytes
        max_nesting max_reply_bytes max_id_bytes max_pipeline max_output_bytes
        max_running_calls head_timeout_ms body_timeout_ms idle_timeout_ms send_timeout_ms
        timeout_ms allowed_hosts allowed_hosts_count allow_origins allow_origins_count
        max_held_bytes ssl_private_key_password ssl_client_authorities_path ssl_client_auth
        handshake_timeout_ms unix_mode max_chunk_overhead_bytes max_discarded_bytes
        discard_timeout_ms max_frame_bytes max_message_frames ping_interval_ms
        max_unanswered_pings max_meta_bytes max_stream_bytes max_subscriptions
        max_topic_bytes udp udp_auth udp_without_dedupe udp_port max_source_calls
        max_datagram_bytes max_dedupe_bytes dedupe_ms xdp
        xdp_busy_poll max_source_calls_per_s
        trusted_proxies trusted_proxies_count max_waiting_messages max_waiting_message_bytes
        max_connection_calls max_connections_per_peer
        health_checks metrics max_parts max_body_ratio compression_min_bytes
        compression_max_bytes
    };
    let size = size_of::<Config>();
    format!("{fields}_Static_assert(sizeof(ucall_config_t) == {size}, \"size\");\n")
}

#[test]
fn the_header_declares_the_same_layout() {
    let mut compiler = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-x", "c", "-I"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../include"))
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    compiler.stdin.take().unwrap().write_all(layout_in_c().as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success());
}

#[test]
fn invalid_settings_are_refused() {
    assert!(Config { max_nesting: 1_024, ..Config::EMPTY }.apply_defaults().is_ok());
    assert!(Config { max_nesting: 1_025, ..Config::EMPTY }.apply_defaults().is_err());
    assert!(Config { unix_mode: 0o777, ..Config::EMPTY }.apply_defaults().is_ok());
    assert!(Config { unix_mode: 0o1000, ..Config::EMPTY }.apply_defaults().is_err());
    assert!(Config { udp: 1, use_ssl: 1, ..Config::EMPTY }.apply_defaults().is_err());
    let too_long = Config { max_datagram_bytes: 65_508, ..Config::EMPTY };
    assert!({ too_long }.apply_defaults().is_err());
    for (dedupe_ms, expected) in [(0, true), (1, false), (4_999, false), (5_000, true)] {
        let mut given = Config { dedupe_ms, ..Config::EMPTY };
        assert_eq!(given.apply_defaults().is_ok(), expected, "{dedupe_ms}");
    }
    for (min, max, expected) in [(0, 9, true), (9, 9, true), (10, 9, false), (4 << 20, 0, true)] {
        let mut given =
            Config { compression_min_bytes: min, compression_max_bytes: max, ..Config::EMPTY };
        let is_allowed = expected && (min == 0 || cfg!(feature = "compression"));
        assert_eq!(given.apply_defaults().is_ok(), is_allowed, "{min} {max}");
    }
    let xdp = c"eth0".as_ptr();
    assert!(Config { xdp, ..Config::EMPTY }.apply_defaults().is_err());
    assert!(Config { xdp, udp: 1, ..Config::EMPTY }.apply_defaults().is_ok());
    assert!(Config { xdp_busy_poll: 1, udp: 1, ..Config::EMPTY }.apply_defaults().is_err());
}
