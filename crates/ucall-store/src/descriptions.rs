//! The descriptions of the native procedures: names, summaries and JSON Schemas.

use ucall_server::NativeProcedure;

/// A key that is bytes.
macro_rules! key_bytes {
    () => {
        concat!(
            r#"{"type":"object","required":["bytes"],"properties":{"bytes":"#,
            r#"{"type":"string","contentEncoding":"base64"}}}"#
        )
    };
}

macro_rules! key {
    () => {
        concat!(
            r#""key":{"anyOf":[{"type":"string","minLength":1,"maxLength":511},"#,
            key_bytes!(),
            "]}"
        )
    };
}

/// A member that is a key or a part of one, or `null`.
macro_rules! optional_key {
    ($name:literal) => {
        concat!("\"", $name, r#"":{"anyOf":[{"type":["string","null"]},"#, key_bytes!(), "]}")
    };
}

/// Members that set a value.
macro_rules! value {
    () => {
        concat!(
            r#""value":{},"ttl_ms":{"type":["integer","null"],"minimum":1},"#,
            r#""bytes":{"type":"string","contentEncoding":"base64"}"#
        )
    };
}

/// An entry's version and value.
macro_rules! entry {
    () => {
        concat!(
            r#""version":{"type":"integer"},"value":{},"#,
            r#""bytes":{"type":"string","contentEncoding":"base64"}"#
        )
    };
}

const KEY: &str = concat!(r#"{"type":"object","required":["key"],"properties":{"#, key!(), "}}");
const PUT: &str =
    concat!(r#"{"type":"object","required":["key"],"properties":{"#, key!(), ",", value!(), "}}");
const CAS: &str = concat!(
    r#"{"type":"object","required":["key","version"],"properties":{"#,
    key!(),
    r#","version":{"type":"integer","minimum":0},"#,
    value!(),
    "}}"
);
const INCREMENT: &str = concat!(
    r#"{"type":"object","required":["key"],"properties":{"#,
    key!(),
    r#","by":{"type":"integer","default":1}}}"#
);
const SCAN: &str = concat!(
    r#"{"type":"object","properties":{"#,
    optional_key!("prefix"),
    ",",
    optional_key!("start"),
    ",",
    optional_key!("end"),
    r#","limit":{"type":"integer","minimum":1,"maximum":10000,"default":100},"#,
    optional_key!("cursor"),
    "}}"
);
const WATCH: &str = concat!(
    r#"{"type":"object","properties":{"#,
    optional_key!("key"),
    ",",
    optional_key!("prefix"),
    "}}"
);
const BATCH: &str = concat!(
    r#"{"type":"object","required":["operations"],"properties":{"operations":"#,
    r#"{"type":"array","maxItems":1000,"items":{"type":"object","required":["method","params"],"#,
    r#""properties":{"method":{"enum":["put","delete","cas","increment"]},"#,
    r#""params":{"type":["array","object"]}}}}}}"#
);
const ENTRY: &str =
    concat!(r#"{"type":["object","null"],"required":["version"],"properties":{"#, entry!(), "}}");
const PAGE: &str = concat!(
    r#"{"type":"object","required":["entries","cursor"],"properties":{"entries":{"type":"array","#,
    r#""items":{"type":"object","required":["key","version"],"properties":{"#,
    key!(),
    ",",
    entry!(),
    "}}},",
    optional_key!("cursor"),
    "}}"
);
const CHANGE: &str = concat!(
    r#"{"type":"object","required":["event","version"],"properties":{"event":"#,
    r#"{"enum":["watch","put","delete","expire"]},"#,
    key!(),
    ",",
    entry!(),
    "}}"
);

/// Name, summary, params and result of each procedure.
const PROCEDURES: [[&str; 4]; 8] = [
    ["get", "Returns the version and the value of a key, or null.", KEY, ENTRY],
    ["put", "Sets the value of a key, and returns its new version.", PUT, r#"{"type":"integer"}"#],
    ["delete", "Removes a key, and returns whether there was one.", KEY, r#"{"type":"boolean"}"#],
    [
        "cas",
        "Sets the value of a key that has this version, 0 if it is absent. Returns its new \
         version, or null if it has another.",
        CAS,
        r#"{"type":["integer","null"]}"#,
    ],
    [
        "increment",
        "Adds to the integer of a key, and returns the sum. An absent key has 0.",
        INCREMENT,
        r#"{"type":"integer"}"#,
    ],
    ["scan", "Returns entries in the order of their keys, and a cursor.", SCAN, PAGE],
    [
        "batch",
        "Runs all operations or none. Returns their results, or null if a key has another version.",
        BATCH,
        r#"{"type":["array","null"]}"#,
    ],
    [
        "watch",
        "Streams the changes of a key, of keys with a prefix, or of all keys, until it is \
         cancelled. An item has an event (watch, put, delete or expire) and a version.",
        WATCH,
        r#"{"type":"null"}"#,
    ],
];

/// The procedures of the store `name`.
pub(crate) fn describe(name: &str) -> Vec<NativeProcedure> {
    let described = |&[procedure, summary, params, result]: &[&'static str; 4]| NativeProcedure {
        name: format!("{name}.{procedure}"),
        summary,
        params,
        result,
        item: (procedure == "watch").then_some(CHANGE),
    };
    PROCEDURES.iter().map(described).collect()
}
