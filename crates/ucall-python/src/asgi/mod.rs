//! Mounted applications (`Server.mount`): ASGI 3, which FastAPI, Starlette and others have.
//!
//! An application is a procedure whose function is `await app(scope, receive, send)`. It runs as
//! one task for each request. Most applications that have not to wait send their whole response
//! in the task's first step, which is part of the turn of the request: the response is then written
//! as the result of a plain function is.
//!
//! | the application | the response |
//! |---|---|
//! | sends all within its first step | is the reply of the turn |
//! | sends all later, at once | is the outcome of a deferred call |
//! | sends it in parts | is the items of a stream, and an outcome without text |
//! | has a WebSocket | is a head and frames as such items, and the payload of the Close frame |
//!
//! A response ends when its last part is sent, though its task may go on: `deferral/mounted.rs`
//! follows it. [`Exchange`] is what the task and the worker share.

mod awaitable;
mod exchange;
mod http;
mod message;
mod mount;
mod output;
mod request;
mod response;
mod scope;
mod send_http;
mod send_websocket;
mod websocket;

pub(crate) use exchange::{Exchange, MountedTask};
pub(crate) use message::Message;
pub(crate) use mount::Mount;
pub(crate) use output::Sent;
pub(crate) use request::AsgiExchange;
pub(crate) use scope::{ScopeKind, scope_of};
pub(crate) use websocket::close_payload;
