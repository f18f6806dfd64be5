//! `ucall_config_t`: the configuration of a server, with the values in force written back.
//!
//! Its first field is its size. A program that was built against an older header has fewer fields,
//! and no more than its size is read or written. New fields go to the end.

use std::ffi::{c_char, c_void};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ucall_engine::Address;
use ucall_proto::http1::{AccessRules, TrustedProxies};
use ucall_proto::tls::{ClientAuth, TicketSecret};
use ucall_proto::{Compression, Limits};
use ucall_server::{
    CookieKey, DatagramConfig, IdentityFiles, Tls, TlsFiles, WorkerConfig, XdpConfig,
    sockets_allowed,
};

use crate::auth::{Auth, AuthFunction};
use crate::boundary::{Error, ErrorCode, optional, string, strings};
use crate::descriptor::is_open_for_writing;
use crate::log::{Format, LogCallback, LogFunction, Output};

const PORT: u16 = 8545;
/// Only the owner may connect to a Unix socket.
const UNIX_MODE: u32 = 0o600;
const UNIX_MODE_MAX: u32 = 0o777;
const QUEUE_DEPTH: u16 = 512;
const PROCEDURES_MAX: usize = 1_024;
const RUNNING_CALLS_MAX: usize = 10_000;
const COMPRESSION_BYTES_MAX: usize = 4 << 20;
/// `ucall_client_auth_t`.
const CLIENT_AUTH_NONE: u32 = 1;
const CLIENT_AUTH_OPTIONAL: u32 = 2;
const CLIENT_AUTH_REQUIRED: u32 = 3;
/// The size of the configuration of version 1.0: a number from its release on, since fields are
/// added after it.
const FIRST_SIZE: usize = size_of::<Config>();
/// Larger than the configuration of any version.
const SIZE_MAX: usize = 64 << 10;
/// Counts above this one mean no limit, and can be added without an overflow.
const COUNT_MAX: usize = isize::MAX as usize / 2;
/// A century. Times above it mean no limit, and can be added to any moment.
pub(crate) const TIME_MAX_MS: u64 = 100 * 365 * 24 * 3600 * 1000;

/// `ucall_config_t`; the header explains each field. Zero means the default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the header explains each field")]
pub struct Config {
    pub size: usize,
    pub hostname: *const c_char,
    pub port: u16,
    pub queue_depth: u16,
    pub max_procedures: usize,
    pub serving_threads: u16,
    pub logs_file_descriptor: i32,
    pub logs_format: *const c_char,
    pub logs_callback: Option<LogFunction>,
    pub logs_tag: *mut c_void,
    pub max_batch_calls: usize,
    pub max_connections: usize,
    pub max_lifetime_ms: u64,
    pub max_lifetime_exchanges: usize,
    pub use_ssl: u8,
    pub ssl_private_key_path: *const c_char,
    pub ssl_certificates_paths: *const *const c_char,
    pub ssl_certificates_count: usize,
    pub engine: u32,
    pub pick_port: u8,
    pub with_peers: u8,
    pub auth: Option<AuthFunction>,
    pub auth_tag: *mut c_void,
    pub max_head_bytes: usize,
    pub max_headers: usize,
    pub max_body_bytes: usize,
    pub max_nesting: usize,
    pub max_reply_bytes: usize,
    pub max_id_bytes: usize,
    pub max_pipeline: usize,
    pub max_output_bytes: usize,
    pub max_running_calls: usize,
    pub head_timeout_ms: u64,
    pub body_timeout_ms: u64,
    pub idle_timeout_ms: u64,
    pub send_timeout_ms: u64,
    pub timeout_ms: u64,
    pub allowed_hosts: *const *const c_char,
    pub allowed_hosts_count: usize,
    pub allow_origins: *const *const c_char,
    pub allow_origins_count: usize,
    pub max_held_bytes: usize,
    pub ssl_private_key_password: *const c_char,
    pub ssl_client_authorities_path: *const c_char,
    pub ssl_client_auth: u32,
    pub handshake_timeout_ms: u64,
    pub unix_mode: u32,
    pub max_chunk_overhead_bytes: usize,
    pub max_discarded_bytes: usize,
    pub discard_timeout_ms: u64,
    pub max_frame_bytes: usize,
    pub max_message_frames: usize,
    pub ping_interval_ms: u64,
    pub max_unanswered_pings: usize,
    pub max_meta_bytes: usize,
    pub max_stream_bytes: usize,
    pub max_subscriptions: usize,
    pub max_topic_bytes: usize,
    pub udp: u8,
    pub udp_auth: u8,
    pub udp_without_dedupe: u8,
    pub udp_port: u16,
    pub max_source_calls: u32,
    pub max_datagram_bytes: usize,
    pub max_dedupe_bytes: usize,
    pub dedupe_ms: u64,
    pub xdp: *const c_char,
    pub xdp_busy_poll: u32,
    pub max_source_calls_per_s: u32,
    pub trusted_proxies: *const *const c_char,
    pub trusted_proxies_count: usize,
    pub max_waiting_messages: usize,
    pub max_waiting_message_bytes: usize,
    pub max_connection_calls: usize,
    pub max_connections_per_peer: usize,
    pub health_checks: u32,
    pub metrics: u32,
    pub max_parts: usize,
    pub max_body_ratio: usize,
    pub compression_min_bytes: usize,
    pub compression_max_bytes: usize,
}

