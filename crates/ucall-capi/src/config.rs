//! `ucall_config_t`: the configuration of a server, with the values in force written back.
//!
//! The program passes the size of its configuration. One that was built against an older header has
//! fewer fields, and no more than its size is read or written. New fields go to the end.

use std::ffi::{c_char, c_int};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ucall_engine::Address;
use ucall_proto::Limits;
use ucall_proto::http1::AccessRules;
use ucall_proto::tls::{ClientAuth, TicketSecret};
use ucall_server::{IdentityFiles, Tls, TlsFiles, WorkerConfig, connections_allowed};

use crate::boundary::string;
use crate::descriptor::is_open_for_writing;
use crate::log::Format;

const PORT: u16 = 8545;
/// Only the owner may connect to a Unix socket.
const UNIX_MODE: u32 = 0o600;
const UNIX_MODE_MAX: u32 = 0o777;
const QUEUE_DEPTH: u16 = 512;
const CALLBACKS_MAX: u16 = 1_024;
const DEFERRED_MAX: u32 = 10_000;
/// `ucall_client_auth_t`.
const CLIENT_AUTH_NONE: u32 = 1;
const CLIENT_AUTH_OPTIONAL: u32 = 2;
const CLIENT_AUTH_REQUIRED: u32 = 3;
/// Larger than the configuration of any version.
const SIZE_MAX: usize = 64 << 10;

/// `ucall_config_t`; the header explains each field. Zero means the default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the header explains each field")]
pub struct Config {
    pub hostname: *const c_char,
    pub port: u16,
    pub queue_depth: u16,
    pub max_callbacks: u16,
    pub max_threads: u16,
    pub logs_file_descriptor: i32,
    pub logs_format: *const c_char,
    pub max_batch_size: u16,
    pub max_concurrent_connections: u32,
    pub max_lifetime_micro_seconds: u32,
    pub max_lifetime_exchanges: u32,
    pub use_ssl: u8,
    pub ssl_private_key_path: *const c_char,
    pub ssl_certificates_paths: *const *const c_char,
    pub ssl_certificates_count: usize,
    pub engine: u32,
    pub pick_port: u8,
    pub max_head_bytes: u32,
    pub max_headers: u32,
    pub max_body_bytes: u32,
    pub max_nesting: u32,
    pub max_reply_bytes: u32,
    pub max_id_bytes: u32,
    pub max_pipeline: u32,
    pub max_output_bytes: u32,
    pub max_deferred_calls: u32,
    pub head_timeout_ms: u32,
    pub body_timeout_ms: u32,
    pub idle_timeout_ms: u32,
    pub send_timeout_ms: u32,
    pub call_timeout_ms: u32,
    pub allowed_hosts: *const *const c_char,
    pub allowed_hosts_count: usize,
    pub allow_origins: *const *const c_char,
    pub allow_origins_count: usize,
    pub max_held_bytes: u32,
    pub ssl_private_key_password: *const c_char,
    pub ssl_client_authorities_path: *const c_char,
    pub ssl_client_auth: u32,
    pub handshake_timeout_ms: u32,
    pub unix_mode: u32,
    pub max_chunk_overhead_bytes: u32,
    pub max_discarded_bytes: u32,
    pub discard_timeout_ms: u32,
    pub max_frame_bytes: u32,
    pub max_message_frames: u32,
    pub ping_interval_ms: u32,
    pub max_unanswered_pings: u32,
    pub max_meta_bytes: u32,
    pub max_stream_bytes: u32,
    pub max_subscriptions: u32,
    pub max_topic_bytes: u32,
}

impl Config {
    /// All defaults: every field is zero.
    pub const EMPTY: Self = {
        // SAFETY: all zeros are valid numbers and pointers.
        unsafe { std::mem::zeroed() }
    };

