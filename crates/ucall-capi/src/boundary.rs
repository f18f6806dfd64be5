//! What every export stands behind: no panic crosses to C, and errors are told in words.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
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
    set_last_error(&format!("a bug in ucall: {}", panic_text(panic.as_ref())));
    // Dropping it may panic again.
    std::mem::forget(panic);
}

/// Runs what may fail with words; `false` and the thread's last error if it does.
pub(crate) fn report_result(body: impl FnOnce() -> Result<bool, String>) -> bool {
    catch_panic(false, || match body() {
        Ok(answer) => {
            // A callback on the way may have failed at something else.
            clear_last_error();
            answer
        }
        Err(error) => {
            set_last_error(&error);
            false
        }
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

pub(crate) fn set_last_error(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // During the end of a thread there may be nowhere to keep it.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
}

pub(crate) fn clear_last_error() {
    let _ = LAST_ERROR.try_with(|last| {
        if !last.borrow().is_empty() {
            last.take();
        }
    });
}

/// The thread's last error, until the next one.
pub(crate) fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Nothing in memory is longer. What `snprintf` returns when it fails is, as a `size_t`.
const LENGTH_MAX: usize = isize::MAX as usize;

/// Why a pointer and a length are no string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoString {
    Null,
    TooLong,
}

impl fmt::Display for NoString {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Null => "is NULL",
            Self::TooLong => "has a length that no text can have: is it a negative number?",
        })
    }
}

/// The bytes of a string of C. A length of 0 means that it ends at its NUL.
///
/// # Safety
/// `text` is NULL, or readable for `length` bytes, or up to its NUL; and stays so for `'a`. Above
/// [`LENGTH_MAX`] nothing is read.
#[inline]
pub(crate) unsafe fn bytes<'a>(text: *const c_char, length: usize) -> Result<&'a [u8], NoString> {
    match length {
        _ if text.is_null() => Err(NoString::Null),
        // SAFETY: our caller says that it ends at a NUL.
        0 => Ok(unsafe { CStr::from_ptr(text) }.to_bytes()),
        // SAFETY: our caller says that so many bytes are readable.
        1..=LENGTH_MAX => Ok(unsafe { std::slice::from_raw_parts(text.cast(), length) }),
        _ => Err(NoString::TooLong),
    }
}

/// The text of a string of C that ends at its NUL.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn string<'a>(text: *const c_char, what: &str) -> Result<&'a str, String> {
    // SAFETY: passed on to our caller.
    let bytes = unsafe { bytes(text, 0) }.map_err(|fault| format!("{what} {fault}"))?;
    std::str::from_utf8(bytes).map_err(|_| format!("{what} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error_text() -> String {
        // SAFETY: it ends at its NUL, and nothing replaces it meanwhile.
        unsafe { CStr::from_ptr(last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_length_that_no_text_can_have_is_not_read() {
        let of = |length| {
            // SAFETY: a string of two bytes, of which no more are asked for but in vain.
            unsafe { bytes(c"ab".as_ptr(), length) }
        };
        assert_eq!((of(0), of(1)), (Ok(&b"ab"[..]), Ok(&b"a"[..])));
        for length in [usize::MAX, usize::MAX - 1, LENGTH_MAX + 1] {
            assert_eq!(of(length), Err(NoString::TooLong));
        }
        for length in [0, 1, usize::MAX] {
            // SAFETY: NULL may always be asked for.
            assert_eq!(unsafe { bytes(std::ptr::null(), length) }, Err(NoString::Null));
        }
    }

    #[test]
    fn a_panic_becomes_the_fallback_and_an_error() {
        assert_eq!(catch_panic(7, || panic!("on \0purpose")), 7);
        assert_eq!(last_error_text(), "a bug in ucall: on  purpose");
        assert!(!report_result(|| Err("a reason".into())));
        assert_eq!(last_error_text(), "a reason");
        assert!(report_result(|| Ok(true)));
        assert_eq!(last_error_text(), "");
    }
}
