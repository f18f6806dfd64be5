//! The paths at which a server takes calls.

use std::iter;
use std::sync::Arc;

use super::head::{Head, ParsedHead, TargetKind};

/// The paths of calls, of upgrades to WebSockets, and of what belongs to them, which lies below.
/// By default `/`, beside which a WebSocket may also be opened at `/ws`.
#[derive(Clone, Debug, Default)]
pub struct CallPaths(Option<Arc<[Box<str>]>>);

impl CallPaths {
    /// Paths that begin with a slash, and end with one only if they are `/`.
    #[must_use]
    pub fn new(paths: &[String]) -> Self {
        match paths {
            [path] if path == "/" => Self::default(),
            _ => Self(Some(paths.iter().map(|path| path.as_str().into()).collect())),
        }
    }

    /// What the paths below those of calls begin with, without a slash at the end.
    pub fn bases(&self) -> impl Iterator<Item = &str> {
        let is_default = self.0.is_none();
        let paths = self.0.iter().flat_map(|paths| paths.iter().map(|path| base_of(path)));
        paths.chain(iter::once("").filter(move |_| is_default))
    }

    /// What follows a path of calls, and the slash behind it, in another path.
    pub fn names_in<'a>(&self, path: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.bases().filter_map(move |base| path.strip_prefix(base.as_bytes())?.strip_prefix(b"/"))
    }

    /// The same head, whose target is that of calls at these paths.
    pub(crate) fn apply<'a>(&self, mut head: Head<'a>) -> Head<'a> {
        let text = head.bytes();
        self.retarget(head.parsed_mut(), text);
        head
    }

    /// Has a head at one of these paths, and none at `/`, be that of a call.
    #[inline]
    pub(super) fn retarget(&self, parsed: &mut ParsedHead, text: &[u8]) {
        if let Some(paths) = &self.0 {
            retarget(paths, parsed, text);
        }
    }
}

#[cold]
fn retarget(paths: &[Box<str>], parsed: &mut ParsedHead, text: &[u8]) {
    let has = |path: &[u8]| paths.iter().any(|it| it.as_bytes() == path);
    parsed.target = match parsed.target {
        kind @ (TargetKind::Asterisk | TargetKind::Authority) => kind,
        TargetKind::WebSocket if has(b"/") => TargetKind::WebSocket,
        _ if has(Head::new(text, parsed).path_and_query().0) => TargetKind::Root,
        _ => TargetKind::Other,
    };
    parsed.update_fast_path();
}

fn base_of(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}