    /// Reads the program's configuration. Fields that this version does not know must be zero.
    ///
    /// # Safety
    /// `config` is NULL, or readable for `size` bytes.
    pub(crate) unsafe fn read(config: *const Self, size: usize) -> Result<Self, String> {
        let mut whole = Self::EMPTY;
        if config.is_null() {
            return Ok(whole);
        }
        if size > SIZE_MAX {
            return Err(format!("config: no version has a size of {size} bytes"));
        }
        let known = size.min(size_of::<Self>());
        // SAFETY: our caller says that the bytes are readable; all bytes make numbers and pointers.
        let beyond = unsafe {
            let bytes = config.cast::<u8>();
            (&raw mut whole).cast::<u8>().copy_from_nonoverlapping(bytes, known);
            std::slice::from_raw_parts(bytes.add(known), size - known)
        };
        if beyond.iter().any(|&byte| byte != 0) {
            return Err("config: it sets fields that the library does not have: \
                        the header is newer than the library"
                .into());
        }
        Ok(whole)
    }

    /// Writes back the fields that the program has.
    ///
    /// # Safety
    /// `config` is NULL, or writable for `size` bytes.
    pub(crate) unsafe fn write(&self, config: *mut Self, size: usize) {
        if !config.is_null() {
            let source = (&raw const *self).cast::<u8>();
            // SAFETY: our caller says that the bytes are writable, and ours is a copy of them.
            unsafe {
                source.copy_to_nonoverlapping(config.cast(), size.min(size_of::<Self>()));
            }
        }
    }

    /// Replaces zeros by defaults, but for the limits of connections, and rejects invalid values.
    pub(crate) fn apply_defaults(&mut self) -> Result<(), String> {
        self.hostname = or_else(self.hostname, c"127.0.0.1".as_ptr());
        if self.pick_port != 0 {
            self.port = 0;
        } else {
            default(&mut self.port, PORT);
        }
        default(&mut self.queue_depth, QUEUE_DEPTH);
        default(&mut self.max_callbacks, CALLBACKS_MAX);
        default(&mut self.max_threads, 1);
        default(&mut self.logs_file_descriptor, -1);
        default(&mut self.unix_mode, UNIX_MODE);
        self.logs_format = or_else(self.logs_format, c"human".as_ptr());
        default(&mut self.max_concurrent_connections, WorkerConfig::CONNECTIONS_MAX as u32);
        default(&mut self.max_deferred_calls, DEFERRED_MAX);
        default(&mut self.max_subscriptions, WorkerConfig::SUBSCRIPTIONS_MAX as u32);
        default(&mut self.max_topic_bytes, WorkerConfig::TOPIC_BYTES_MAX as u32);
        let allowed = u32::try_from(connections_allowed()).unwrap_or(u32::MAX);
        self.max_concurrent_connections = self.max_concurrent_connections.min(allowed);
        if self.max_nesting as usize > Limits::NESTING_MAX {
            return Err(format!("max_nesting: expected at most {}", Limits::NESTING_MAX));
        }
        if self.unix_mode > UNIX_MODE_MAX {
            return Err(format!("unix_mode: expected at most {UNIX_MODE_MAX:#o}"));
        }
        if self.use_ssl != 0 {
            let has_authorities = !self.ssl_client_authorities_path.is_null();
            let default_auth =
                if has_authorities { CLIENT_AUTH_REQUIRED } else { CLIENT_AUTH_NONE };
            default(&mut self.ssl_client_auth, default_auth);
        }
        Ok(())
    }

