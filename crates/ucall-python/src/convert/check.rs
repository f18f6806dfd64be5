//! Finds all faults of a value, once reading has failed at the first.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use ucall_proto::json::ValueKind;

use super::{ConversionFault, Convert, Input};

/// The faults of a value, if it has any.
pub(crate) type Checked = Result<(), ConversionFault>;

/// Collects faults, until there are more than an error lists.
#[derive(Default)]
pub(crate) struct Faults(Option<ConversionFault>);

impl Faults {
    /// Adds those of a part. Whether no further part needs to be checked.
    pub(crate) fn add(&mut self, checked: Checked) -> bool {
        match (checked, &mut self.0) {
            (Ok(()), _) => false,
            (Err(ConversionFault::Value(found)), Some(ConversionFault::Value(all))) => {
                all.append(*found);
                all.are_too_many()
            }
            // A decoder that has run before this check, or would not have run at all.
            (Err(ConversionFault::Raised(error)), _) if is_ordinary(&error) => false,
            (Err(fault), all) => {
                let is_last = !matches!(fault, ConversionFault::Value(_));
                *all = Some(fault);
                is_last
            }
        }
    }

    pub(crate) fn result(self) -> Checked {
        self.0.map_or(Ok(()), Err)
    }
}

/// Whether an error is no interruption such as Ctrl-C.
fn is_ordinary(error: &PyErr) -> bool {
    Python::attach(|py| error.is_instance_of::<PyException>(py))
}

impl Input<'_, '_, '_> {
    /// Finds the faults of the next value. After too many of them, the rest is left unread.
    #[cold]
    pub(crate) fn check(&mut self, convert: &Convert) -> Checked {
        match (convert, self.reader.kind()) {
            (Convert::List(item), ValueKind::Array) => self.check_list(item),
            (Convert::Dict(value), ValueKind::Object) => self.check_dict(value),
            (Convert::Optional(inner), ValueKind::Array | ValueKind::Object) => {
                self.check(inner).map_err(|fault| fault.or_none(inner))
            }
            _ => self.check_whole(convert),
        }
    }

    /// A fault may leave a part of the value unread, so that its text is cut out first.
    fn check_whole(&mut self, convert: &Convert) -> Checked {
        let text = self.reader.skip();
        let mut input = Input::new(self.py, text, self.scratch);
        match convert {
            Convert::Custom(custom) => custom.check(&mut input),
            _ => input.read(convert).map(drop),
        }
    }

    fn check_list(&mut self, item: &Convert) -> Checked {
        let mut faults = Faults::default();
        self.reader.enter();
        for index in 0.. {
            if !self.reader.next_item()
                || faults.add(self.check(item).map_err(|fault| fault.at_index(index)))
            {
                break;
            }
        }
        faults.result()
    }

    fn check_dict(&mut self, value: &Convert) -> Checked {
        let mut faults = Faults::default();
        self.reader.enter();
        while let Some(key) = self.reader.next_key() {
            if faults.add(self.check(value).map_err(|fault| fault.at_key(&key.unescaped()))) {
                break;
            }
        }
        faults.result()
    }
}
