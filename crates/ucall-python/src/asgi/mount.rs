//! Where an application is mounted.

use std::fmt;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use ucall_proto::http1::TrustedProxies;

/// The host and the port that a server listens on.
type ServerAddress = dyn Fn() -> (String, Option<u16>) + Send + Sync;

/// Where an application is mounted.
pub(crate) struct Mount {
    /// The path, without a `/` at the end.
    pub(crate) root_path: Py<PyString>,
    /// What the application's lifespan has put there. Each request gets a copy.
    pub(crate) lifespan_state: Py<PyDict>,
    pub(crate) server_address: Box<ServerAddress>,
    pub(crate) trusted_proxies: Option<Arc<TrustedProxies>>,
}

impl fmt::Debug for Mount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Mount").field("root_path", &self.root_path).finish_non_exhaustive()
    }
}
