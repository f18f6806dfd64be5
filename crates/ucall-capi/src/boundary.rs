//! What every export stands behind: no panic crosses to C, and errors are told in words.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs `body`; a panic in it becomes `fallback` and the thread's last error.
#[inline(always)]
pub(crate) fn guard<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => {
            tell(panic);
            fallback
        }
    }
}

#[cold]
#[inline(never)]
fn tell(panic: Box<dyn Any + Send>) {
    set_last_error(&format!("a bug in ucall: {}", panic_text(panic.as_ref())));
    // Dropping it may panic again.
    std::mem::forget(panic);
}

/// Runs what may fail with words; `false` and the thread's last error if it does.
pub(crate) fn succeeds(body: impl FnOnce() -> Result<bool, String>) -> bool {
    guard(false, || match body() {
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

fn set_last_error(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // During the end of a thread there may be nowhere to keep it.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
}

fn clear_last_error() {
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

/// The bytes of a string of C; `None` for NULL. A length of 0 means that it ends at its NUL.
///
/// # Safety
/// `text` is NULL, or readable for `length` bytes, or up to its NUL; and stays so for `'a`.
#[inline]
pub(crate) unsafe fn bytes<'a>(text: *const c_char, length: usize) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    if length == 0 {
        // SAFETY: our caller says that it ends at a NUL.
        return Some(unsafe { CStr::from_ptr(text) }.to_bytes());
    }
    // SAFETY: our caller says that so many bytes are readable.
    Some(unsafe { std::slice::from_raw_parts(text.cast(), length) })
}

/// The text of a string of C that ends at its NUL.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn string<'a>(text: *const c_char, what: &str) -> Result<&'a str, String> {
    // SAFETY: passed on to our caller.
    let bytes = unsafe { bytes(text, 0) }.ok_or_else(|| format!("{what} is NULL"))?;
    std::str::from_utf8(bytes).map_err(|_| format!("{what} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> String {
        // SAFETY: it ends at its NUL, and nothing replaces it meanwhile.
        unsafe { CStr::from_ptr(last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_the_fallback_and_words() {
        assert_eq!(guard(7, || panic!("on \0purpose")), 7);
        assert_eq!(told(), "a bug in ucall: on  purpose");
        assert!(!succeeds(|| Err("a reason".into())));
        assert_eq!(told(), "a reason");
        assert!(succeeds(|| Ok(true)));
        assert_eq!(told(), "");
    }
}
