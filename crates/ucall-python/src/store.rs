//! The key-value store as Python uses it, for `ucall.store`.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use ucall_server::{NativeModule, NativeProcedure};
use ucall_store::{
    Durability, Entry, Expiry, OpenStore, Operation, Outcome, Scan, Store, StoreError, StoreModule,
    StoreOptions, Value,
};

use crate::ffi::{type_name, with_buffer};
use crate::server::Server;

/// A native method: its name, a summary, and the JSON Schemas of its params, result and items.
type NativeMethod = (String, &'static str, &'static str, &'static str, Option<&'static str>);

/// Has a server serve the procedures of a store, `name.get` and so on, in place of others of their
/// names. Returns the name of each, a summary, and the JSON Schemas of its params, its result, and
/// its items if it is a stream.
#[pyfunction]
pub(crate) fn insert_store(
    server: &Bound<'_, Server>,
    name: &str,
    store: &Bound<'_, PyStore>,
) -> Vec<NativeMethod> {
    let server = server.get();
    let module = Arc::new(StoreModule::new(name, store.get().store.clone()));
    let descriptions = module.procedures().iter();
    let described =
        |it: &NativeProcedure| (it.name.clone(), it.summary, it.params, it.result, it.item);
    let descriptions = descriptions.map(described).collect();
    server.procedures.insert_native(module, server.timeout);
    descriptions
}

/// A key: the UTF-8 of a `str`, or bytes. A number's memory would be another key than its text.
struct Key(Vec<u8>);

impl<'a, 'py> FromPyObject<'a, 'py> for Key {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self(text.to_str()?.into()));
        }
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self(bytes.as_bytes().into()));
        }
        let got = type_name(&object);
        Err(PyTypeError::new_err(format!("key: expected str or bytes, got {got}")))
    }
}

/// A key as a `str`, or `bytes` if it is no UTF-8.
fn name<'py>(py: Python<'py>, key: &[u8]) -> Bound<'py, PyAny> {
    match std::str::from_utf8(key) {
        Ok(text) => PyString::new(py, text).into_any(),
        Err(_) => PyBytes::new(py, key).into_any(),
    }
}

/// An entry: its version, whether it is JSON text, and its bytes.
type Item<'py> = (u64, bool, Bound<'py, PyBytes>);

/// The key of a damaged entry, and what is wrong with it.
type Damage<'py> = (Bound<'py, PyAny>, &'static str);

/// A store that each process opens when it first needs it, for `ucall.store.Store`.
#[pyclass(frozen, name = "Store", module = "ucall._core")]
pub(crate) struct PyStore {
    store: Arc<Store>,
}

