//! Routes: the functions that answer HTTP requests other than calls, by path and method.

use std::sync::Arc;

use ucall_proto::http1::{Method, Methods};

use crate::metrics::MetricsReader;
use crate::protected_resource::ProtectedResource;

mod pattern;

pub use pattern::PathPattern;

/// Which requests a route answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteAccess {
    /// Those of callers that [`Handler::authenticate`](crate::Handler::authenticate) accepts.
    Authenticated,
    /// All, without authentication.
    Public,
}

/// How a route takes the bodies of its requests.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct BodyRules {
    /// Whether it takes long ones while they arrive.
    pub streams: bool,
    /// The longest one, if that is not the server's
    /// [`body_bytes_max`](ucall_proto::Limits::body_bytes_max).
    pub bytes_max: Option<usize>,
}

/// What answers the requests of a route.
#[derive(Debug)]
pub(crate) enum RouteTarget<P> {
    /// A procedure of the handler.
    Procedure(P),
    /// A procedure of the handler that answers what nothing else does: an application.
    Mount(P),
    /// The server itself: `/healthz`.
    Live,
    /// The server itself: `/readyz`. When it is ready, the procedure runs the program's checks.
    Ready(Option<P>),
    /// The server itself: `/metrics`.
    Metrics(MetricsReader),
    /// The Model Context Protocol.
    Mcp,
    /// The Open Inference Protocol.
    Inference,
    /// Whether the server takes calls, as the Open Inference Protocol asks. The procedure runs the
    /// program's checks.
    InferenceReady(Option<P>),
    /// Whether the server runs, as the Open Inference Protocol asks.
    InferenceLive,
    /// The server itself: its metadata for OAuth.
    Resource(Arc<ProtectedResource>),
}

impl<P> RouteTarget<P> {
    /// Whether it answers although the worker drains or is overloaded.
    pub(crate) fn is_health_check(&self) -> bool {
        matches!(self, Self::Live | Self::Ready(_) | Self::InferenceLive | Self::InferenceReady(_))
    }
}

/// The routes of one server. A search compares the paths one after another: there are few.
#[derive(Debug)]
pub(crate) struct RouteTable<P> {
    /// Exact paths first, then those with params, then prefixes, the longest first.
    paths: Vec<Path<P>>,
    /// What answers the requests that no other route does, the longest prefix first.
    mounts: Vec<Mount<P>>,
}

/// What answers the requests below a path.
#[derive(Debug)]
struct Mount<P> {
    /// The path, without a `/` at the end.
    prefix: Box<[u8]>,
    route: Route<P>,
}

/// The routes of one path.
#[derive(Debug)]
struct Path<P> {
    /// As it was registered, apart from a `*` at the end.
    text: Box<[u8]>,
    means: PathMeaning,
    routes: Vec<Route<P>>,
}

/// Which paths are meant.
#[derive(Clone, Debug)]
enum PathMeaning {
    /// The text.
    Exact,
    /// Those that match.
    Matching(PathPattern),
    /// Those that begin with the text.
    Prefix,
}

#[derive(Debug)]
pub(crate) struct Route<P> {
    methods: Methods,
    pub(crate) access: RouteAccess,
    pub(crate) target: Arc<RouteTarget<P>>,
    pub(crate) body: BodyRules,
}

impl PathMeaning {
    fn of(path: &str) -> Self {
        match PathPattern::of(path) {
            Some(pattern) => Self::Matching(pattern),
            None if path.ends_with('*') => Self::Prefix,
            None => Self::Exact,
        }
    }

    /// The place of such paths in the order of a search.
    fn place(&self) -> u8 {
        match self {
            Self::Exact => 0,
            Self::Matching(_) => 1,
            Self::Prefix => 2,
        }
    }
}

impl<P> Default for RouteTable<P> {
    fn default() -> Self {
        Self { paths: Vec::new(), mounts: Vec::new() }
    }
}

impl<P> Clone for RouteTable<P> {
    fn clone(&self) -> Self {
        Self { paths: self.paths.clone(), mounts: self.mounts.clone() }
    }
}

impl<P> Clone for Mount<P> {
    fn clone(&self) -> Self {
        Self { prefix: self.prefix.clone(), route: self.route.clone() }
    }
}

impl<P> Clone for Path<P> {
    fn clone(&self) -> Self {
        let Self { text, means, routes } = self;
        Self { text: text.clone(), means: means.clone(), routes: routes.clone() }
    }
}

impl<P> Clone for Route<P> {
    fn clone(&self) -> Self {
        let Self { methods, access, target, body } = self;
        Self { methods: *methods, access: *access, target: target.clone(), body: *body }
    }
}

impl<P> Route<P> {
    /// Whether it takes long bodies while they arrive.
    pub(crate) fn streams_body(&self) -> bool {
        self.body.streams || matches!(*self.target, RouteTarget::Mount(_))
    }
}

impl<P> RouteTable<P> {
    /// Adds a route, in place of earlier ones of its path and methods. A path that ends in `*`
    /// means all paths that begin with the rest; a segment `{name}` is any that is not empty.
    pub(crate) fn insert(
        &mut self,
        path: &str,
        methods: Methods,
        access: RouteAccess,
        target: RouteTarget<P>,
        body: BodyRules,
    ) {
        let (means, text) = (PathMeaning::of(path), path.strip_suffix('*').unwrap_or(path));
        let place = means.place();
        let route = Route { methods, access, target: Arc::new(target), body };
        let is_same = |it: &&mut Path<P>| it.means.place() == place && *it.text == *text.as_bytes();
        match self.paths.iter_mut().find(is_same) {
            // The first route with a method has it.
            Some(path) => path.routes.insert(0, route),
            None => {
                let text = text.as_bytes().into();
                self.paths.push(Path { text, means, routes: vec![route] });
                self.paths.sort_by_key(|path| (path.means.place(), usize::MAX - path.text.len()));
            }
        }
    }

