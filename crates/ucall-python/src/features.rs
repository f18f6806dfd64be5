//! The cargo features of this build, and the error for what it lacks.
//!
//! A name of `ucall._core` that belongs to a missing feature raises ImportError when it is looked
//! up. So no other code, in Rust or in Python, has to check for features.

use pyo3::exceptions::{PyAttributeError, PyImportError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

struct Feature {
    name: &'static str,
    is_enabled: bool,
    /// What a build without it lacks.
    what: &'static str,
    /// The names in `ucall._core` that only a build with it has.
    exports: &'static [&'static str],
}

const FEATURES: [Feature; 5] = [
    // Without it bodies in gzip or zstd get 415.
    Feature {
        name: "compression",
        is_enabled: cfg!(feature = "compression"),
        what: "compression",
        exports: &[],
    },
    Feature {
        name: "queue",
        is_enabled: cfg!(feature = "queue"),
        what: "queues",
        exports: &[
            "Block",
            "Message",
            "PickleLoader",
            "QueueCore",
            "QueueLink",
            "QueueLog",
            "QueueTunnel",
            "Receipt",
            "bytes_view",
            "check_shared_memory",
            "system_certificates",
        ],
    },
    Feature {
        name: "relay",
        is_enabled: cfg!(feature = "relay"),
        what: "relay",
        exports: &["RelayStatus", "insert_relay"],
    },
    Feature {
        name: "store",
        is_enabled: cfg!(feature = "store"),
        what: "store",
        exports: &["Store", "insert_store"],
    },
    // Without it all names are there, and fail: see `xdp/unsupported.rs` of ucall-engine.
    Feature { name: "xdp", is_enabled: cfg!(feature = "xdp"), what: "AF_XDP", exports: &[] },
];

impl Feature {
    fn error(&self) -> PyErr {
        let Self { name, what, .. } = self;
        PyImportError::new_err(format!(
            "this build of ucall has no {what}: it was built without the feature `{name}`"
        ))
    }
}

/// Raises the error of a feature if this build lacks it.
pub(crate) fn require(name: &str) -> PyResult<()> {
    match FEATURES.iter().find(|feature| feature.name == name && !feature.is_enabled) {
        Some(feature) => Err(feature.error()),
        None => Ok(()),
    }
}

/// Adds `FEATURES`, the names of the features of this build, and `__getattr__`.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let enabled = FEATURES.iter().filter(|feature| feature.is_enabled).map(|feature| feature.name);
    module.add("FEATURES", PyTuple::new(module.py(), enabled.collect::<Vec<_>>())?)?;
    // `add` would list it in `__all__`.
    module.setattr("__getattr__", wrap_pyfunction!(report_missing, module)?)
}

/// Raises the error for a name that is not in the module (PEP 562).
#[pyfunction(name = "__getattr__")]
fn report_missing(name: &str) -> PyResult<()> {
    match FEATURES.iter().find(|feature| feature.exports.contains(&name)) {
        Some(feature) => Err(feature.error()),
        None => {
            let text = format!("module 'ucall._core' has no attribute '{name}'");
            Err(PyAttributeError::new_err(text))
        }
    }
}