    /// The limits in force. Replaces zeros by the defaults.
    fn limits(&mut self) -> Limits {
        let mut limits = Limits::default();
        let batch = u16::try_from(limits.batch_calls_max).unwrap_or(u16::MAX);
        default(&mut self.max_batch_size, batch);
        limits.batch_calls_max = self.max_batch_size.into();
        for (field, limit) in [
            (&mut self.max_head_bytes, Limit::Count(&mut limits.head.bytes_max)),
            (&mut self.max_headers, Limit::Count(&mut limits.head.headers_max)),
            (&mut self.max_body_bytes, Limit::Count(&mut limits.body_bytes_max)),
            (&mut self.max_nesting, Limit::Count(&mut limits.nesting_max)),
            (&mut self.max_reply_bytes, Limit::Count(&mut limits.reply_bytes_max)),
            (&mut self.max_id_bytes, Limit::Count(&mut limits.id_bytes_max)),
            (&mut self.max_pipeline, Limit::Count(&mut limits.pipeline_max)),
            (&mut self.max_output_bytes, Limit::Count(&mut limits.output_bytes_max)),
            (&mut self.max_held_bytes, Limit::Count(&mut limits.held_bytes_max)),
            (
                &mut self.max_chunk_overhead_bytes,
                Limit::Count(&mut limits.chunk_overhead_bytes_max),
            ),
            (&mut self.max_discarded_bytes, Limit::Count(&mut limits.discarded_bytes_max)),
            (&mut self.handshake_timeout_ms, Limit::Time(&mut limits.handshake_timeout)),
            (&mut self.head_timeout_ms, Limit::Time(&mut limits.head_timeout)),
            (&mut self.body_timeout_ms, Limit::Time(&mut limits.body_timeout)),
            (&mut self.idle_timeout_ms, Limit::Time(&mut limits.idle_timeout)),
            (&mut self.send_timeout_ms, Limit::Time(&mut limits.send_timeout)),
            (&mut self.discard_timeout_ms, Limit::Time(&mut limits.discard_timeout)),
            (&mut self.max_frame_bytes, Limit::Count(&mut limits.frame_bytes_max)),
            (&mut self.max_message_frames, Limit::Count(&mut limits.message_frames_max)),
            (&mut self.ping_interval_ms, Limit::Time(&mut limits.ping_interval)),
            (&mut self.max_unanswered_pings, Limit::Count(&mut limits.unanswered_pings_max)),
            (&mut self.max_meta_bytes, Limit::Count(&mut limits.meta_bytes_max)),
            (&mut self.max_stream_bytes, Limit::Count(&mut limits.stream_bytes_max)),
        ] {
            limit.set_by(field);
        }
        // Threads share it evenly, like the connections.
        limits.held_bytes_max = limits.held_bytes_max.div_ceil(self.max_threads.into());
        limits.exchanges_max = Some(self.max_lifetime_exchanges.into()).filter(|max| *max > 0);
        limits.lifetime = Some(self.max_lifetime_micro_seconds)
            .filter(|age| *age > 0)
            .map(|age| Duration::from_micros(age.into()));
        limits
    }

    /// The address to bind.
    ///
    /// # Safety
    /// Its strings are what the header says.
    pub(crate) unsafe fn address(&self) -> Result<Address, String> {
        // SAFETY: passed on to our caller.
        let host = unsafe { string(self.hostname, "hostname")? };
        let found = Address::resolve(host, self.port, self.unix_mode);
        found.map_err(|error| format!("hostname {host:?}: {error}"))
    }

    /// The configuration of each of `max_threads` workers. Replaces zeros by the default limits.
    ///
    /// # Safety
    /// Its strings are what the header says.
    pub(crate) unsafe fn worker_config(
        &mut self,
        address: &Address,
    ) -> Result<WorkerConfig, String> {
        // SAFETY: passed on to our caller.
        let (hosts, origins) = unsafe {
            (
                strings(self.allowed_hosts, self.allowed_hosts_count, "allowed_hosts")?,
                strings(self.allow_origins, self.allow_origins_count, "allow_origins")?,
            )
        };
        let access = AccessRules::new(address.is_loopback(), &hosts, &origins)
            .map_err(|invalid| invalid.to_string())?;
        let mut config = WorkerConfig::new(access);
        config.limits = self.limits();
        // SAFETY: passed on to our caller.
        config.tls = unsafe { self.tls()? };
        let share = self.max_concurrent_connections.div_ceil(self.max_threads.into());
        config.connections_max = share as usize;
        config.subscriptions_max = self.max_subscriptions as usize;
        config.topic_bytes_max = self.max_topic_bytes as usize;
        Ok(config)
    }

