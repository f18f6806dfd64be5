//! Whole bodies: `POST /NAME` calls a function, for callers that know no JSON-RPC.
//!
//! | the body is | the params are |
//! |---|---|
//! | `application/json`, an object | its members |
//! | `application/json`, an array | its items, by position |
//! | empty, or none | none |
//! | `application/x-npy`, `image/*`, `application/octet-stream` | the first is the file |
//! | `application/octet-stream` with `Ucall-Dtype` and `Ucall-Shape` | the first is that array |
//! | `application/safetensors` | its arrays, by name |
//! | `multipart/form-data` | its fields, by name |
//!
//! Params in the query are added by name; the first param is then given by name, too.
//!
//! | `Accept` names | the response is |
//! |---|---|
//! | `application/json`, `*/*`, or nothing | the result, arrays in it as nested lists |
//! | `application/x-npy` | a result that is an array |
//! | `application/octet-stream` | a result that is an array, as its items, or bytes |
//! | `application/safetensors` | arrays by their names |
//! | `image/png` and others | a result that is such an image |

mod dtypes;
mod media;
mod multipart;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub(crate) use request::{BodyRequest, ParamKinds, read};
pub(crate) use response::{BodyReply, refused};

/// What a param takes of a field of a form, whose values are texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParamKind {
    /// A text as it is.
    Text,
    /// A list, of which each field of its name is an item; with what an item takes.
    List {
        /// Whether an item is a text as it is.
        is_text: bool,
    },
    /// What JSON has for it.
    Json,
}
