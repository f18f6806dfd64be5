//! A store as the process that serves it uses it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use ucall_server::EngineClock;
use ucall_store::{
    Entry, Expiry, OpenStore, Operation, Outcome, Scan, Store, StoreError, StoreOptions, Value,
};

fn open(directory: &TempDir) -> Arc<OpenStore> {
    open_with(directory.path(), StoreOptions::default()).unwrap()
}

fn open_with(path: &Path, options: StoreOptions) -> Result<Arc<OpenStore>, StoreError> {
    Store::new(path.to_owned(), options).open()
}

fn json(text: &str) -> Value {
    Value::Json(text.as_bytes().to_vec())
}

fn put(key: &str, value: &str) -> Operation {
    Operation::Put { key: key.into(), value: json(value), expiry: Expiry::Never, version: None }
}

fn cas(key: &str, version: u64, value: &str) -> Operation {
    Operation::Put {
        key: key.into(),
        value: json(value),
        expiry: Expiry::Never,
        version: Some(version),
    }
}

fn put_for(key: &str, ttl_ms: u64) -> Operation {
    Operation::Put {
        key: key.into(),
        value: json("1"),
        expiry: Expiry::AfterMs(ttl_ms),
        version: None,
    }
}

fn increment(key: &str, by: i64) -> Operation {
    Operation::Increment { key: key.into(), by }
}

fn scan() -> Scan {
    Scan { prefix: Vec::new(), start: None, end: None, cursor: None, limit: Scan::LIMIT_MAX }
}

fn keys(store: &OpenStore, scan: &Scan) -> Vec<String> {
    let page = store.scan(scan).unwrap();
    page.entries.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
}

#[test]
fn a_value_is_read_back_with_its_version_also_after_a_restart() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    assert_eq!(store.get(b"a").unwrap(), None);
    assert_eq!(store.write(put("a", "[1, 2]")), Ok(Outcome::Version(1)));
    let bytes = Value::Bytes(vec![0, 255, b'\n']);
    let binary =
        Operation::Put { key: "b".into(), value: bytes, expiry: Expiry::Never, version: None };
    assert_eq!(store.write(binary), Ok(Outcome::Version(2)));
    assert_eq!(store.write(put("a", "null")), Ok(Outcome::Version(3)));
    assert_eq!(store.write(Operation::Delete { key: "a".into() }), Ok(Outcome::Deleted(true)));
    assert_eq!(store.write(Operation::Delete { key: "a".into() }), Ok(Outcome::Deleted(false)));
    drop(store);
    let store = open(&directory);
    assert_eq!(store.get(b"a").unwrap(), None);
    let value = Value::Bytes(vec![0, 255, b'\n']);
    assert_eq!(store.get(b"b").unwrap(), Some(Entry { value, version: 2 }));
    assert_eq!(store.write(put("a", "0")), Ok(Outcome::Version(4)), "no version is used twice");
}

#[test]
fn a_key_is_set_only_if_it_has_the_version() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    assert_eq!(store.write(cas("a", 1, "1")), Ok(Outcome::OtherVersion));
    assert_eq!(store.write(cas("a", 0, "1")), Ok(Outcome::Version(1)));
    assert_eq!(store.write(cas("a", 0, "2")), Ok(Outcome::OtherVersion));
    assert_eq!(store.write(cas("a", 1, "2")), Ok(Outcome::Version(2)));
    store.write(Operation::Delete { key: "a".into() }).unwrap();
    assert_eq!(store.write(cas("a", 2, "3")), Ok(Outcome::OtherVersion));
    assert_eq!(store.write(cas("a", 0, "3")), Ok(Outcome::Version(3)));
}

