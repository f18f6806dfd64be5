//! The command line.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lexopt::prelude::*;
use rustls::ClientConfig;

use crate::Error;
use crate::arrivals::Arrivals;
use crate::stream::tls_of;
use crate::wire::Protocol;

/// What `--help` prints.
pub const USAGE: &str = "\
load [options] ADDRESS:PORT
  --protocol http|raw|websocket  the protocol (http)
  --authority PEM                TLS, to a server whose certificate that authority has signed
  --body FILE                    the JSON-RPC request
  --requests FILE                whole requests instead, each after a line with its length, sent in
                                 turn; repeated, each connection takes the next FILE
  --connections N                (1)
  --depth N                      requests pipelined on each connection (1)
  --seconds S                    (1)
  --rate N                       requests a second in all, each sent when it is due, with or without
                                 replies to earlier ones; latency counts from that time
  --arrivals FILE                instead of a rate: when each request is due, in nanoseconds from
                                 the start, a line each
  --sleep                        sleep until the next one is due
  --lengths                      compare the lengths of replies alone, for models whose results
                                 depend on the batch in their last digits
  --reconnect                    a new connection for each request
  --idle N                       idle connections; prints `idle N` once they are open, and waits for
                                 a line before the load
";

/// What the load sends.
pub enum Asked {
    /// The JSON of its one request.
    Body(Vec<u8>),
    /// The bytes of the requests of each kind of client.
    Whole(Vec<Vec<Vec<u8>>>),
}

pub struct Options {
    pub address: SocketAddr,
    pub protocol: Protocol,
    pub tls: Option<Arc<ClientConfig>>,
    pub asked: Asked,
    pub connections: usize,
    pub depth: usize,
    pub duration: Duration,
    /// Those of an open loop, or none for a closed one.
    pub arrivals: Option<Arrivals>,
    pub sleep: bool,
    pub lengths: bool,
    pub reconnect: bool,
    pub idle: usize,
}

impl Options {
    /// Parses the arguments; returns `None` for `--help`.
    pub fn parse() -> Result<Option<Self>, Error> {
        let mut address = None;
        let mut body = None;
        let mut clients = Vec::new();
        let (mut rate, mut listed) = (None, None);
        let mut options = Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            protocol: Protocol::Http,
            tls: None,
            asked: Asked::Body(Vec::new()),
            connections: 1,
            depth: 1,
            duration: Duration::from_secs(1),
            arrivals: None,
            sleep: false,
            lengths: false,
            reconnect: false,
            idle: 0,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("protocol") => options.protocol = parser.value()?.parse()?,
                Long("authority") => options.tls = Some(tls_of(Path::new(&parser.value()?))?),
                Long("body") => body = Some(std::fs::read(parser.value()?)?),
                Long("requests") => clients.push(split(&std::fs::read(parser.value()?)?)?),
                Long("connections") => options.connections = parser.value()?.parse()?,
                Long("depth") => options.depth = parser.value()?.parse()?,
                Long("seconds") => {
                    options.duration = Duration::try_from_secs_f64(parser.value()?.parse()?)?;
                }
                Long("rate") => rate = Some(Arrivals::at_rate(parser.value()?.parse()?)?),
                Long("arrivals") => {
                    listed = Some(Arrivals::listed(&std::fs::read_to_string(parser.value()?)?)?);
                }
                Long("sleep") => options.sleep = true,
                Long("lengths") => options.lengths = true,
                Long("reconnect") => options.reconnect = true,
                Long("idle") => options.idle = parser.value()?.parse()?,
                Long("help") => return Ok(None),
                Value(value) => address = Some(value.parse()?),
                _ => return Err(argument.unexpected().into()),
            }
        }
        options.address = address.ok_or("no address")?;
        options.asked = match (body, clients.is_empty()) {
            (Some(body), true) => Asked::Body(body),
            (None, false) => Asked::Whole(clients),
            _ => return Err("either --body or --requests".into()),
        };
        options.arrivals = match (rate, listed) {
            (Some(_), Some(_)) => return Err("either --rate or --arrivals".into()),
            (rate, listed) => rate.or(listed),
        };
        options.validate()?;
        Ok(Some(options))
    }

    fn validate(&self) -> Result<(), Error> {
        if self.connections == 0 || self.depth == 0 {
            return Err("--connections and --depth are above 0".into());
        }
        let is_body = matches!(self.asked, Asked::Body(_));
        if !is_body && (self.depth > 1 || self.protocol == Protocol::WebSocket) {
            return Err("--requests goes with neither --depth nor --protocol websocket".into());
        }
        let is_open = self.arrivals.is_some();
        if self.depth > 1 && (self.reconnect || is_open) {
            return Err("--depth goes with neither --rate, --arrivals nor --reconnect".into());
        }
        if self.tls.is_some() && (self.reconnect || self.protocol == Protocol::WebSocket) {
            return Err("--authority goes with neither --reconnect nor --protocol websocket".into());
        }
        if self.sleep && !is_open {
            return Err("--sleep goes with --rate or --arrivals".into());
        }
        Ok(())
    }
}

/// The requests of a file, each after a line with its length.
fn split(mut file: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let mut requests = Vec::new();
    while !file.is_empty() {
        let end = file.iter().position(|&byte| byte == b'\n').ok_or("no length")?;
        let length: usize = std::str::from_utf8(&file[..end])?.parse()?;
        let request = file.get(end + 1..end + 1 + length).ok_or("a request is cut off")?;
        requests.push(request.to_vec());
        file = &file[end + 1 + length..];
    }
    if requests.is_empty() {
        return Err("a file without requests".into());
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_split_by_their_lengths() -> Result<(), Error> {
        assert_eq!(split(b"2\na\n3\nbcd")?, [b"a\n".to_vec(), b"bcd".to_vec()]);
        for wrong in [&b""[..], b"2", b"x\nab", b"3\nab"] {
            assert!(split(wrong).is_err(), "{wrong:?}");
        }
        Ok(())
    }
}
