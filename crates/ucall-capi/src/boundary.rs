//! The boundary of every export: stops panics, and keeps the thread's last error.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST_ERROR: RefCell<(ErrorCode, CString)> = RefCell::default();
}

/// `ucall_error_t`: what kind of error it is.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum ErrorCode {
    #[default]
    None = 0,
    InvalidArgument = 1,
    AddressInUse = 2,
    Address = 3,
    Engine = 4,
    Tls = 5,
    Store = 6,
    Limit = 7,
    Thread = 8,
    InvalidJson = 9,
    InvalidReply = 10,
    System = 11,
    Bug = 12,
}

/// Why a function of the header failed. A text alone is an invalid argument.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Error {
    code: ErrorCode,
    text: String,
}

impl Error {
    pub(crate) fn new(code: ErrorCode, text: impl ToString) -> Self {
        Self { code, text: text.to_string() }
    }
}

impl From<String> for Error {
    fn from(text: String) -> Self {
        Self { code: ErrorCode::InvalidArgument, text }
    }
}

impl From<&str> for Error {
    fn from(text: &str) -> Self {
        text.to_string().into()
    }
}

/// Runs `body`; a panic in it becomes `fallback` and the thread's last error.
#[inline(always)]
pub(crate) fn catch_panic<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => {
            report_panic(panic);
            fallback
        }
    }
}

#[cold]
#[inline(never)]
fn report_panic(panic: Box<dyn Any + Send>) {
    set_last_error(ErrorCode::Bug, &format!("a bug in ucall: {}", panic_text(panic.as_ref())));
    // Dropping it may panic again.
    std::mem::forget(panic);
}

/// Runs a `body` that may fail; an error becomes `false` and the thread's last error.
pub(crate) fn report_result(body: impl FnOnce() -> Result<bool, Error>) -> bool {
    catch_panic(false, || match body() {
        Ok(answer) => {
            // A callback may have set an error of its own meanwhile.
            clear_last_error();
            answer
        }
        Err(error) => {
            set_last_error(error.code, &error.text);
            false
        }
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

pub(crate) fn set_last_error(code: ErrorCode, text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // While a thread ends, its variables may be gone.
    let _ = LAST_ERROR.try_with(|last| last.replace((code, text)));
}

pub(crate) fn clear_last_error() {
    let _ = LAST_ERROR.try_with(|last| {
        if last.borrow().0 != ErrorCode::None {
            last.take();
        }
    });
}

/// The thread's last error, until the next one.
pub(crate) fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(c"".as_ptr())
}

pub(crate) fn last_error_code() -> ErrorCode {
    LAST_ERROR.try_with(|last| last.borrow().0).unwrap_or_default()
}

/// No object in memory is longer. A failed `snprintf` returns a number that is, as a `size_t`.
const LENGTH_MAX: usize = isize::MAX as usize;

/// Why a pointer and a length are not a string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoString {
    Null,
    TooLong,
}

impl fmt::Display for NoString {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Null => "is NULL",
            Self::TooLong => "is longer than any object in memory: is its length negative?",
        })
    }
}

/// `UCALL_NUL_TERMINATED`: the length of a C string that ends at its NUL.
pub(crate) const NUL_TERMINATED: usize = usize::MAX;

/// The bytes of a C string.
///
/// # Safety
/// `text` is NULL, or readable for `length` bytes, or up to its NUL if the length is
/// [`NUL_TERMINATED`], throughout `'a`. Any other length above [`LENGTH_MAX`] is rejected unread.
#[inline]
pub(crate) unsafe fn bytes<'a>(text: *const c_char, length: usize) -> Result<&'a [u8], NoString> {
    match length {
        _ if text.is_null() => Err(NoString::Null),
        // SAFETY: our caller says that it ends at a NUL.
        NUL_TERMINATED => Ok(unsafe { CStr::from_ptr(text) }.to_bytes()),
        // SAFETY: our caller says that `length` bytes are readable.
        0..=LENGTH_MAX => Ok(unsafe { std::slice::from_raw_parts(text.cast(), length) }),
        _ => Err(NoString::TooLong),
    }
}

/// The bytes of a name, which ends at its NUL if its length is 0, too.
///
/// # Safety
/// As for [`bytes`].
#[inline]
pub(crate) unsafe fn name_bytes<'a>(
    name: *const c_char,
    length: usize,
) -> Result<&'a [u8], NoString> {
    let length = if length == 0 { NUL_TERMINATED } else { length };
    // SAFETY: passed on to our caller.
    unsafe { bytes(name, length) }
}