#[test]
fn integers_are_added_to_and_nothing_else_is() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    assert_eq!(store.write(increment("n", 5)), Ok(Outcome::Number(5)));
    assert_eq!(store.write(increment("n", -7)), Ok(Outcome::Number(-2)));
    assert_eq!(store.get(b"n").unwrap().unwrap().value, json("-2"));
    for text in ["\"1\"", "1.0", "1e2", "[1]", "null", "9223372036854775808"] {
        store.write(put("n", text)).unwrap();
        assert!(matches!(store.write(increment("n", 1)), Err(StoreError::Invalid(_))), "{text}");
        assert_eq!(store.get(b"n").unwrap().unwrap().value, json(text));
    }
    store.write(put("n", "9223372036854775807")).unwrap();
    let error = store.write(increment("n", 1)).unwrap_err();
    assert!(error.to_string().contains("the value is 9223372036854775807"), "{error}");
    let bytes = Value::Bytes(b"1".to_vec());
    store
        .write(Operation::Put {
            key: "n".into(),
            value: bytes,
            expiry: Expiry::Never,
            version: None,
        })
        .unwrap();
    assert!(store.write(increment("n", 1)).is_err());
}

#[test]
fn a_batch_runs_whole_or_not_at_all() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    let batch = vec![put("a", "1"), increment("n", 2), increment("n", 3), cas("b", 0, "2")];
    let outcomes =
        vec![Outcome::Version(1), Outcome::Number(2), Outcome::Number(5), Outcome::Version(4)];
    assert_eq!(store.write(Operation::Batch(batch)), Ok(Outcome::Batch(outcomes)));
    let refused = vec![put("c", "1"), Operation::Delete { key: "a".into() }, cas("b", 1, "3")];
    assert_eq!(store.write(Operation::Batch(refused)), Ok(Outcome::OtherVersion));
    store.write(put("text", "\"t\"")).unwrap();
    let failed = vec![put("c", "1"), increment("text", 1)];
    let error = store.write(Operation::Batch(failed)).unwrap_err();
    assert!(error.to_string().starts_with("operations[1].key: expected"), "{error}");
    assert_eq!(keys(&store, &scan()), ["a", "b", "n", "text"]);
    assert_eq!(store.write(put("a", "0")), Ok(Outcome::Version(6)));
}

#[test]
fn a_key_that_has_expired_is_absent() {
    let (directory, clock) = (TempDir::new().unwrap(), EngineClock::stopped());
    let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
    let store = open_with(directory.path(), options).unwrap();
    let pass = || clock.advance(Duration::from_millis(1));
    store.write(put_for("short", 1)).unwrap();
    store.write(put_for("again", 1)).unwrap();
    store.write(put_for("again", 1_000_000)).unwrap();
    store.write(put_for("stays", 1)).unwrap();
    store.write(put("stays", "1")).unwrap();
    store.write(put_for("counted", 1_000_000)).unwrap();
    store.write(increment("counted", 1)).unwrap();
    assert!(store.get(b"short").unwrap().is_some());
    pass();
    assert_eq!(store.get(b"short").unwrap(), None);
    assert_eq!(keys(&store, &scan()), ["again", "counted", "stays"]);
    assert_eq!(store.write(Operation::Delete { key: "short".into() }), Ok(Outcome::Deleted(false)));
    store.write(put_for("short", 1)).unwrap();
    pass();
    assert_eq!(store.write(increment("short", 4)), Ok(Outcome::Number(4)));
    assert_eq!(store.write(cas("stays", 0, "1")), Ok(Outcome::OtherVersion));
    pass();
    store.write(put("last", "1")).unwrap();
    assert_eq!(keys(&store, &scan()), ["again", "counted", "last", "short", "stays"]);
}

#[test]
fn a_scan_ends_after_a_mebibyte_of_values() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    let long = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    store.write(put("a", &long(1 << 19))).unwrap();
    store.write(put("b", &long(1 << 19))).unwrap();
    // A mebibyte is before this one.
    store.write(put("c", "1")).unwrap();
    store.write(put("d", "1")).unwrap();
    let page = store.scan(&scan()).unwrap();
    assert_eq!((page.entries.len(), page.cursor), (3, Some(b"c".to_vec())));
    let rest = Scan { cursor: Some(b"c".to_vec()), ..scan() };
    assert_eq!(keys(&store, &rest), ["d"]);
    store.write(put("b", &long((1 << 19) - 1))).unwrap();
    assert_eq!(keys(&store, &scan()), ["a", "b", "c", "d"]);
}

