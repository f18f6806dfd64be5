//! The upstreams of a relay, and its limits.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use ucall_engine::SockAddr;
use ucall_proto::tls::{ClientConfig, ServerName};

use crate::http::{HttpTarget, check_header};
use crate::rewrite::Rewrite;

/// What a relay calls, and how.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// The methods that it relays; a name that ends in `*` means all that begin with the rest.
    pub methods: Vec<String>,
    /// The servers that it calls, at most [`RelayOptions::UPSTREAMS_MAX`].
    pub upstreams: Vec<UpstreamAddress>,
    /// The methods that may be called again after they were sent.
    pub idempotent: Vec<String>,
    /// The param whose value picks the upstream.
    pub hash_param: Option<String>,
    /// What is changed in calls.
    pub rewrite: Rewrite,
    /// The time of a call, if its caller does not allow less.
    pub timeout: Duration,
    /// Calls in flight to one upstream, of one worker.
    pub outstanding_max: usize,
    /// The part of them that one connection of a caller may have.
    pub connection_outstanding_max: usize,
    /// Failures in a row after which an upstream is not called for a while.
    pub failures_max: u32,
    /// How upstreams are checked beside calls, if they are.
    pub health: Option<Arc<HealthOptions>>,
    /// Bytes of one reply.
    pub reply_bytes_max: usize,
    /// Bytes of one call with what the relay adds to it, which upstreams read.
    pub request_bytes_max: usize,
}

impl RelayOptions {
    /// Upstreams of one relay.
    pub const UPSTREAMS_MAX: usize = 64;

    /// A share of an upstream's calls that leaves it to others, for a caller's connection.
    pub fn connection_outstanding_max(outstanding_max: usize) -> usize {
        (outstanding_max / 8).max(16)
    }

    /// Whether calls of a method may be repeated.
    pub(crate) fn is_idempotent(&self, method: &[u8]) -> bool {
        self.idempotent.iter().any(|known| match known.strip_suffix('*') {
            Some(prefix) => method.starts_with(prefix.as_bytes()),
            None => method == known.as_bytes(),
        })
    }
}

/// How upstreams are checked.
#[derive(Clone, Debug)]
pub struct HealthOptions {
    pub(crate) ask: String,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    pub(crate) failures_max: u32,
    pub(crate) successes_min: u32,
}

impl HealthOptions {
    /// Checks by `ask`: a path, which begins with a slash and is read over HTTP, or a method, which
    /// is called without params. A check takes at most `timeout`, and the next one begins
    /// `interval` after it. So many failures in a row make an upstream unhealthy, and so many
    /// successes healthy.
    ///
    /// # Errors
    /// What is wrong with `ask`.
    pub fn new(
        ask: String,
        interval: Duration,
        timeout: Duration,
        failures_max: u32,
        successes_min: u32,
    ) -> Result<Self, String> {
        match !ask.is_empty() && ask.bytes().all(|byte| matches!(byte, b'!'..=b'~')) {
            true => Ok(Self { ask, interval, timeout, failures_max, successes_min }),
            false => Err(format!("expected a path or the name of a method, got {ask:?}")),
        }
    }

    /// Whether it is a path.
    pub(crate) fn is_path(&self) -> bool {
        self.ask.starts_with('/')
    }
}

/// Finds the addresses of a name and a port; it may block.
pub type Lookup = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// Where one upstream listens, and what it speaks.
#[derive(Clone, Debug)]
pub struct UpstreamAddress {
    /// The address as it was configured.
    pub(crate) name: String,
    /// The same without the path of a URL, which may have a secret.
    pub(crate) label: String,
    /// The name and the port, if there is a name to resolve.
    pub(crate) host: Option<String>,
    /// Where it is, unless that is a name.
    pub(crate) address: Option<SockAddr>,
    /// Resolves the name; it may block.
    pub(crate) lookup: Lookup,
    /// Where calls are posted to over HTTP; `None` if they are sent as they are.
    pub(crate) http: Option<Arc<HttpTarget>>,
    /// `None` without TLS.
    pub(crate) tls: Option<UpstreamTls>,
}

/// Where an upstream is.
#[derive(Debug)]
pub(crate) enum Destination {
    At(SockAddr),
    /// Its name is being resolved for the first time, and calls wait.
    Resolving,
    /// Its name has no address, for this reason.
    Unknown(String),
}