/// A name that is UTF-8; `None` for any other.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn name<'a>(name: *const c_char, length: usize) -> Option<&'a str> {
    // SAFETY: passed on to our caller.
    std::str::from_utf8(unsafe { name_bytes(name, length) }.ok()?).ok()
}

/// The bytes of a C string; `None` for NULL, which has no length.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn optional_bytes<'a>(
    text: *const c_char,
    length: usize,
) -> Result<Option<&'a [u8]>, NoString> {
    match length {
        0 | NUL_TERMINATED if text.is_null() => Ok(None),
        // SAFETY: passed on to our caller.
        _ => unsafe { bytes(text, length) }.map(Some),
    }
}

/// The text of a C string that ends at its NUL.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn string<'a>(text: *const c_char, what: &str) -> Result<&'a str, String> {
    // SAFETY: passed on to our caller.
    let bytes =
        unsafe { bytes(text, NUL_TERMINATED) }.map_err(|fault| format!("{what} {fault}"))?;
    std::str::from_utf8(bytes).map_err(|_| format!("{what} is not UTF-8"))
}

/// A string of the caller; `None` for NULL.
///
/// # Safety
/// `text` is NULL or a string.
pub(crate) unsafe fn optional<'a>(
    text: *const c_char,
    what: &str,
) -> Result<Option<&'a str>, String> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: our caller says that it is a string.
    unsafe { string(text, what) }.map(Some)
}

/// The strings of a list of the caller.
///
/// # Safety
/// `list` is NULL or holds `count` strings.
pub(crate) unsafe fn strings(
    list: *const *const c_char,
    count: usize,
    what: &str,
) -> Result<Vec<String>, String> {
    if list.is_null() || count == 0 {
        return Ok(Vec::new());
    }
    if count > LENGTH_MAX / size_of::<*const c_char>() {
        return Err(format!("{what}: its count is larger than any list: is it negative?"));
    }
    // SAFETY: our caller says that it holds `count` strings.
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    // SAFETY: as above.
    list.iter().map(|&text| unsafe { string(text, what) }.map(str::to_string)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error_text() -> String {
        // SAFETY: it ends at its NUL, and nothing replaces it meanwhile.
        unsafe { CStr::from_ptr(last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn an_impossible_length_is_rejected_unread() {
        let of = |length| {
            // SAFETY: the string has two bytes, and longer lengths are rejected unread.
            unsafe { bytes(c"ab".as_ptr(), length) }
        };
        assert_eq!((of(0), of(1)), (Ok(&b""[..]), Ok(&b"a"[..])));
        assert_eq!(of(NUL_TERMINATED), Ok(&b"ab"[..]));
        for length in [usize::MAX - 1, LENGTH_MAX + 1] {
            assert_eq!(of(length), Err(NoString::TooLong));
        }
        for length in [0, 1, usize::MAX] {
            // SAFETY: NULL is allowed.
            assert_eq!(unsafe { bytes(std::ptr::null(), length) }, Err(NoString::Null));
        }
        let negative = usize::MAX - 2;
        // SAFETY: NULL is allowed, and those lengths and counts are rejected unread.
        unsafe {
            let optional = |length| optional_bytes(std::ptr::null(), length);
            assert_eq!((optional(0), optional(NUL_TERMINATED)), (Ok(None), Ok(None)));
            assert_eq!(
                (optional(1), optional(negative)),
                (Err(NoString::Null), Err(NoString::Null))
            );
            assert_eq!(optional_bytes(c"ab".as_ptr(), negative), Err(NoString::TooLong));
            assert!(strings([c"ab".as_ptr()].as_ptr(), negative, "x").is_err());
        }
    }

    #[test]
    fn a_name_of_length_0_ends_at_its_nul() {
        // SAFETY: the string has two bytes.
        let of = |length| unsafe { name(c"ab".as_ptr(), length) };
        assert_eq!((of(0), of(1), of(NUL_TERMINATED)), (Some("ab"), Some("a"), Some("ab")));
        // SAFETY: it has one, which is not UTF-8.
        assert_eq!(unsafe { name(c"\xff".as_ptr(), 0) }, None);
    }

    #[test]
    fn a_panic_becomes_the_fallback_and_an_error() {
        assert_eq!(catch_panic(7, || panic!("on \0purpose")), 7);
        assert_eq!(last_error_text(), "a bug in ucall: on  purpose");
        assert_eq!(last_error_code(), ErrorCode::Bug);
        assert!(!report_result(|| Err("a reason".into())));
        assert_eq!(last_error_text(), "a reason");
        assert_eq!(last_error_code(), ErrorCode::InvalidArgument);
        assert!(report_result(|| Ok(true)));
        assert_eq!((last_error_text().as_str(), last_error_code()), ("", ErrorCode::None));
    }
}