    /// Has a procedure answer all requests of a path, and of those below it, that no other route
    /// answers: `prefix` is the path without a `/` at the end.
    pub(crate) fn mount(&mut self, prefix: &str, procedure: P) {
        let (access, target) = (RouteAccess::Public, Arc::new(RouteTarget::Mount(procedure)));
        let route = Route { methods: Methods::ALL, access, target, body: BodyRules::default() };
        self.mounts.push(Mount { prefix: prefix.as_bytes().into(), route });
        self.mounts.sort_by_key(|mount| usize::MAX - mount.prefix.len());
    }

    /// Removes the routes of a path.
    pub(crate) fn remove(&mut self, path: &str) {
        self.paths.retain(|it| it.means.place() > 0 || *it.text != *path.as_bytes());
    }

    /// The methods of a path.
    pub(crate) fn methods(&self, path: &[u8]) -> Methods {
        let routes = self.of_path(path).iter().chain(self.mount_of(path));
        routes.fold(Methods::default(), |methods, route| methods.union(route.methods))
    }

    /// The route of a path and a method.
    pub(crate) fn find(&self, path: &[u8], method: Method) -> Option<&Route<P>> {
        let route = self.of_path(path).iter().find(|route| route.methods.contains(method));
        route.or_else(|| self.mount_of(path))
    }

    fn mount_of(&self, path: &[u8]) -> Option<&Route<P>> {
        let found = self.mounts.iter().find(|mount| {
            let rest = path.strip_prefix(&*mount.prefix);
            rest.is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
        });
        found.map(|mount| &mount.route)
    }

    fn of_path(&self, path: &[u8]) -> &[Route<P>] {
        let found = self.paths.iter().find(|it| match &it.means {
            PathMeaning::Exact => *path == *it.text,
            PathMeaning::Matching(pattern) => pattern.matches(path),
            PathMeaning::Prefix => path.starts_with(&it.text),
        });
        found.map_or(&[], |path| &path.routes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: usize) -> RouteTarget<usize> {
        RouteTarget::Procedure(number)
    }

    fn number_of(route: &Route<usize>) -> usize {
        match *route.target {
            RouteTarget::Procedure(number) => number,
            _ => panic!("no procedure"),
        }
    }

    fn methods(names: &[&str]) -> Methods {
        let named = names.iter().map(|name| Methods::named(name).expect("a method"));
        named.fold(Methods::default(), Methods::union)
    }

    fn insert(table: &mut RouteTable<usize>, path: &str, names: &[&str], at: usize) {
        let (access, body) = (RouteAccess::Authenticated, BodyRules::default());
        table.insert(path, methods(names), access, number(at), body);
    }

    #[test]
    fn an_exact_path_comes_before_params_and_these_before_the_longest_prefix() {
        let mut table = RouteTable::default();
        let paths = ["/*", "/a", "/a/*", "/a/b/*", "/a/b/c", "/a/{x}/d", "/a/b/{x}"];
        for (at, path) in paths.into_iter().enumerate() {
            insert(&mut table, path, &["GET"], at);
        }
        for (path, number) in [
            ("/", 0),
            ("/a", 1),
            ("/a/", 2),
            ("/a/c", 2),
            ("/a/b/", 3),
            ("/a/b/c", 4),
            ("/a*", 0),
            ("/a/x/d", 5),
            ("/a/b/e", 6),
            ("/a/b/e/f", 3),
            ("/a/{x}/d", 5),
        ] {
            let found = table.find(path.as_bytes(), Method::Head);
            assert_eq!(found.map(number_of), Some(number), "{path}");
        }
        assert!(table.find(b"*", Method::Get).is_none() && table.methods(b"*").is_empty());
    }

    #[test]
    fn methods_of_one_path_have_their_own_routes_and_the_last_one_holds() {
        let mut table = RouteTable::default();
        insert(&mut table, "/a", &["GET", "POST"], 1);
        let (access, body) = (RouteAccess::Public, BodyRules::default());
        table.insert("/a", methods(&["POST"]), access, number(2), body);
        let found =
            |method| table.find(b"/a", method).map(|route| (number_of(route), route.access));
        assert_eq!(found(Method::Get), Some((1, RouteAccess::Authenticated)));
        assert_eq!(found(Method::Post), Some((2, RouteAccess::Public)));
        assert_eq!(found(Method::Put), None);
        assert_eq!(table.methods(b"/a"), methods(&["GET", "POST"]));
    }

    #[test]
    fn methods_of_one_pattern_have_their_own_routes() {
        let mut table = RouteTable::default();
        insert(&mut table, "/a/{x}", &["GET"], 1);
        insert(&mut table, "/a/{x}", &["PUT"], 2);
        let found = |method| table.find(b"/a/b", method).map(number_of);
        assert_eq!([Method::Get, Method::Put].map(found), [Some(1), Some(2)]);
        assert_eq!(found(Method::Post), None);
        assert_eq!(table.methods(b"/a/b"), methods(&["GET", "PUT"]));
    }
}
