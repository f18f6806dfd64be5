//! The documents: a call, short and long text, numbers. They are the same in each run.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// The params of a call.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
pub struct Params {
    pub a: i64,
    pub b: i64,
}

/// A call of `sum`.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
pub struct Call {
    pub jsonrpc: String,
    pub method: String,
    pub params: Params,
    pub id: i64,
}

/// All values.
pub struct Documents {
    pub call: Call,
    pub text_1k: String,
    pub text_1m: String,
    pub floats: Vec<f64>,
}

impl Documents {
    /// Text with an escape every 100 bytes or so, and numbers of all sizes with all their digits.
    pub fn new() -> Self {
        let line =
            "The quick brown fox jumps over the lazy dog, and nobody knows what for. ".repeat(2);
        let text = format!("{}\n", line.trim());
        let number = |index: i32| f64::from(index).sqrt() * 10f64.powi(index % 20 - 10);
        Self {
            call: Call {
                jsonrpc: "2.0".into(),
                method: "sum".into(),
                params: Params { a: 55, b: 21 },
                id: 1,
            },
            text_1k: text.repeat(1024 / text.len()),
            text_1m: text.repeat((1 << 20) / text.len()),
            floats: (1..=1000).map(number).collect(),
        }
    }

    /// The documents as text, by name.
    pub fn texts(&self) -> serde_json::Result<[(&'static str, Vec<u8>); 4]> {
        Ok([
            ("call", serde_json::to_vec(&self.call)?),
            ("text-1k", serde_json::to_vec(&self.text_1k)?),
            ("text-1m", serde_json::to_vec(&self.text_1m)?),
            ("floats-1000", serde_json::to_vec(&self.floats)?),
        ])
    }

    /// Writes them to files, for libraries that are measured elsewhere.
    pub fn write_to(&self, directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
        std::fs::create_dir_all(directory)?;
        for (name, text) in self.texts()? {
            std::fs::write(directory.join(format!("{name}.json")), text)?;
        }
        Ok(())
    }
}
