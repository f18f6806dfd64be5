//! Paths with params: `/notes/{name}`.
//!
//! A param is a whole segment, and stands for one that is not empty. Paths are compared as they are
//! sent, so a `/` that is percent-encoded is a part of a segment.

/// A path of which some segments are params.
#[derive(Clone, Debug)]
pub struct PathPattern {
    segments: Box<[Segment]>,
}

#[derive(Clone, Debug)]
enum Segment {
    Literal(Box<[u8]>),
    /// The name of a param.
    Param(Box<str>),
}

impl PathPattern {
    /// The pattern of a route's path; `None` of a path without params.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        path.contains('{').then(|| Self { segments: path.split('/').map(Segment::of).collect() })
    }

    /// Whether a path is one of those that are meant.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let mut segments = path.split(|byte| *byte == b'/');
        self.segments.iter().all(|it| segments.next().is_some_and(|segment| it.matches(segment)))
            && segments.next().is_none()
    }

    /// The names of the params, each with its segment of a path that matches.
    pub fn params<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let segments = path.split(|byte| *byte == b'/');
        self.segments.iter().zip(segments).filter_map(|(it, segment)| match it {
            Segment::Literal(_) => None,
            Segment::Param(name) => Some((&**name, segment)),
        })
    }
}

impl Segment {
    fn of(text: &str) -> Self {
        match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            Some(name) => Self::Param(name.into()),
            None => Self::Literal(text.as_bytes().into()),
        }
    }

    fn matches(&self, segment: &[u8]) -> bool {
        match self {
            Self::Literal(text) => **text == *segment,
            Self::Param(_) => !segment.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_param_is_a_segment_that_is_not_empty() {
        let pattern = PathPattern::of("/notes/{name}/parts/{part}").expect("params");
        for (path, matches) in [
            ("/notes/a/parts/b", true),
            ("/notes/a%2Fb/parts/..", true),
            ("/notes//parts/b", false),
            ("/notes/a/parts/", false),
            ("/notes/a/parts", false),
            ("/notes/a/parts/b/", false),
            ("/notes/a/b/parts/c", false),
            ("/Notes/a/parts/b", false),
            ("/", false),
        ] {
            assert_eq!(pattern.matches(path.as_bytes()), matches, "{path}");
        }
        let params: Vec<_> = pattern.params(b"/notes/a%2Fb/parts/..").collect();
        assert_eq!(params, [("name", &b"a%2Fb"[..]), ("part", &b".."[..])]);
        assert!(PathPattern::of("/notes/*").is_none());
    }
}
