//! Who may call a function.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use ucall_server::CallAccess;

/// Who may call a function.
#[derive(Clone, Default, Debug)]
pub(crate) enum FunctionAccess {
    /// Callers that the server's `auth` accepts.
    #[default]
    Authenticated,
    /// All.
    Public,
    /// Callers that an `auth` of its own accepts.
    Own(Arc<OwnAuthentication>),
}

/// An `auth` of functions, in place of the server's.
pub(crate) struct OwnAuthentication {
    /// Other functions with the same `auth` have the same.
    number: usize,
    /// What identifies callers, which may need the functions of a worker.
    authentication: Box<dyn Any + Send + Sync>,
    /// The value of `WWW-Authenticate` for the calls that it refuses.
    challenge: String,
}

impl FunctionAccess {
    pub(crate) fn own(&self) -> Option<&OwnAuthentication> {
        if let Self::Own(own) = self { Some(own) } else { None }
    }

    pub(crate) fn of_calls(&self) -> CallAccess {
        match self {
            Self::Authenticated => CallAccess::Authenticated,
            Self::Public => CallAccess::Public,
            Self::Own(own) => CallAccess::Own(own.number),
        }
    }
}

impl OwnAuthentication {
    pub(crate) fn new(
        number: usize,
        authentication: impl Any + Send + Sync,
        challenge: String,
    ) -> Self {
        Self { number, authentication: Box::new(authentication), challenge }
    }

    pub(crate) fn authentication<T: Any>(&self) -> Option<&T> {
        self.authentication.downcast_ref()
    }

    pub(crate) fn challenge(&self) -> &str {
        &self.challenge
    }
}

impl fmt::Debug for OwnAuthentication {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("OwnAuthentication")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
