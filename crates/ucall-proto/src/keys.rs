//! The keys of callers, which are sent in a header.
//!
//! Only their digests are kept. A key is compared by its digest, in constant time, and always with
//! all of them, so that the duration reveals nothing about the keys.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

type Digest = [u8; SHA256_OUTPUT_LEN];

/// The keys that are accepted.
#[derive(Debug)]
pub struct KeySet {
    /// Before the key, and a space: in lower case.
    scheme: Option<String>,
    digests: Vec<Digest>,
}

impl KeySet {
    /// Keys that are sent alone, or after an authentication scheme and a space (RFC 9110, 11.4).
    pub fn new<'a>(scheme: Option<&str>, keys: impl IntoIterator<Item = &'a str>) -> Self {
        let digests = keys.into_iter().map(digest_of).collect();
        Self { scheme: scheme.map(str::to_ascii_lowercase), digests }
    }

    /// The index of the key in the value of a header, if it is accepted.
    pub fn find(&self, value: &str) -> Option<usize> {
        let key = match &self.scheme {
            None => value,
            Some(expected) => {
                let (scheme, key) = value.split_once(' ')?;
                scheme.eq_ignore_ascii_case(expected).then_some(key)?
            }
        };
        self.find_digest(&digest_of(key.trim()), |one, other| {
            verify_slices_are_equal(one, other).is_ok()
        })
    }

    fn find_digest(
        &self,
        given: &Digest,
        mut is_equal: impl FnMut(&Digest, &Digest) -> bool,
    ) -> Option<usize> {
        let mut found = None;
        for (index, expected) in self.digests.iter().enumerate() {
            if is_equal(expected, given) {
                found = Some(index);
            }
        }
        found
    }
}

fn digest_of(key: &str) -> Digest {
    let digest = digest(&SHA256, key.as_bytes());
    let mut bytes = [0; SHA256_OUTPUT_LEN];
    bytes.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_after_its_scheme() {
        let keys = KeySet::new(Some("Bearer"), ["first", "second", "a b"]);
        for (value, expected) in [
            ("Bearer first", Some(0)),
            ("bEARER   second ", Some(1)),
            ("Bearer a b", Some(2)),
            ("Bearer third", None),
            ("Bearer firs", None),
            ("Basic first", None),
            ("Bearer", None),
            ("first", None),
            ("Bearer ", None),
            ("", None),
            ("Bearer first, Bearer first", None),
        ] {
            assert_eq!(keys.find(value), expected, "{value}");
        }
        let keys = KeySet::new(None, ["Bearer first", "second"]);
        assert_eq!(keys.find("second"), Some(1));
        assert_eq!(keys.find("Bearer first"), Some(0));
        assert_eq!(keys.find("first"), None);
    }

    #[test]
    fn the_digests_of_all_keys_are_compared() {
        let keys = KeySet::new(None, ["first", "second", "third"]);
        for given in ["first", "second", "third", "other"] {
            let mut compared = 0;
            let found = keys.find_digest(&digest_of(given), |one, other| {
                compared += 1;
                one == other
            });
            assert_eq!((found, compared), (keys.find(given), 3));
        }
    }
}