#[test]
fn a_scan_returns_pages_in_order_within_its_bounds() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    let names: Vec<String> = (0..30).map(|number| format!("k{number:02}")).collect();
    let puts = names.iter().map(|name| put(name, "1"));
    store.write(Operation::Batch(puts.chain([put("j", "1"), put("l", "1")]).collect())).unwrap();
    for limit in [1, 7, 30, 100] {
        let mut all = Vec::new();
        let mut next = Scan { prefix: b"k".to_vec(), limit, ..scan() };
        loop {
            let page = store.scan(&next).unwrap();
            assert!(page.entries.len() <= limit);
            all.extend(page.entries.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()));
            match page.cursor {
                Some(cursor) => next.cursor = Some(cursor),
                None => break,
            }
        }
        assert_eq!(all, names, "pages of {limit}");
    }
    let range = |start: &str, end: &str| Scan {
        start: Some(start.into()),
        end: Some(end.into()),
        ..scan()
    };
    assert_eq!(keys(&store, &range("k28", "l")), ["k28", "k29"]);
    assert_eq!(keys(&store, &range("", "k00")), ["j"]);
    let nothing: [&str; 0] = [];
    for (start, end) in [("k", "k"), ("z", "a"), ("", ""), ("zz", "zzz")] {
        assert_eq!(keys(&store, &range(start, end)), nothing, "{start} to {end}");
    }
    let prefixed = Scan { prefix: b"k1".to_vec(), ..range("k15", "k18") };
    assert_eq!(keys(&store, &prefixed), ["k15", "k16", "k17"]);
    for limit in [0, Scan::LIMIT_MAX + 1] {
        let error = store.scan(&Scan { limit, ..scan() }).unwrap_err();
        assert_eq!(error.to_string(), "limit: expected 1 to 10000");
    }
}

#[test]
fn a_scan_of_large_values_ends_early() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    let large = format!("\"{}\"", "x".repeat(600_000));
    for key in ["a", "b", "c", "d"] {
        store.write(put(key, &large)).unwrap();
    }
    let page = store.scan(&scan()).unwrap();
    assert_eq!((page.entries.len(), page.cursor), (2, Some(b"b".to_vec())));
}

#[test]
fn keys_and_values_past_their_limits_are_refused() {
    let directory = TempDir::new().unwrap();
    let options = StoreOptions { value_bytes_max: 10, ..StoreOptions::default() };
    let store = open_with(directory.path(), options).unwrap();
    let longest = "k".repeat(511);
    store.write(put(&longest, "1")).unwrap();
    assert!(store.get(longest.as_bytes()).unwrap().is_some());
    for key in [String::new(), "k".repeat(512)] {
        for operation in
            [put(&key, "1"), increment(&key, 1), Operation::Batch(vec![cas(&key, 0, "1")])]
        {
            let error = store.write(operation).unwrap_err();
            assert!(error.to_string().contains("key: expected 1 to 511 bytes"), "{error}");
        }
        assert!(matches!(store.get(key.as_bytes()), Err(StoreError::Invalid(_))));
    }
    store.write(put("a", "1234567890")).unwrap();
    let error = store.write(put("a", "12345678901")).unwrap_err();
    assert!(error.to_string().contains("max_value_bytes"), "{error}");
}

