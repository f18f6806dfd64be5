//! Parses numbers of up to 19 digits as doubles, in one pass over their text.
//!
//! Up to 2^53, a number and a power of ten are doubles, of which one operation gives the nearest.
//! Longer ones, as those of most fractions, are divided as integers of 128 bits, with all bits that
//! rounding depends on. The rest is the standard library's.

/// Powers of ten that are doubles.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];
/// So many digits fit 64 bits.
const DIGITS_MAX: usize = 19;
/// All integers up to it are doubles.
const EXACT_MAX: u64 = 1 << 53;

/// The nearest double of the number at the start of validated text, and its length; `None` of a
/// number that needs another parser, and of another value.
#[inline]
pub(super) fn parse_double(text: &[u8]) -> Option<(f64, usize)> {
    let is_negative = text.first() == Some(&b'-');
    let start = usize::from(is_negative);
    let (mut digits, mut end) = parse_digits(text, start, 0);
    let mut count = end - start;
    if count == 0 {
        return None;
    }
    // A zero before the point is no digit of the number.
    count -= usize::from(digits == 0 && count == 1);
    let mut exponent = 0;
    if text.get(end) == Some(&b'.') {
        let fraction = end + 1;
        (digits, end) = parse_digits(text, fraction, digits);
        count += end - fraction;
        exponent = -((end - fraction) as i32);
    }
    if count > DIGITS_MAX {
        return None;
    }
    if let Some(b'e' | b'E') = text.get(end) {
        let (power, after) = parse_exponent(text, end + 1)?;
        exponent += power;
        end = after;
    }
    let value = scaled(digits, exponent)?;
    Some((if is_negative { -value } else { value }, end))
}

/// Appends digits to a number, eight at a time. It wraps if they are too many.
#[inline]
fn parse_digits(text: &[u8], mut position: usize, mut number: u64) -> (u64, usize) {
    while let Some(eight) = text.get(position..).and_then(<[u8]>::first_chunk::<8>)
        && let Some(value) = eight_digits(u64::from_le_bytes(*eight))
    {
        number = number.wrapping_mul(100_000_000).wrapping_add(value);
        position += 8;
    }
    while let Some(digit @ b'0'..=b'9') = text.get(position) {
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit & 0xf));
        position += 1;
    }
    (number, position)
}

/// The number of eight characters, if all are digits.
#[inline]
fn eight_digits(word: u64) -> Option<u64> {
    const ZEROS: u64 = 0x3030_3030_3030_3030;
    let low = word.wrapping_sub(ZEROS);
    let high = word.wrapping_add(0x4646_4646_4646_4646);
    if (low | high) & 0x8080_8080_8080_8080 != 0 {
        return None;
    }
    // Pairs of digits, then pairs of pairs.
    let pairs = low.wrapping_mul(10).wrapping_add(low >> 8);
    let first = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let second = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    Some(first.wrapping_add(second) >> 32)
}

/// Parses an exponent of up to four digits.
fn parse_exponent(text: &[u8], start: usize) -> Option<(i32, usize)> {
    let (sign, first) = match text.get(start) {
        Some(b'-') => (-1, start + 1),
        Some(b'+') => (1, start + 1),
        _ => (1, start),
    };
    let (power, end) = parse_digits(text, first, 0);
    (1..=4).contains(&(end - first)).then_some((sign * power as i32, end))
}

/// The double nearest to `digits` times a power of ten, if it is simple to find.
#[inline]
fn scaled(digits: u64, exponent: i32) -> Option<f64> {
    let power = POWERS.get(exponent.unsigned_abs() as usize);
    if digits <= EXACT_MAX {
        let value = digits as f64;
        return match power {
            Some(power) if exponent < 0 => Some(value / power),
            Some(power) => Some(value * power),
            None if digits == 0 => Some(0.0),
            None => None,
        };
    }
    match exponent {
        0 => Some(digits as f64),
        -19..0 => Some(divided(digits, 10_u64.pow(exponent.unsigned_abs()))),
        _ => None,
    }
}

