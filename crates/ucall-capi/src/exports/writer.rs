//! A writer of JSON text.

use std::ffi::c_char;
use std::ptr;

use super::params::write_text_output;
use crate::boundary::{Error, ErrorCode, bytes, catch_panic, name_bytes, report_result};
use crate::handles;
use crate::writer::Writer;

/// A writer without a value.
#[unsafe(no_mangle)]
pub extern "C" fn ucall_writer_new() -> *mut Writer {
    catch_panic(ptr::null_mut(), || {
        let writer = Box::into_raw(Box::default());
        handles::create_checked(writer);
        writer
    })
}

/// Frees a writer.
///
/// # Safety
/// `writer` is NULL or alive, and is not used after.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_writer_free(writer: *mut Writer) {
    catch_panic((), || {
        if !writer.is_null() && handles::free_checked(writer, "ucall_writer_free") {
            // SAFETY: it came from `Box::into_raw`, and our caller gives it up.
            drop(unsafe { Box::from_raw(writer) });
        }
    });
}

/// Discards what a writer has.
///
/// # Safety
/// `writer` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_writer_clear(writer: *mut Writer) {
    // SAFETY: our caller says that it is NULL or alive.
    catch_panic((), || unsafe { writer.as_mut() }.map_or((), Writer::clear));
}

/// # Safety
/// `writer` is NULL, or alive and used by this thread alone.
unsafe fn with_writer(
    writer: *mut Writer,
    write: impl FnOnce(&mut Writer) -> Result<(), &'static str>,
) -> bool {
    report_result(|| {
        // SAFETY: our caller says that it is NULL or alive.
        let writer = unsafe { writer.as_mut() }.ok_or("writer is NULL")?;
        write(writer).map_err(|why| Error::new(ErrorCode::InvalidJson, why))?;
        Ok(true)
    })
}

/// An export that calls a method of a writer.
macro_rules! write {
    ($export:ident, ($($input:ident: $type:ty),*), $write:expr) => {
        /// Writes a part of a value.
        ///
        /// # Safety
        /// `writer` is NULL, or alive and used by this thread alone.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $export(writer: *mut Writer $(, $input: $type)*) -> bool {
            // SAFETY: passed on to our caller.
            unsafe { with_writer(writer, $write) }
        }
    };
}

write!(ucall_writer_begin_array, (), Writer::begin_array);
write!(ucall_writer_end_array, (), Writer::end_array);
write!(ucall_writer_begin_object, (), Writer::begin_object);
write!(ucall_writer_end_object, (), Writer::end_object);
write!(ucall_writer_null, (), |writer| writer.literal("null"));
write!(ucall_writer_i64, (value: i64), |writer| writer.i64(value));
write!(ucall_writer_u64, (value: u64), |writer| writer.u64(value));
write!(ucall_writer_f64, (value: f64), |writer| writer.f64(value));
write!(
    ucall_writer_bool,
    (value: bool),
    |writer| writer.literal(if value { "true" } else { "false" })
);

/// An export that passes text, which `$bytes` reads, to a method of a writer.
macro_rules! write_text {
    ($export:ident, $bytes:ident, $write:expr) => {
        /// Writes text.
        ///
        /// # Safety
        /// `writer` is NULL, or alive and used by this thread alone; `text` is NULL or readable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $export(
            writer: *mut Writer,
            text: *const c_char,
            length: usize,
        ) -> bool {
            // SAFETY: our caller says that it is NULL or readable.
            let text = unsafe { $bytes(text, length) };
            let write = |writer: &mut Writer| match text {
                Ok(text) => $write(writer, text),
                Err(_) => writer.reject("the writer got a text that is NULL or too long"),
            };
            // SAFETY: passed on to our caller.
            unsafe { with_writer(writer, write) }
        }
    };
}

write_text!(
    ucall_writer_key,
    name_bytes,
    |writer: &mut Writer, key| match std::str::from_utf8(key) {
        Ok(key) => writer.key(key),
        Err(_) => writer.reject("the writer got a key that is not UTF-8"),
    }
);
write_text!(
    ucall_writer_str,
    bytes,
    |writer: &mut Writer, value| match std::str::from_utf8(value) {
        Ok(value) => writer.string(value),
        Err(_) => writer.reject("the writer got a string that is not UTF-8"),
    }
);
write_text!(ucall_writer_json, bytes, |writer: &mut Writer, json| writer.json(json));

/// The text of a writer that has a whole value.
///
/// # Safety
/// `writer` is NULL, or alive and used by this thread alone; the outputs are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_writer_text(
    writer: *const Writer,
    output: *mut *const c_char,
    output_length: *mut usize,
) -> bool {
    report_result(|| {
        // SAFETY: our caller says that it is NULL or alive.
        let writer = unsafe { writer.as_ref() }.ok_or("writer is NULL")?;
        let text = writer.text().map_err(|why| Error::new(ErrorCode::InvalidJson, why))?;
        // SAFETY: our caller says that they are NULL or writable.
        Ok(unsafe { write_text_output(Some(text), output, output_length) })
    })
}