impl Config {
    /// All defaults: every field is zero.
    pub const EMPTY: Self = {
        // SAFETY: all zeros are valid numbers and pointers.
        unsafe { std::mem::zeroed() }
    };

    /// Reads the program's configuration, and sets its size. Fields that this version does not know
    /// must be zero.
    ///
    /// # Safety
    /// `config` is NULL, or readable for the size in its first field.
    pub(crate) unsafe fn read(config: *const Self) -> Result<Self, String> {
        let mut whole = Self { size: FIRST_SIZE, ..Self::EMPTY };
        if config.is_null() {
            return Ok(whole);
        }
        // SAFETY: our caller says that it is readable.
        let size = match unsafe { (&raw const (*config).size).read() } {
            0 => FIRST_SIZE,
            size => size,
        };
        if !(FIRST_SIZE..=SIZE_MAX).contains(&size) {
            return Err(format!("size: no version of the configuration has {size} bytes"));
        }
        let known = size.min(size_of::<Self>());
        // SAFETY: our caller says that the bytes are readable; all bytes make numbers and pointers.
        let beyond = unsafe {
            let bytes = config.cast::<u8>();
            (&raw mut whole).cast::<u8>().copy_from_nonoverlapping(bytes, known);
            std::slice::from_raw_parts(bytes.add(known), size - known)
        };
        whole.size = size;
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
    /// `config` is NULL, or writable for the size that was read.
    pub(crate) unsafe fn write(&self, config: *mut Self) {
        if !config.is_null() {
            let source = (&raw const *self).cast::<u8>();
            // SAFETY: our caller says that the bytes are writable, and ours is a copy of them.
            unsafe {
                source.copy_to_nonoverlapping(config.cast(), self.size.min(size_of::<Self>()));
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
        default(&mut self.max_procedures, PROCEDURES_MAX);
        default(&mut self.serving_threads, 1);
        default(&mut self.logs_file_descriptor, -1);
        default(&mut self.unix_mode, UNIX_MODE);
        self.logs_format = or_else(self.logs_format, c"human".as_ptr());
        default(&mut self.max_connections, WorkerConfig::CONNECTIONS_MAX);
        default(&mut self.max_running_calls, RUNNING_CALLS_MAX);
        default(&mut self.max_subscriptions, WorkerConfig::SUBSCRIPTIONS_MAX);
        default(&mut self.max_topic_bytes, WorkerConfig::TOPIC_BYTES_MAX);
        default(&mut self.compression_max_bytes, COMPRESSION_BYTES_MAX);
        self.max_connections = self.max_connections.min(sockets_allowed());
        if self.max_nesting > Limits::NESTING_MAX {
            return Err(format!("max_nesting: expected at most {}", Limits::NESTING_MAX));
        }
        if self.unix_mode > UNIX_MODE_MAX {
            return Err(format!("unix_mode: expected at most {UNIX_MODE_MAX:#o}"));
        }
        if self.max_datagram_bytes > DatagramConfig::DATAGRAM_BYTES_MAX {
            let max = DatagramConfig::DATAGRAM_BYTES_MAX;
            return Err(format!("max_datagram_bytes: expected at most {max}"));
        }
        let dedupe_min_ms = DatagramConfig::DEDUPE_LIFETIME_MIN.as_millis() as u64;
        if (1..dedupe_min_ms).contains(&self.dedupe_ms) {
            return Err(format!("dedupe_ms: expected at least {dedupe_min_ms}"));
        }
        if self.udp != 0 && self.use_ssl != 0 {
            return Err("udp: datagrams cannot be encrypted; expected no use_ssl".into());
        }
        if !self.xdp.is_null() && self.udp == 0 {
            return Err("xdp: has no effect without udp".into());
        }
        if self.xdp.is_null() && self.xdp_busy_poll != 0 {
            return Err("xdp_busy_poll: has no effect without xdp".into());
        }
        if self.compression_min_bytes > 0 && !cfg!(feature = "compression") {
            return Err("compression_min_bytes: the library was built without compression".into());
        }
        if self.compression_min_bytes > self.compression_max_bytes {
            return Err("compression_max_bytes: expected at least compression_min_bytes".into());
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
        for (field, limit) in [
            (&mut self.max_batch_calls, &mut limits.batch_calls_max),
            (&mut self.max_head_bytes, &mut limits.head.bytes_max),
            (&mut self.max_headers, &mut limits.head.headers_max),
            (&mut self.max_body_bytes, &mut limits.body_bytes_max),
            (&mut self.max_nesting, &mut limits.nesting_max),
            (&mut self.max_reply_bytes, &mut limits.reply_bytes_max),
            (&mut self.max_id_bytes, &mut limits.id_bytes_max),
            (&mut self.max_pipeline, &mut limits.pipeline_max),
            (&mut self.max_connection_calls, &mut limits.connection_calls_max),
            (&mut self.max_output_bytes, &mut limits.output_bytes_max),
            (&mut self.max_held_bytes, &mut limits.held_bytes_max),
            (&mut self.max_chunk_overhead_bytes, &mut limits.chunk_overhead_bytes_max),
            (&mut self.max_discarded_bytes, &mut limits.discarded_bytes_max),
            (&mut self.max_frame_bytes, &mut limits.frame_bytes_max),
            (&mut self.max_message_frames, &mut limits.message_frames_max),
            (&mut self.max_unanswered_pings, &mut limits.unanswered_pings_max),
            (&mut self.max_meta_bytes, &mut limits.meta_bytes_max),
            (&mut self.max_stream_bytes, &mut limits.stream_bytes_max),
            (&mut self.max_waiting_messages, &mut limits.waiting_messages_max),
            (&mut self.max_waiting_message_bytes, &mut limits.waiting_message_bytes_max),
            (&mut self.max_parts, &mut limits.parts_max),
            (&mut self.max_body_ratio, &mut limits.body_ratio_max),
        ] {
            default(field, *limit);
            *limit = (*field).min(COUNT_MAX);
        }
        for (field, limit) in [
            (&mut self.handshake_timeout_ms, &mut limits.handshake_timeout),
            (&mut self.head_timeout_ms, &mut limits.head_timeout),
            (&mut self.body_timeout_ms, &mut limits.body_timeout),
            (&mut self.idle_timeout_ms, &mut limits.idle_timeout),
            (&mut self.send_timeout_ms, &mut limits.send_timeout),
            (&mut self.discard_timeout_ms, &mut limits.discard_timeout),
            (&mut self.ping_interval_ms, &mut limits.ping_interval),
        ] {
            default(field, limit.as_millis() as u64);
            *limit = milliseconds(*field);
        }
        // Threads share it evenly, like the connections.
        limits.held_bytes_max = limits.held_bytes_max.div_ceil(self.serving_threads.into());
        limits.exchanges_max = Some(self.max_lifetime_exchanges as u64).filter(|max| *max > 0);
        limits.lifetime = (self.max_lifetime_ms > 0).then(|| milliseconds(self.max_lifetime_ms));
        if self.compression_min_bytes > 0 {
            let (bytes_min, bytes_max) = (self.compression_min_bytes, self.compression_max_bytes);
            limits.compress(Compression { bytes_min, bytes_max });
        }
        limits
    }

    /// The limits of UDP in force. Replaces zeros by the defaults.
    fn datagrams(&mut self) -> Result<DatagramConfig, Error> {
        let mut datagrams = DatagramConfig::default();
        datagrams.dedupe = self.udp_without_dedupe == 0;
        for (field, limit) in [
            (&mut self.max_datagram_bytes, &mut datagrams.datagram_bytes_max),
            (&mut self.max_dedupe_bytes, &mut datagrams.dedupe_bytes_max),
        ] {
            default(field, *limit);
            *limit = (*field).min(COUNT_MAX);
        }
        default(&mut self.max_source_calls, datagrams.source_calls_max as u32);
        datagrams.source_calls_max = self.max_source_calls as usize;
        datagrams.source_rate_max = Some(self.max_source_calls_per_s).filter(|rate| *rate > 0);
        default(&mut self.dedupe_ms, datagrams.dedupe_lifetime.as_millis() as u64);
        datagrams.dedupe_lifetime = milliseconds(self.dedupe_ms);
        if self.udp != 0 {
            // All threads accept the cookies of each.
            let key = CookieKey::random().ok_or("udp: the system has no randomness")?;
            datagrams.cookie_key = Some(key);
        }
        Ok(datagrams)
    }

    /// The address of UDP, next to that of TCP; `None` without `udp`.
    pub(crate) fn udp_address(&self, address: &Address) -> Result<Option<SocketAddr>, Error> {
        let tcp = match address {
            _ if self.udp == 0 => return Ok(None),
            Address::Tcp(tcp) => *tcp,
            Address::Unix { .. } => return Err("udp: expected no Unix socket".into()),
        };
        if self.auth.is_some() && self.udp_auth == 0 && !address.is_loopback() {
            let expected = "udp: expected a loopback address with auth, or udp_auth";
            return Err(expected.into());
        }
        let port = if self.udp_port == 0 { tcp.port() } else { self.udp_port };
        Ok(Some(SocketAddr::new(tcp.ip(), port)))
    }

    /// Whether both TCP and UDP take any port that is free.
    pub(crate) fn picks_ports(&self) -> bool {
        self.pick_port != 0 && self.udp_port == 0
    }

    /// The address to bind.
    ///
    /// # Safety
    /// Its strings are what the header says.
    pub(crate) unsafe fn address(&self) -> Result<Address, Error> {
        // SAFETY: passed on to our caller.
        let host = unsafe { string(self.hostname, "hostname")? };
        let found = Address::resolve(host, self.port, self.unix_mode);
        found.map_err(|error| Error::new(ErrorCode::Address, format!("hostname {host:?}: {error}")))
    }

    /// The configuration of each of `serving_threads` workers. Replaces zeros by default limits.
    ///
    /// # Safety
    /// Its strings are what the header says.
    pub(crate) unsafe fn worker_config(
        &mut self,
        address: &Address,
    ) -> Result<WorkerConfig, Error> {
        // SAFETY: passed on to our caller.
        let (hosts, origins, proxies) = unsafe {
            (
                strings(self.allowed_hosts, self.allowed_hosts_count, "allowed_hosts")?,
                strings(self.allow_origins, self.allow_origins_count, "allow_origins")?,
                strings(self.trusted_proxies, self.trusted_proxies_count, "trusted_proxies")?,
            )
        };
        let access = AccessRules::new(address.is_loopback(), &hosts, &origins)
            .map_err(|invalid| invalid.to_string())?;
        let mut config = WorkerConfig::new(access);
        let proxies = TrustedProxies::new(&proxies).map_err(|invalid| invalid.to_string())?;
        config.trusted_proxies = proxies.map(Arc::new);
        config.limits = self.limits();
        // SAFETY: passed on to our caller.
        config.tls = unsafe { self.tls()? };
        let share = self.max_connections.div_ceil(self.serving_threads.into());
        config.connections_max = share;
        config.peer_connections_max = Some(self.max_connections_per_peer).filter(|max| *max > 0);
        config.sockets_max = sockets_allowed().div_ceil(self.serving_threads.into());
        config.subscriptions_max = self.max_subscriptions.min(COUNT_MAX);
        // The C API has no option for it.
        config.shared_bytes_max = 0;
        config.topic_bytes_max = self.max_topic_bytes.min(COUNT_MAX);
        *config.datagrams = self.datagrams()?;
        if !self.xdp.is_null() {
            // SAFETY: passed on to our caller.
            let interface = unsafe { string(self.xdp, "xdp")? };
            let is_alone = self.serving_threads == 1 || !interface.starts_with("unix:");
            if !is_alone {
                return Err("xdp: ucall-xdp-setup serves one thread; expected an interface".into());
            }
            let busy_poll = self.xdp_busy_poll != 0;
            config.datagrams.xdp = Some(XdpConfig::new(interface.to_string(), busy_poll));
        }
        Ok(config)
    }

    /// TLS, with `use_ssl`.
    ///
    /// # Safety
    /// Its strings are what the header says.
    unsafe fn tls(&self) -> Result<Option<Arc<Tls>>, Error> {
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
            return Err(format!("use_ssl: expected a certificate in {CERTIFICATES}").into());
        }
        let client_auth = match self.ssl_client_auth {
            CLIENT_AUTH_NONE => ClientAuth::None,
            CLIENT_AUTH_OPTIONAL => ClientAuth::Optional,
            CLIENT_AUTH_REQUIRED => ClientAuth::Required,
            other => {
                return Err(format!("ssl_client_auth: {other} is no ucall_client_auth_t").into());
            }
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
        let failed =
            |why: &dyn std::fmt::Display| Error::new(ErrorCode::Tls, format!("use_ssl: {why}"));
        let tickets =
            TicketSecret::random().ok_or_else(|| failed(&"the system has no randomness"))?;
        let tls = Tls::load(files, tickets).map_err(|error| failed(&error))?;
        Ok(Some(Arc::new(tls)))
    }

    /// The output and the format of the log.
    ///
    /// # Safety
    /// Its strings are what the header says.
    pub(crate) unsafe fn log(&self) -> Result<(Output, Format), String> {
        // SAFETY: passed on to our caller.
        let format = match unsafe { string(self.logs_format, "logs_format")? } {
            "human" => Format::Human,
            "json" => Format::Json,
            other => return Err(format!("logs_format: expected human or json, got {other:?}")),
        };
        let descriptor = Some(self.logs_file_descriptor).filter(|descriptor| *descriptor > 0);
        match descriptor.filter(|descriptor| !is_open_for_writing(*descriptor)) {
            Some(bad) => Err(format!("logs_file_descriptor: {bad} is not open for writing")),
            None => Ok((self.log_output(descriptor), format)),
        }
    }

    fn log_output(&self, descriptor: Option<i32>) -> Output {
        match (self.logs_callback, descriptor) {
            (Some(function), _) => Output::Callback(LogCallback { function, tag: self.logs_tag }),
            (None, Some(descriptor)) => Output::Descriptor(descriptor),
            (None, None) => Output::Warnings,
        }
    }

    pub(crate) fn auth(&self) -> Option<Auth> {
        self.auth.map(|function| Auth { function, tag: self.auth_tag })
    }

    pub(crate) fn call_timeout(&self) -> Option<Duration> {
        (self.timeout_ms > 0).then(|| milliseconds(self.timeout_ms))
    }

    /// Sets the engine and the port that were chosen.
    pub(crate) fn set_effective(&mut self, engine: u32, address: &Address) {
        self.engine = engine;
        self.port = address.port();
        if self.udp != 0 {
            default(&mut self.udp_port, self.port);
        }
    }
}

/// The time of a field of the configuration.
fn milliseconds(field: u64) -> Duration {
    Duration::from_millis(field.min(TIME_MAX_MS))
}

fn default<T: Copy + Default + PartialEq>(field: &mut T, value: T) {
    if *field == T::default() {
        *field = value;
    }
}

fn or_else(text: *const c_char, other: *const c_char) -> *const c_char {
    if text.is_null() { other } else { text }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