/// The double nearest to the quotient, which is neither large nor small.
#[inline]
fn divided(number: u64, divisor: u64) -> f64 {
    let (left, right) = (number.leading_zeros(), divisor.leading_zeros());
    let (number, divisor) = (u128::from(number << left) << 63, u128::from(divisor << right));
    // Both have 64 bits, so that the quotient has 63 or 64.
    let quotient = (number / divisor) as u64;
    let has_rest = u128::from(quotient) * divisor != number;
    // A double has 53 of the bits. The others, and whether there are more, decide on rounding.
    let rounded = (quotient | u64::from(has_rest)) as f64;
    rounded * power_of_two(right as i32 - left as i32 - 63)
}

fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the number is parsed here, and as the standard library does.
    fn is_parsed(text: &str) -> bool {
        for rest in ["", ",1", "]", " "] {
            let whole = format!("{text}{rest}");
            let Some((value, len)) = parse_double(whole.as_bytes()) else { return false };
            let expected: f64 = text.parse().unwrap();
            assert_eq!((value.to_bits(), len), (expected.to_bits(), text.len()), "{text}");
        }
        true
    }

    /// A generator of numbers (xorshift), the same in each run.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn common_numbers_are_parsed() {
        for text in [
            "0",
            "-0",
            "0.0",
            "-0.0",
            "1",
            "-1.5",
            "0.1",
            "0.30000000000000004",
            "1e5",
            "1E+5",
            "-2.5e-3",
            "12345678",
            "123456789",
            "1234567890123456",
            "9007199254740993",
            "9007199254740993.0",
            "9999999999999999999",
            "0.9999999999999999999",
            "1e22",
            "1e-22",
            "0e9999",
            "0.0000001",
            "-0.12543210387229919",
            "1.7976931348623157",
            "0.5",
            "4503599627370496.5",
            "4503599627370497.5",
            "9007199254740992.5",
            "900719925474099.35",
        ] {
            assert!(is_parsed(text), "{text}");
        }
    }

    #[test]
    fn other_numbers_and_values_are_left() {
        for text in [
            "1e23",
            "1e-23",
            "1e400",
            "1e99999",
            "12345678901234567890",
            "0.00000000000000000001",
            "9007199254740993e1",
        ] {
            assert!(!is_parsed(text), "{text}");
        }
        for text in ["", "-", "null", "\"1\"", "[1]", ".5", "e5"] {
            assert_eq!(parse_double(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn random_numbers_are_those_of_the_standard_library() {
        let (mut state, mut parsed) = (0x9e37_79b9_7f4a_7c15, 0);
        for _ in 0..40_000 {
            let bits = random(&mut state);
            // Of the interval [0, 1), and with the digits of a 32-bit float.
            let unit = (bits >> 11) as f64 / EXACT_MAX as f64;
            parsed += usize::from(is_parsed(&unit.to_string()));
            parsed += usize::from(is_parsed(&f64::from(unit as f32 * 8.0 - 4.0).to_string()));
            // Digits with a point anywhere, most of them halves of nothing.
            let digits = (random(&mut state) >> (bits % 40)).to_string();
            let point = (bits >> 7) as usize % digits.len();
            let (whole, fraction) = digits.split_at(point);
            let whole = whole.trim_start_matches('0');
            let whole = if whole.is_empty() { "0" } else { whole };
            is_parsed(&format!("{whole}.{fraction}"));
            is_parsed(&f64::from_bits(bits >> 1 & !(0x7ff << 52) | 0x3c0 << 52).to_string());
        }
        assert!(parsed > 70_000, "{parsed}");
    }

    #[test]
    fn ties_are_rounded_to_even() {
        // Halves of the distance between doubles, and what is a little more or less.
        for exponent in 1..=10_u32 {
            for base in [EXACT_MAX / 2 + 1, EXACT_MAX / 2 + 2, EXACT_MAX - 1, EXACT_MAX / 2 + 12345]
            {
                // (2 base + 1) / 2^(exponent + 1) as decimal digits, exactly.
                let numerator = u128::from(2 * base + 1) * 5_u128.pow(exponent + 1);
                let point = exponent as usize + 1;
                let digits = numerator.to_string();
                let (whole, fraction) = digits.split_at(digits.len() - point);
                is_parsed(&format!("{whole}.{fraction}"));
                is_parsed(&format!("{whole}.{fraction}1"));
            }
        }
    }
}
