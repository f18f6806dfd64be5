//! Bearer tokens and API keys, which a worker checks without the interpreter (`ucall.auth`).

use std::ffi::CStr;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyNotImplemented};
use ucall_proto::http1::Head;
use ucall_proto::{AuthenticationError, CallerIdentity, KeySet};

use crate::context::header_text;
use crate::identity::Identity;

/// Identifies callers by a key in a header. `bearer` and `api_key` of `ucall.auth` make it.
#[pyclass(frozen, module = "ucall.auth")]
pub(crate) struct Keys {
    table: Arc<KeyTable>,
    /// The value of ``WWW-Authenticate`` for requests without a known key.
    #[pyo3(get)]
    challenge: String,
}

/// The keys, and the users that they stand for.
pub(crate) struct KeyTable {
    header: String,
    keys: KeySet,
    /// Of each key. `None` if it is no user.
    users: Vec<Option<Arc<Identity>>>,
}

#[pymethods]
impl Keys {
    #[new]
    fn new(
        py: Python<'_>,
        users: Vec<(String, Py<PyAny>)>,
        header: &str,
        scheme: Option<&str>,
        challenge: String,
    ) -> Self {
        let keys = KeySet::new(scheme, users.iter().map(|(key, _)| key.as_str()));
        let users = users.into_iter().map(|(_, user)| {
            let is_user = !is_unauthorized(py, &user);
            is_user.then(|| Arc::new(Identity::new(py, user)))
        });
        let header = header.to_ascii_lowercase();
        Self { table: Arc::new(KeyTable { header, keys, users: users.collect() }), challenge }
    }

    /// The user of the key in the header; `None` for an unknown key.
    fn __call__(&self, ctx: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
        let headers = ctx.getattr("headers")?;
        let value: String = headers.call_method1("get", (&self.table.header, ""))?.extract()?;
        let user = self.table.user_of(&value);
        Ok(user.map(|it| it.user().clone_ref(ctx.py())))
    }
}

impl Keys {
    /// The table of `auth`, if that is an instance of this class.
    pub(crate) fn table_of(auth: &Bound<'_, PyAny>) -> Option<Arc<KeyTable>> {
        auth.cast_exact::<Self>().ok().map(|keys| keys.get().table.clone())
    }
}

impl KeyTable {
    /// The header that has the key, in lower case.
    pub(crate) fn header(&self) -> &str {
        &self.header
    }

    fn user_of(&self, value: &str) -> Option<&Arc<Identity>> {
        self.users.get(self.keys.find(value)?)?.as_ref()
    }

    /// Identifies the caller of a request. Takes no interpreter lock.
    pub(crate) fn authenticate(
        &self,
        head: Option<&Head<'_>>,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let headers = head.into_iter().flat_map(|head| head.headers());
        let values = headers.filter(|(name, _)| name.eq_ignore_ascii_case(self.header.as_bytes()));
        let values: Vec<String> = values.map(|(_, value)| header_text(value)).collect();
        match self.user_of(&values.join(", ")) {
            Some(user) => Ok(user.clone()),
            None => Err(AuthenticationError::Unauthorized),
        }
    }
}

/// Whether an `auth` that has returned this rejects the request: `None`, `NotImplemented`, which
/// Python counts as true, and `False`, also NumPy's, which a comparison of arrays returns.
pub(crate) fn is_unauthorized(py: Python<'_>, user: &Py<PyAny>) -> bool {
    let user = user.bind(py);
    let is_false = user.is(PyBool::new(py, false));
    let is_unknown = user.is_none() || user.is(PyNotImplemented::get(py));
    is_unknown || is_false || is_bool_of_numpy(user) && !user.is_truthy().unwrap_or(false)
}

/// By the name of its type, which NumPy 2 has changed: NumPy may not be installed.
fn is_bool_of_numpy(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: an object has a type, whose name is a C string.
    let name = unsafe { CStr::from_ptr((*object.get_type_ptr()).tp_name) };
    name == c"numpy.bool" || name == c"numpy.bool_"
}
