//! The coding of a client's requests over HTTP.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use ucall_proto::Compression;
use ucall_proto::coding::{Coding, Encoder, Flush};

use crate::{features, options};

/// What requests are compressed in. It is the fastest coding that servers of ucall take.
const CODING: Coding = Coding::Zstd;
/// Servers refuse a body that expands to more than this much, times its length.
const RATIO_MAX: usize = 100;
const PAYLOAD_TOO_LARGE: u16 = 413;
const UNSUPPORTED_MEDIA_TYPE: u16 = 415;

/// Which requests to one address are compressed, as far as a client knows.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Debug)]
pub(crate) struct CodingSupport {
    lengths: Compression,
    /// Whether the server does not take the coding.
    is_refused: AtomicBool,
}

#[pymethods]
impl CodingSupport {
    /// Compresses requests of these lengths.
    #[new]
    fn new(min_bytes: &Bound<'_, PyAny>, max_bytes: &Bound<'_, PyAny>) -> PyResult<Self> {
        features::require("compression")?;
        Ok(Self::of(options::compression(min_bytes, max_bytes)?))
    }

    /// The coding with these lengths, for another server.
    fn anew(&self) -> Self {
        Self::of(self.lengths)
    }

    /// Takes the status of a reply to a compressed request. Returns whether the coding may be its
    /// reason. 415 says that the server does not take it, so no later request is compressed; 413 is
    /// also that of a body which expands too much.
    fn refuse(&self, status: u16) -> bool {
        if status == UNSUPPORTED_MEDIA_TYPE {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        matches!(status, PAYLOAD_TOO_LARGE | UNSUPPORTED_MEDIA_TYPE)
    }
}

impl CodingSupport {
    fn of(lengths: Compression) -> Self {
        Self { lengths, is_refused: AtomicBool::new(false) }
    }

    /// The compressed document, and the header that says so; `None` if it is sent as it is.
    pub(super) fn encode(&self, document: &[u8]) -> Option<(Vec<u8>, String)> {
        let Compression { bytes_min, bytes_max } = self.lengths;
        if !(bytes_min..=bytes_max).contains(&document.len())
            || self.is_refused.load(Ordering::Relaxed)
        {
            return None;
        }
        let mut body = Vec::with_capacity(document.len() / 4);
        Encoder::new(CODING)?.encode(document, Flush::End, &mut body);
        if body.len() >= document.len() || document.len() / RATIO_MAX > body.len() {
            return None;
        }
        Some((body, format!("\r\nContent-Encoding: {}", CODING.name())))
    }
}
