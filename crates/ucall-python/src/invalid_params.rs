//! What is wrong with params that do not match a signature.

use crate::convert::{Checked, ConversionFault, Faults, Input};
use crate::procedure::{Extra, Param, Signature};

/// An error names at most this many parameters.
const NAMES_MAX: usize = 10;

/// All faults of params that could not be read because of `first`. Reads them again, for its own
/// sake: reading stops at the first fault, so that a call without any pays nothing for the others.
#[cold]
pub(crate) fn all_faults(
    signature: &Signature,
    mut input: Input<'_, '_, '_>,
    first: ConversionFault,
) -> ConversionFault {
    if !matches!(first, ConversionFault::Value(_)) {
        return first;
    }
    input.reader.rewind();
    let parts = input.take_parts_again();
    let mut faults = Faults::default();
    let mut is_given = vec![false; signature.params.len()];
    let is_full = match input.reader.enter_object() {
        true => check_by_name(signature, &mut input, &mut faults, &mut is_given),
        false => check_by_position(signature, &mut input, &mut faults, &mut is_given),
    };
    if !is_full {
        let params = signature.params.iter().zip(is_given);
        for (param, _) in params.filter(|(param, given)| !given && param.default.is_none()) {
            faults.add(Err(missing(param)));
        }
    }
    input.restore_parts(parts);
    faults.result().err().unwrap_or(first)
}

fn check_by_name(
    signature: &Signature,
    input: &mut Input<'_, '_, '_>,
    faults: &mut Faults,
    is_given: &mut [bool],
) -> bool {
    while let Some(key) = input.reader.next_key() {
        let found = signature.find(input.unescaped(key), 0);
        let known =
            found.and_then(|index| signature.params.get(index).zip(is_given.get_mut(index)));
        let name = key.unescaped();
        let extra = signature.extra.as_ref().and_then(|extra| extra.of(&name));
        let checked = match (known, extra) {
            (Some((param, is_given)), _) => {
                *is_given = true;
                input.check(&param.convert)
            }
            (None, Some(extra)) => input.check(extra),
            (None, None) => {
                input.reader.skip();
                Err(signature.unexpected(&name))
            }
        };
        if faults.add(checked.map_err(|fault| fault.at_key(&name))) {
            return true;
        }
    }
    false
}

fn check_by_position(
    signature: &Signature,
    input: &mut Input<'_, '_, '_>,
    faults: &mut Faults,
    is_given: &mut [bool],
) -> bool {
    input.reader.enter();
    for index in 0.. {
        if !input.reader.next_item() {
            break;
        }
        let position = signature.position_of(index);
        let known = signature.params.get(position).filter(|_| position < signature.positional);
        let checked: Checked = match (known, &signature.rest) {
            (Some(param), _) => {
                is_given.iter_mut().skip(position).take(1).for_each(|given| *given = true);
                input.check(&param.convert).map_err(|fault| named(fault, param))
            }
            (None, Some(rest)) => input.check(rest).map_err(|fault| fault.at_index(index)),
            (None, None) => {
                input.reader.skip();
                Err(too_many(signature.positional_params()).at_index(index))
            }
        };
        if faults.add(checked) {
            return true;
        }
    }
    false
}

impl Signature {
    /// The number of params that may be given by position.
    pub(crate) fn positional_params(&self) -> usize {
        self.positional - usize::from(self.context.is_some_and(|it| it < self.positional))
    }

    #[cold]
    pub(crate) fn unexpected(&self, key: &[u8]) -> ConversionFault {
        let mut params = self.params.iter().enumerate();
        let is_it = |(position, param): (usize, &Param)| {
            param.name.as_bytes() == key && self.context != Some(position)
        };
        if params.any(is_it) {
            return ConversionFault::value(
                "unexpected, expected by position only, in an array of params",
            );
        }
        let by_name = self.params.iter().filter(|param| param.by_name).map(|param| &*param.name);
        let keys = self.extra.iter().flat_map(Extra::names);
        let names: Vec<&str> = by_name.chain(keys).take(NAMES_MAX).collect();
        match names.len() {
            0 => too_many(self.positional_params()),
            _ => ConversionFault::value(format!("unexpected, expected {}", names.join(", "))),
        }
    }
}

#[cold]
pub(crate) fn named(fault: ConversionFault, param: &Param) -> ConversionFault {
    fault.at_key(param.name.as_bytes())
}

#[cold]
pub(crate) fn missing(param: &Param) -> ConversionFault {
    named(ConversionFault::value(format!("missing, expected {}", param.convert)), param)
}

#[cold]
pub(crate) fn too_many(max: usize) -> ConversionFault {
    let params = if max == 1 { "param" } else { "params" };
    match max {
        0 => ConversionFault::value("unexpected, expected no params"),
        _ => ConversionFault::value(format!("unexpected, expected at most {max} {params}")),
    }
}