#[pymethods]
impl PyStore {
    #[new]
    #[pyo3(signature = (
        path, *, max_bytes, max_value_bytes, max_watch_bytes, durability, readonly
    ))]
    fn new(
        path: PathBuf,
        max_bytes: usize,
        max_value_bytes: usize,
        max_watch_bytes: usize,
        durability: &str,
        readonly: bool,
    ) -> PyResult<Self> {
        let durability = match durability {
            "commit" => Durability::Commit,
            "none" => Durability::None,
            other => {
                let expected = "durability: expected 'commit' or 'none'";
                return Err(PyValueError::new_err(format!("{expected}, got {other:?}")));
            }
        };
        let options = StoreOptions {
            bytes_max: max_bytes,
            value_bytes_max: max_value_bytes,
            watch_bytes_max: max_watch_bytes,
            durability,
            is_read_only: readonly,
            ..StoreOptions::default()
        };
        Ok(Self { store: Arc::new(Store::new(path, options)) })
    }

    /// Opens the store in this process, unless it is open.
    fn open(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |_| Ok(()))
    }

    /// Closes the store in this process once its other users are done with it.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.store.close());
    }

    /// The version of a key, whether its value is JSON text, and its bytes.
    fn get<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Item<'py>>> {
        let entry = self.with(py, |store| store.get(&key.0))?;
        Ok(entry.map(|entry| item(py, &entry)))
    }

    /// Sets the value of a key, if it has `version`; 0 if it is absent. Returns the new version.
    #[pyo3(signature = (key, value, is_json, *, ttl_ms, version))]
    fn put(
        &self,
        py: Python<'_>,
        key: Key,
        value: &Bound<'_, PyAny>,
        is_json: bool,
        ttl_ms: Option<u64>,
        version: Option<u64>,
    ) -> PyResult<Option<u64>> {
        let operation = put(key, value, is_json, ttl_ms, version)?;
        match self.with(py, |store| store.write(operation))? {
            Outcome::Version(version) => Ok(Some(version)),
            _ => Ok(None),
        }
    }

    /// Removes a key; returns whether there was one.
    fn delete(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        let operation = Operation::Delete { key: key.0 };
        Ok(self.with(py, |store| store.write(operation))? == Outcome::Deleted(true))
    }

    /// Adds to the integer of a key; returns the sum.
    fn increment(&self, py: Python<'_>, key: Key, by: i64) -> PyResult<i64> {
        let operation = Operation::Increment { key: key.0, by };
        match self.with(py, |store| store.write(operation))? {
            Outcome::Number(number) => Ok(number),
            _ => Ok(0),
        }
    }

    /// Runs all operations or none: tuples of a name and the arguments of its method. Returns their
    /// results, or `None` if a key has another version.
    fn batch<'py>(
        &self,
        py: Python<'py>,
        operations: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let operations = operations.iter().map(operation).collect::<PyResult<Vec<_>>>()?;
        match self.with(py, |store| store.write(Operation::Batch(operations)))? {
            Outcome::Batch(outcomes) => outcomes
                .iter()
                .map(|outcome| result(py, outcome))
                .collect::<PyResult<_>>()
                .map(Some),
            _ => Ok(None),
        }
    }

    /// The next entries in the order of their keys, each with its key, and the cursor.
    ///
    /// With `bytes_keys` all keys are `bytes`.
    #[pyo3(signature = (*, prefix, start, end, limit, cursor, bytes_keys))]
    #[expect(clippy::type_complexity, reason = "they are tuples in Python")]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        prefix: Key,
        start: Option<Key>,
        end: Option<Key>,
        limit: usize,
        cursor: Option<Key>,
        bytes_keys: bool,
    ) -> PyResult<(Vec<(Bound<'py, PyAny>, Item<'py>)>, Option<Bound<'py, PyAny>>)> {
        let bytes = |key: Option<Key>| key.map(|key| key.0);
        let (start, end, cursor) = (bytes(start), bytes(end), bytes(cursor));
        let scan = Scan { prefix: prefix.0, start, end, cursor, limit };
        let page = self.with(py, |store| store.scan(&scan))?;
        let name = |key: &[u8]| match bytes_keys {
            true => PyBytes::new(py, key).into_any(),
            false => name(py, key),
        };
        let entries = page.entries.iter().map(|(key, entry)| (name(key), item(py, entry)));
        Ok((entries.collect(), page.cursor.as_deref().map(name)))
    }

    /// Calls `write` with the lines of all entries, as of one moment.
    fn dump(&self, py: Python<'_>, write: Py<PyAny>) -> PyResult<()> {
        let mut failed = None;
        self.with(py, |store| {
            store.dump(|lines| {
                failed = Python::attach(|py| write.call1(py, (PyBytes::new(py, lines),)).err());
                failed.is_none()
            })
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Puts the entries of lines that `dump` has written, all or none; `first` is the number of the
    /// first one.
    fn load(&self, py: Python<'_>, lines: &[u8], first: usize) -> PyResult<()> {
        self.with(py, |store| store.load(lines, first))
    }

    /// Reads every entry. Returns the number of entries, and the keys of damaged ones with reasons.
    fn check<'py>(&self, py: Python<'py>) -> PyResult<(u64, Vec<Damage<'py>>)> {
        let report = self.with(py, OpenStore::check)?;
        let damaged = report.damaged.iter().map(|(key, reason)| (name(py, key), *reason));
        Ok((report.entries, damaged.collect()))
    }

    /// Rewrites the file without its free pages. Returns its bytes before and after.
    fn compact(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        py.detach(|| self.store.compact()).map_err(raised)
    }

    /// Waits until the disk has all writes.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, OpenStore::sync)
    }
}

impl PyStore {
    /// Uses the store of this process while other Python threads run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&OpenStore) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        py.detach(|| work(&*self.store.open()?)).map_err(raised)
    }
}

/// A caller's fault is a `ValueError`, the system's an `OSError`.
fn raised(error: StoreError) -> PyErr {
    match error {
        StoreError::Invalid(text) => PyValueError::new_err(text),
        failed => PyOSError::new_err(failed.to_string()),
    }
}

fn item<'py>(py: Python<'py>, entry: &Entry) -> Item<'py> {
    let (is_json, bytes) = match &entry.value {
        Value::Json(text) => (true, text),
        Value::Bytes(bytes) => (false, bytes),
    };
    (entry.version, is_json, PyBytes::new(py, bytes))
}

fn put(
    key: Key,
    value: &Bound<'_, PyAny>,
    is_json: bool,
    ttl_ms: Option<u64>,
    version: Option<u64>,
) -> PyResult<Operation> {
    let bytes = with_buffer(value, <[u8]>::to_vec).map_err(|error| {
        let reason = error.value(value.py());
        PyTypeError::new_err(format!("value: {reason}"))
    })?;
    let value = if is_json { Value::Json(bytes) } else { Value::Bytes(bytes) };
    let expiry = Expiry::after(ttl_ms);
    Ok(Operation::Put { key: key.0, value, expiry, version })
}

fn operation(described: &Bound<'_, PyAny>) -> PyResult<Operation> {
    let name = described.get_item(0)?.extract::<String>()?;
    match &*name {
        "put" => {
            type Put<'py> = (String, Key, Bound<'py, PyAny>, bool, Option<u64>, Option<u64>);
            let (_, key, value, is_json, ttl_ms, version) = described.extract::<Put<'_>>()?;
            put(key, &value, is_json, ttl_ms, version)
        }
        "delete" => {
            let (_, key) = described.extract::<(String, Key)>()?;
            Ok(Operation::Delete { key: key.0 })
        }
        _ => {
            let (_, key, by) = described.extract::<(String, Key, i64)>()?;
            Ok(Operation::Increment { key: key.0, by })
        }
    }
}

fn result<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyAny>> {
    Ok(match outcome {
        Outcome::Version(version) => version.into_pyobject(py)?.into_any(),
        Outcome::Number(number) => number.into_pyobject(py)?.into_any(),
        Outcome::Deleted(was_present) => was_present.into_pyobject(py)?.to_owned().into_any(),
        Outcome::OtherVersion | Outcome::Batch(_) => py.None().into_bound(py),
    })
}
