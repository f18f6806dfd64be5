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
//!
//! A response ends when its last part is sent, though its task may go on: `deferral/mounted.rs`
//! follows it. [`Exchange`] is what the task and the worker share.

mod awaitable;
mod exchange;
mod mount;
mod request;
mod response;
mod scope;

pub(crate) use exchange::{Exchange, MountedTask, Sent};
pub(crate) use mount::Mount;
pub(crate) use request::AsgiExchange;
pub(crate) use scope::scope_of;