/// How upstreams are called over HTTP and TLS.
#[derive(Clone, Debug, Default)]
pub struct UpstreamOptions {
    headers: Vec<(String, String)>,
    takes_meta: bool,
    tls: Option<Arc<ClientConfig>>,
}

impl UpstreamOptions {
    /// The headers of each HTTP request, whether HTTP servers read `_meta`, as those of this
    /// project do, and the settings of TLS, which addresses with TLS need.
    ///
    /// # Errors
    /// What is wrong with a header.
    pub fn new(
        headers: Vec<(String, String)>,
        takes_meta: bool,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Self, String> {
        headers.iter().try_for_each(|(name, value)| check_header(name, value))?;
        Ok(Self { headers, takes_meta, tls })
    }
}

/// The TLS of an upstream.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamTls {
    pub(crate) config: Arc<ClientConfig>,
    /// The name that its certificate must have.
    pub(crate) name: ServerName<'static>,
}

impl UpstreamAddress {
    /// Parses `tcp://host:port`, `unix:///path` or `http://host:port/path`; `tls` and `https` are
    /// the same under TLS. A host is resolved later, beside the serving.
    ///
    /// # Errors
    /// What is wrong with the address or a header.
    pub fn parse(name: &str, options: &UpstreamOptions) -> io::Result<Self> {
        let lookup: Lookup = Self::lookup;
        if let Some(path) = name.strip_prefix("unix://") {
            if !path.starts_with('/') {
                return Err(unexpected(name));
            }
            let (name, label) = (name.to_owned(), name.to_owned());
            let address = Some(SockAddr::unix(path)?);
            return Ok(Self { name, label, host: None, address, lookup, http: None, tls: None });
        }
        let url = Url::parse(name).ok_or_else(|| unexpected(name))?;
        let (host, address) = (url.host_and_port(), url.host_and_port().parse::<SocketAddr>().ok());
        let has_port = host.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok());
        let is_ip = url.host().parse::<IpAddr>().is_ok();
        if !has_port || url.host().is_empty() || is_ip != address.is_some() {
            return Err(unexpected(name));
        }
        let http = url.default_port.is_some().then(|| {
            Arc::new(HttpTarget::new(url.authority, url.path, &options.headers, options.takes_meta))
        });
        let tls = match (url.is_encrypted(), &options.tls) {
            (false, _) => None,
            (true, None) => return Err(unexpected(name)),
            (true, Some(config)) => {
                let host = ServerName::try_from(url.host().to_owned());
                let host = host.map_err(|_| unexpected(name))?;
                Some(UpstreamTls { config: config.clone(), name: host })
            }
        };
        let (host, address) = ((!is_ip).then_some(host), address.map(SockAddr::from));
        let (name, label) = (name.to_owned(), url.label());
        Ok(Self { name, label, host, address, lookup, http, tls })
    }

    /// Whether the address has a scheme with TLS.
    pub fn names_tls(name: &str) -> bool {
        Url::parse(name).is_some_and(|url| url.is_encrypted())
    }

    /// Resolves `host:port` as the system does. May block.
    pub(crate) fn lookup(host: &str) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<_> = host.to_socket_addrs()?.collect();
        match found.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has none")),
            false => Ok(found),
        }
    }

    /// The same upstream, whose name another function resolves.
    #[cfg(any(test, feature = "harness"))]
    pub fn with_lookup(self, lookup: Lookup) -> Self {
        Self { lookup, ..self }
    }

    /// The address without the path of a URL, for metrics and logs.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether calls are posted to it over HTTP.
    pub fn is_http(&self) -> bool {
        self.http.is_some()
    }
}

/// An address with a host.
struct Url<'a> {
    scheme: &'a str,
    authority: &'a str,
    path: &'a str,
    /// The port without one in the authority; `None` if it needs one.
    default_port: Option<u16>,
}

