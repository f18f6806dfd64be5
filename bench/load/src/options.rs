//! The command line.

use std::net::SocketAddr;
use std::time::Duration;

use lexopt::prelude::*;

use crate::{Error, wire::Protocol};

/// What `--help` prints.
pub const USAGE: &str = "\
load [options] ADDRESS:PORT
  --protocol http|raw|websocket  what is spoken (http)
  --body FILE                    the JSON-RPC request
  --connections N                (1)
  --depth N                      requests sent at a time on each connection (1)
  --seconds S                    (1)
  --rate N                       requests a second in all, sent at their time whether or not those
                                 before are answered; latency counts from that time
  --sleep                        sleeps until the next one is due, for others on the same core
  --reconnect                    a new connection for each request
  --idle N                       connections that stay open and do nothing; prints `idle N` once
                                 they are open and waits for a line before the load
";

/// What to do.
pub struct Options {
    /// The server.
    pub address: SocketAddr,
    /// What is spoken.
    pub protocol: Protocol,
    /// The request's JSON.
    pub body: Vec<u8>,
    /// How many connections ask.
    pub connections: usize,
    /// How many requests each sends at a time.
    pub depth: usize,
    /// How long.
    pub duration: Duration,
    /// Requests a second of an open loop, or none for a closed one.
    pub rate: Option<f64>,
    /// Whether an open loop leaves its core to others between requests.
    pub sleep: bool,
    /// Whether each request has a connection of its own.
    pub reconnect: bool,
    /// How many connections do nothing.
    pub idle: usize,
}

impl Options {
    /// Reads the arguments; nothing is returned when help was asked for.
    pub fn parse() -> Result<Option<Self>, Error> {
        let mut address = None;
        let mut body = None;
        let mut options = Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            protocol: Protocol::Http,
            body: Vec::new(),
            connections: 1,
            depth: 1,
            duration: Duration::from_secs(1),
            rate: None,
            sleep: false,
            reconnect: false,
            idle: 0,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("protocol") => options.protocol = parser.value()?.parse()?,
                Long("body") => body = Some(parser.value()?),
                Long("connections") => options.connections = parser.value()?.parse()?,
                Long("depth") => options.depth = parser.value()?.parse()?,
                Long("seconds") => {
                    options.duration = Duration::try_from_secs_f64(parser.value()?.parse()?)?;
                }
                Long("rate") => options.rate = Some(parser.value()?.parse()?),
                Long("sleep") => options.sleep = true,
                Long("reconnect") => options.reconnect = true,
                Long("idle") => options.idle = parser.value()?.parse()?,
                Long("help") => return Ok(None),
                Value(value) => address = Some(value.parse()?),
                _ => return Err(argument.unexpected().into()),
            }
        }
        options.address = address.ok_or("no address")?;
        options.body = std::fs::read(body.ok_or("no --body")?)?;
        options.validate()?;
        Ok(Some(options))
    }

    fn validate(&self) -> Result<(), Error> {
        if self.connections == 0 || self.depth == 0 || self.rate.is_some_and(|rate| rate <= 0.0) {
            return Err("--connections, --depth and --rate are above 0".into());
        }
        if self.depth > 1 && (self.reconnect || self.rate.is_some()) {
            return Err("--depth goes with neither --rate nor --reconnect".into());
        }
        if self.sleep && self.rate.is_none() {
            return Err("--sleep goes with --rate".into());
        }
        Ok(())
    }
}