#[test]
fn a_full_store_refuses_writes_and_keeps_what_it_has() {
    let directory = TempDir::new().unwrap();
    let options = StoreOptions { bytes_max: 1 << 20, ..StoreOptions::default() };
    let store = open_with(directory.path(), options).unwrap();
    let value = format!("\"{}\"", "x".repeat(10_000));
    let mut written = 0;
    let error = loop {
        match store.write(put(&format!("{written:05}"), &value)) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, StoreError::Failed("the store has grown to max_bytes".into()));
    assert!(written > 50);
    assert_eq!(keys(&store, &scan()).len().min(50), 50);
    store.write(Operation::Delete { key: b"00000".to_vec() }).unwrap();
    store.write(put("00000", "1")).unwrap();
    drop(store);
    assert_eq!(
        open_with(directory.path(), StoreOptions::default())
            .unwrap()
            .get(b"00001")
            .unwrap()
            .unwrap()
            .value,
        json(&value)
    );
}

#[test]
fn one_path_is_one_store_with_one_set_of_options() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    let again = Store::new(directory.path().join("."), StoreOptions::default());
    assert!(Arc::ptr_eq(&store, &again.open().unwrap()));
    let other = StoreOptions { value_bytes_max: 5, ..StoreOptions::default() };
    let error = open_with(directory.path(), other.clone()).unwrap_err();
    assert!(error.to_string().contains("with other options"), "{error}");
    again.close();
    drop(store);
    open_with(directory.path(), other).unwrap();
}

#[test]
fn a_path_that_is_no_store_is_refused() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let error = open_with(&file, StoreOptions::default()).unwrap_err();
    assert!(error.to_string().starts_with("cannot open the store"), "{error}");
    let foreign = directory.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("data.mdb"), [7; 100_000]).unwrap();
    let error = open_with(&foreign, StoreOptions::default()).unwrap_err();
    assert!(error.to_string().starts_with("cannot open the store"), "{error}");
}

#[test]
fn random_operations_do_what_they_do_to_a_map() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    let mut model: BTreeMap<String, (u64, String)> = BTreeMap::new();
    let (mut version, mut random) = (0, 0x2545_F491_4F6C_DD1D_u64);
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for step in 0..600 {
        let key = format!("k{}", next(8));
        let known = model.get(&key).map_or(0, |(version, _)| *version);
        match next(4) {
            0 => {
                version += 1;
                let written = store.write(put(&key, &step.to_string())).unwrap();
                assert_eq!(written, Outcome::Version(version));
                model.insert(key, (version, step.to_string()));
            }
            1 => {
                let was_present = model.remove(&key).is_some();
                let deleted = store.write(Operation::Delete { key: key.into() }).unwrap();
                assert_eq!(deleted, Outcome::Deleted(was_present));
            }
            2 => {
                let expected = next(2) * known;
                let written = store.write(cas(&key, expected, &step.to_string())).unwrap();
                match expected == known {
                    true => {
                        version += 1;
                        assert_eq!(written, Outcome::Version(version));
                        model.insert(key, (version, step.to_string()));
                    }
                    false => assert_eq!(written, Outcome::OtherVersion),
                }
            }
            _ => {
                version += 1;
                let before: i64 = model.get(&key).map_or(0, |(_, text)| text.parse().unwrap());
                assert_eq!(store.write(increment(&key, 3)), Ok(Outcome::Number(before + 3)));
                model.insert(key, (version, (before + 3).to_string()));
            }
        }
    }
    let found: BTreeMap<String, (u64, String)> = store
        .scan(&scan())
        .unwrap()
        .entries
        .into_iter()
        .map(|(key, Entry { value, version })| {
            let Value::Json(text) = value else { panic!("bytes") };
            (String::from_utf8(key).unwrap(), (version, String::from_utf8(text).unwrap()))
        })
        .collect();
    assert_eq!(found, model);
}

#[test]
fn writes_of_many_threads_are_all_durable_and_counted() {
    let directory = TempDir::new().unwrap();
    let store = open(&directory);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..25).for_each(|_| drop(store.write(increment("n", 1)).unwrap())));
        }
    });
    drop(store);
    assert_eq!(open(&directory).get(b"n").unwrap().unwrap().value, json("200"));
}
