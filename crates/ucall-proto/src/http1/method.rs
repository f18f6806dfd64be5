//! Methods, and sets of them: those of a path.

/// The method of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// `POST`.
    #[default]
    Post,
    /// `OPTIONS`.
    Options,
    /// `GET`.
    Get,
    /// `HEAD`, whose reply has no body.
    Head,
    /// `PUT`.
    Put,
    /// `PATCH`.
    Patch,
    /// `DELETE`.
    Delete,
    /// Any other token.
    Other,
}

/// The methods that a route may have besides OPTIONS, in the order of `Allow`.
const NAMES: [(Method, &str); 7] = [
    (Method::Get, "GET"),
    (Method::Head, "HEAD"),
    (Method::Post, "POST"),
    (Method::Put, "PUT"),
    (Method::Patch, "PATCH"),
    (Method::Delete, "DELETE"),
    (Method::Options, "OPTIONS"),
];

/// The methods of one path. GET includes HEAD, and any method includes OPTIONS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Methods(u8);

impl Methods {
    /// None at all.
    pub const NONE: Self = Self(0);
    /// All, those without a name here included.
    pub const ALL: Self = Self(u8::MAX);
    /// Those of the path that JSON-RPC is called at.
    pub const CALLS: Self = Self(bit(Method::Post) | bit(Method::Options));

    /// Those of a page that is only read.
    pub const GET: Self = Self(bit(Method::Get) | bit(Method::Head) | bit(Method::Options));

    /// The method called `name`, in capitals, and what it includes; `None` if no route may have it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (method, _) = NAMES.iter().find(|(_, it)| *it == name)?;
        let included = match method {
            Method::Get => bit(Method::Head) | bit(Method::Options),
            Method::Head | Method::Options => return None,
            _ => bit(Method::Options),
        };
        Some(Self(bit(*method) | included))
    }

    /// The methods of both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Whether `method` is one of them.
    #[must_use]
    pub fn contains(self, method: Method) -> bool {
        self.0 & bit(method) != 0
    }

    /// Appends a header line with the names.
    pub(super) fn write_line(self, out: &mut Vec<u8>, header: &str) {
        let names = NAMES.iter().filter(|(method, _)| self.contains(*method));
        let names: Vec<&str> = names.map(|(_, name)| *name).collect();
        out.extend_from_slice(format!("{header}: {}\r\n", names.join(", ")).as_bytes());
    }
}

const fn bit(method: Method) -> u8 {
    1 << method as u8
}

impl Method {
    /// The name of the method; `None` for [`Method::Other`].
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(method, _)| *method == self).map(|(_, name)| *name)
    }
}
