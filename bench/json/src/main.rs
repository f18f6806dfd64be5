//! JSON alone, with criterion: `parse/LIBRARY/DOCUMENT` and `write/LIBRARY/DOCUMENT`.
//!
//! Every library reads into the same types and writes the same values; the program first checks
//! that their results are equal. simd-json changes its input, and the copy for that is not timed.

mod documents;
mod ours;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion};
use serde::{Serialize, de::DeserializeOwned};

use documents::{Call, Documents};

/// One document, and ucall's functions that read and write it.
struct Case<'a, T> {
    name: &'static str,
    text: &'a [u8],
    value: &'a T,
    read: fn(&[u8]) -> Option<T>,
    write: fn(&T, &mut Vec<u8>),
}

impl<T: Serialize + DeserializeOwned + PartialEq> Case<'_, T> {
    fn check(&self) {
        let simd: Option<T> = simd_json::from_slice(&mut self.text.to_vec()).ok();
        let serde: Option<T> = serde_json::from_slice(self.text).ok();
        let mut written = Vec::new();
        (self.write)(self.value, &mut written);
        let again: Option<T> = serde_json::from_slice(&written).ok();
        for read in [(self.read)(self.text), serde, simd, again] {
            assert!(read.as_ref() == Some(self.value), "{}: read or written wrongly", self.name);
        }
    }

    fn parse(&self, criterion: &mut Criterion) {
        let name = self.name;
        criterion.bench_function(&format!("parse/ucall/{name}"), |bencher| {
            bencher.iter(|| (self.read)(black_box(self.text)));
        });
        criterion.bench_function(&format!("parse/serde_json/{name}"), |bencher| {
            bencher.iter(|| serde_json::from_slice::<T>(black_box(self.text)).ok());
        });
        let mut buffers = simd_json::Buffers::default();
        criterion.bench_function(&format!("parse/simd-json/{name}"), |bencher| {
            bencher.iter_batched_ref(
                || self.text.to_vec(),
                |text| simd_json::serde::from_slice_with_buffers::<T>(text, &mut buffers).ok(),
                BatchSize::SmallInput,
            );
        });
    }

    fn write(&self, criterion: &mut Criterion) {
        let name = self.name;
        let mut out = Vec::with_capacity(self.text.len() * 2);
        criterion.bench_function(&format!("write/ucall/{name}"), |bencher| {
            bencher.iter(|| {
                out.clear();
                (self.write)(black_box(self.value), &mut out);
                out.len()
            });
        });
        criterion.bench_function(&format!("write/serde_json/{name}"), |bencher| {
            bencher.iter(|| {
                out.clear();
                serde_json::to_writer(&mut out, black_box(self.value)).is_ok()
            });
        });
        criterion.bench_function(&format!("write/simd-json/{name}"), |bencher| {
            bencher.iter(|| {
                out.clear();
                simd_json::to_writer(&mut out, black_box(self.value)).is_ok()
            });
        });
    }

    fn run(&self, criterion: &mut Criterion) {
        self.check();
        self.parse(criterion);
        self.write(criterion);
    }
}

fn write_text(text: &String, out: &mut Vec<u8>) {
    ucall_proto::json::write_string(out, text);
}

fn write_floats(floats: &Vec<f64>, out: &mut Vec<u8>) {
    ours::write_floats(floats, out);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let documents = Documents::new();
    if let Some(directory) = std::env::var_os("JSON_DOCUMENTS") {
        documents.write_to(directory.as_ref())?;
    }
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .configure_from_args();
    let Documents { call, text_1k, text_1m, floats } = &documents;
    let [
        (call_name, call_text),
        (short, text_1k_text),
        (long, text_1m_text),
        (numbers, floats_text),
    ] = documents.texts()?;
    let case = |name, text, value, read, write| Case::<String> { name, text, value, read, write };
    let calls: Case<Call> = Case {
        name: call_name,
        text: &call_text,
        value: call,
        read: ours::call,
        write: ours::write_call,
    };
    calls.run(&mut criterion);
    case(short, &text_1k_text, text_1k, ours::text, write_text).run(&mut criterion);
    case(long, &text_1m_text, text_1m, ours::text, write_text).run(&mut criterion);
    let all_floats: Case<Vec<f64>> = Case {
        name: numbers,
        text: &floats_text,
        value: floats,
        read: ours::floats,
        write: write_floats,
    };
    all_floats.run(&mut criterion);
    criterion.final_summary();
    Ok(())
}
