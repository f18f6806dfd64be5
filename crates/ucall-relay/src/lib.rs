//! Relays calls to other JSON-RPC servers, as native procedures.
//!
//! | module | contents |
//! |---|---|
//! | `options` | the upstreams of a relay, and its limits |
//! | `procedures` | the native procedures: a call goes out, its reply comes back |
//! | `upstream` | one upstream: the choice of a connection |
//! | `connections` | the connections to one upstream, by their keys |
//! | `places` | where calls and sockets are |
//! | `names` | the addresses of names, each an upstream |
//! | `resolver` | resolves the name of an upstream |
//! | `connection` | one connection, without its socket |
//! | `ends` | how connections and calls end |
//! | `secure` | the TLS of a connection |
//! | `stream_turns` | how much of streams a turn reads |
//! | `slots` | the calls that wait on a connection, each by a number |
//! | `rewrite` | names and params that a relay changes |
//! | `request` | what is written for a call |
//! | `health` | health checks of an upstream |
//! | `http` | calls and replies over HTTP |
//! | `replies` | finds the replies in what an upstream sends |
//! | `long_call` | calls with long params, sent piece by piece |
//! | `long_reply` | finds the call of a reply that is too long |
//! | `harness` | a relay without a worker, for tests and fuzzing |
//! | `breaker`, `retry_budget` | when not to call an upstream, and when not to call again |
//! | `pick` | the choice among upstreams |
//!
//! The params of a call go on byte for byte, but without line breaks where calls are lines. Its id
//! becomes the number of a slot, and the worker replies with the id that the caller has sent. All
//! calls of a turn to one connection leave in one write, at the end of the turn.

mod breaker;
mod connection;
mod connections;
mod ends;
mod errors;
#[cfg(any(test, feature = "harness"))]
mod harness;
mod health;
mod http;
mod long_call;
mod long_reply;
mod names;
mod options;
mod pick;
mod places;
mod procedures;
mod replies;
mod request;
mod resolver;
mod retry_budget;
mod rewrite;
mod secure;
mod slots;
mod stream_turns;
mod upstream;

#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "harness"))]
pub use harness::{FakeSocket, RelayHarness};
pub use options::{HealthOptions, Lookup, RelayOptions, UpstreamAddress, UpstreamOptions};
pub use procedures::RelayModule;
pub use replies::{ReplyReader, UpstreamReply};
pub use rewrite::Rewrite;