impl<'a> Url<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let (scheme, rest) = name.split_once("://")?;
        let default_port = match scheme {
            "tcp" | "tls" => None,
            "http" => Some(80),
            "https" => Some(443),
            _ => return None,
        };
        let path_at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(path_at);
        let is_visible = rest.bytes().all(|byte| matches!(byte, b'!'..=b'~'));
        let has_path = !matches!(path, "" | "/");
        // A query without a path, a user and a fragment have no meaning here.
        let is_refused = path.starts_with('?') || rest.contains(['@', '#']) || authority.is_empty();
        if !is_visible || is_refused || (default_port.is_none() && has_path) {
            return None;
        }
        let path = if has_path { path } else { "/" };
        Some(Self { scheme, authority, path, default_port })
    }

    fn label(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }

    fn is_encrypted(&self) -> bool {
        matches!(self.scheme, "tls" | "https")
    }

    /// Without the brackets of an IPv6 address.
    fn host(&self) -> &'a str {
        match self.authority.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => self.authority.split(':').next().unwrap_or_default(),
        }
    }

    fn host_and_port(&self) -> String {
        // The colons of an IPv6 address are in brackets.
        let after_brackets = self.authority.rsplit(']').next().unwrap_or_default();
        match self.default_port {
            Some(port) if !after_brackets.contains(':') => format!("{}:{port}", self.authority),
            _ => self.authority.to_owned(),
        }
    }
}

fn unexpected(name: &str) -> io::Error {
    let expected = "expected an upstream such as 'tcp://10.0.0.2:8545', 'unix:///run/app.sock', \
                    'http://10.0.0.2:8545/path', 'tls://a.example:8545' or 'https://a.example'";
    io::Error::new(io::ErrorKind::InvalidInput, format!("{expected}, got {name:?}"))
}

#[cfg(test)]
mod tests {
    use ucall_proto::tls::{ClientSettings, Trust};

    use super::*;

    fn parse(name: &str) -> io::Result<UpstreamAddress> {
        UpstreamAddress::parse(name, &UpstreamOptions::default())
    }

    fn with_tls() -> UpstreamOptions {
        let settings = ClientSettings { trust: Trust::Anyone, identity: None, alpn: &[] };
        let tls = settings.build().expect("it is valid");
        UpstreamOptions::new(Vec::new(), false, Some(tls)).expect("there are no headers")
    }

    #[test]
    fn a_certificate_must_have_the_name_of_the_host() {
        for (name, expected) in [
            ("tls://127.0.0.1:1", "127.0.0.1"),
            ("https://[::1]:2/path", "::1"),
            ("https://localhost", "localhost"),
        ] {
            let tls = UpstreamAddress::parse(name, &with_tls()).expect("it is valid").tls;
            assert_eq!(tls.expect("it has TLS").name.to_str(), expected);
            assert!(UpstreamAddress::names_tls(name));
            parse(name).expect_err("it needs settings of TLS");
        }
        assert!(!UpstreamAddress::names_tls("tcp://127.0.0.1:1"));
    }

    #[test]
    fn addresses_of_other_forms_are_refused() {
        for name in ["tcp://127.0.0.1:1", "tcp://[::1]:8545", "unix:///run/a.sock"] {
            let upstream = parse(name).expect("it is valid");
            assert_eq!((upstream.label(), upstream.address.is_some()), (name, true));
            assert!(!upstream.is_http());
        }
        for name in [
            "",
            "127.0.0.1:1",
            "ftp://a",
            "tcp://127.0.0.1",
            "tcp://a:x",
            "unix://a",
            "http://",
            "tcp://127.0.0.1:1/path",
            "http://u@127.0.0.1",
            "http://127.0.0.1/a b",
            "http://127.0.0.1/a#b",
            "http://127.0.0.1?a",
            "http://127.0.0.1:x/",
            "http://[::1/",
            "tcp://::1:1",
            "tcp://:1",
            "tcp://a:65536",
        ] {
            let error = parse(name).expect_err("it is invalid");
            assert!(error.to_string().ends_with(&format!("got {name:?}")), "{error}");
        }
    }

    #[test]
    fn a_url_has_a_default_port_and_a_label_without_its_path() {
        for (name, label, address) in [
            ("http://127.0.0.1", "http://127.0.0.1", "127.0.0.1:80"),
            ("http://127.0.0.1:81/key?x=y", "http://127.0.0.1:81", "127.0.0.1:81"),
            ("http://[::1]/", "http://[::1]", "[::1]:80"),
            ("http://[::1]:82", "http://[::1]:82", "[::1]:82"),
            ("https://127.0.0.1/key", "https://127.0.0.1", "127.0.0.1:443"),
        ] {
            let upstream = UpstreamAddress::parse(name, &with_tls()).expect("it is valid");
            let expected = SockAddr::from(address.parse::<SocketAddr>().expect("an address"));
            assert_eq!((upstream.label(), upstream.is_http()), (label, true));
            assert_eq!(format!("{:?}", upstream.address), format!("{:?}", Some(expected)));
        }
    }
}