    /// TLS, with `use_ssl`.
    ///
    /// # Safety
    /// Its strings are what the header says.
    unsafe fn tls(&self) -> Result<Option<Arc<Tls>>, String> {
        if self.use_ssl == 0 {
            return Ok(None);
        }
        const CERTIFICATES: &str = "ssl_certificates_paths";
        // SAFETY: passed on to our caller.
        let (certificates, key, password, authorities) = unsafe {
            (
                strings(self.ssl_certificates_paths, self.ssl_certificates_count, CERTIFICATES)?,
                optional(self.ssl_private_key_path, "ssl_private_key_path")?,
                optional(self.ssl_private_key_password, "ssl_private_key_password")?,
                optional(self.ssl_client_authorities_path, "ssl_client_authorities_path")?,
            )
        };
        if certificates.is_empty() {
            return Err(format!("use_ssl: expected a certificate in {CERTIFICATES}"));
        }
        let client_auth = match self.ssl_client_auth {
            CLIENT_AUTH_NONE => ClientAuth::None,
            CLIENT_AUTH_OPTIONAL => ClientAuth::Optional,
            CLIENT_AUTH_REQUIRED => ClientAuth::Required,
            other => return Err(format!("ssl_client_auth: {other} is no ucall_client_auth_t")),
        };
        let files = TlsFiles {
            identities: vec![IdentityFiles {
                certificates: certificates.iter().map(PathBuf::from).collect(),
                private_key: key.map(PathBuf::from),
            }],
            password: password.map(|password| password.as_bytes().to_vec()),
            client_auth,
            client_authorities: authorities.map(PathBuf::from),
            alpn: TlsFiles::HTTP,
        };
        let tickets = TicketSecret::random().ok_or("use_ssl: the system has no randomness")?;
        let tls = Tls::load(files, tickets).map_err(|error| format!("use_ssl: {error}"))?;
        Ok(Some(Arc::new(tls)))
    }

    /// The descriptor and the format of the log.
    ///
    /// # Safety
    /// Its strings are what the header says.
    pub(crate) unsafe fn log(&self) -> Result<(Option<c_int>, Format), String> {
        // SAFETY: passed on to our caller.
        let format = match unsafe { string(self.logs_format, "logs_format")? } {
            "human" => Format::Human,
            "json" => Format::Json,
            other => return Err(format!("logs_format: expected human or json, got {other:?}")),
        };
        let descriptor = Some(self.logs_file_descriptor).filter(|descriptor| *descriptor > 0);
        match descriptor.filter(|descriptor| !is_open_for_writing(*descriptor)) {
            Some(bad) => Err(format!("logs_file_descriptor: {bad} is not open for writing")),
            None => Ok((descriptor, format)),
        }
    }

    pub(crate) fn call_timeout(&self) -> Option<Duration> {
        (self.call_timeout_ms > 0).then(|| Duration::from_millis(self.call_timeout_ms.into()))
    }

    /// Sets the engine and the port that were chosen.
    pub(crate) fn set_effective(&mut self, engine: u32, address: &Address) {
        self.engine = engine;
        self.port = address.port();
    }
}

/// A limit that a field of the configuration sets.
enum Limit<'a> {
    Count(&'a mut usize),
    /// In milliseconds.
    Time(&'a mut Duration),
}

impl Limit<'_> {
    /// Sets the limit to the field, or a field of zero to the default limit.
    fn set_by(self, field: &mut u32) {
        match self {
            Self::Count(count) => {
                default(field, u32::try_from(*count).unwrap_or(u32::MAX));
                *count = *field as usize;
            }
            Self::Time(time) => {
                default(field, u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
                *time = Duration::from_millis((*field).into());
            }
        }
    }
}

fn default<T: Copy + Default + PartialEq>(field: &mut T, value: T) {
    if *field == T::default() {
        *field = value;
    }
}

fn or_else(text: *const c_char, other: *const c_char) -> *const c_char {
    if text.is_null() { other } else { text }
}

/// # Safety
/// `text` is NULL or a string.
unsafe fn optional<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, String> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: our caller says that it is a string.
    unsafe { string(text, what) }.map(Some)
}

/// # Safety
/// `list` is NULL or holds `count` strings.
unsafe fn strings(
    list: *const *const c_char,
    count: usize,
    what: &str,
) -> Result<Vec<String>, String> {
    if list.is_null() || count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: our caller says that it holds `count` strings.
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    // SAFETY: as above.
    list.iter().map(|&text| unsafe { string(text, what) }.map(str::to_string)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::mem::offset_of;
    use std::process::{Command, Stdio};

    #[test]
    fn an_older_configuration_is_read_and_written_within_its_size() {
        let size = offset_of!(Config, logs_format);
        let mut given = Config { port: 99, engine: 77, ..Config::EMPTY };
        // SAFETY: it is larger than `size`.
        let mut read = unsafe { Config::read(&raw const given, size) }.unwrap();
        assert_eq!((read.port, read.engine), (99, 0));
        read.apply_defaults().unwrap();
        // SAFETY: as above.
        unsafe { read.write(&raw mut given, size) };
        assert_eq!((given.queue_depth, given.max_batch_size, given.engine), (QUEUE_DEPTH, 0, 77));
    }

    #[test]
    fn an_implausible_size_is_refused() {
        let given = Config::EMPTY;
        for size in [SIZE_MAX + 1, usize::MAX] {
            // SAFETY: such a size is rejected before anything is read.
            assert!(unsafe { Config::read(&raw const given, size) }.is_err(), "{size}");
        }
    }

    /// There is no padding after the last field, which a later version could use for a field: a
    /// program's padding is not zero for sure, and its size would include it.
    #[test]
    fn the_last_field_ends_where_the_configuration_does() {
        let end = offset_of!(Config, max_topic_bytes) + size_of::<u32>();
        assert_eq!(end, size_of::<Config>());
    }

    #[test]
    fn a_newer_configuration_is_refused_only_if_it_sets_new_fields() {
        let mut given = [Config::EMPTY; 2];
        let size = size_of_val(&given);
        // SAFETY: two are twice as large.
        unsafe {
            Config::read(given.as_ptr(), size).unwrap();
            given[1].port = 1;
            assert!(Config::read(given.as_ptr(), size).unwrap_err().contains("newer"));
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
            hostname port queue_depth max_callbacks max_threads logs_file_descriptor logs_format
            max_batch_size max_concurrent_connections max_lifetime_micro_seconds
            max_lifetime_exchanges use_ssl ssl_private_key_path ssl_certificates_paths
            ssl_certificates_count engine pick_port max_head_bytes max_headers max_body_bytes
            max_nesting max_reply_bytes max_id_bytes max_pipeline max_output_bytes
            max_deferred_calls head_timeout_ms body_timeout_ms idle_timeout_ms send_timeout_ms
            call_timeout_ms allowed_hosts allowed_hosts_count allow_origins allow_origins_count
            max_held_bytes ssl_private_key_password ssl_client_authorities_path ssl_client_auth
            handshake_timeout_ms unix_mode max_chunk_overhead_bytes max_discarded_bytes
            discard_timeout_ms max_frame_bytes max_message_frames ping_interval_ms
            max_unanswered_pings max_meta_bytes max_stream_bytes max_subscriptions
            max_topic_bytes
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
    }
}
