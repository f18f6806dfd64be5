//! Parses numbers of up to 19 digits as doubles, in one pass over their text.
//!
//! Up to 2^53, a number and a power of ten are doubles, of which one operation gives the nearest.
//! Longer ones, as those of most fractions, are multiplied with the reciprocal of a power of ten.
//! The rest is the standard library's.

/// Powers of ten that are doubles.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];
/// Powers of ten by which digits move that are read together.
const WHOLE_POWERS: [u64; 9] =
    [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
/// So many digits fit 64 bits.
const DIGITS_MAX: usize = 19;
/// Divided by more than 10^4, no number of 64 bits is half way between two doubles.
const TIE_EXPONENT_MIN: i32 = -4;
/// All integers up to it are doubles.
const EXACT_MAX: u64 = 1 << 53;

/// The nearest double of the number at the start of validated text, and its length; `None` of a
/// number that needs another parser, and of another value.
#[inline]
pub(super) fn parse_double(text: &[u8]) -> Option<(f64, usize)> {
    let is_negative = text.first() == Some(&b'-');
    let start = usize::from(is_negative);
    let (mut digits, mut end) = match text.get(start..) {
        // Most numbers with a fraction have one digit before it.
        Some([digit @ b'0'..=b'9', b'.', ..]) => (u64::from(digit & 0xf), start + 1),
        _ => parse_digits(text, start, 0),
    };
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

/// Appends digits to a number, up to eight at a time. It wraps if they are too many.
#[inline]
fn parse_digits(text: &[u8], mut position: usize, mut number: u64) -> (u64, usize) {
    while let Some(eight) = text.get(position..).and_then(<[u8]>::first_chunk::<8>) {
        let (digits, count) = leading_digits(u64::from_le_bytes(*eight));
        let power = WHOLE_POWERS.get(count).copied().unwrap_or(0);
        number = number.wrapping_mul(power).wrapping_add(digits);
        position += count;
        if count < 8 {
            return (number, position);
        }
    }
    while let Some(digit @ b'0'..=b'9') = text.get(position) {
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit & 0xf));
        position += 1;
    }
    (number, position)
}

/// The number of the digits that eight characters begin with, and how many these are.
#[inline]
fn leading_digits(word: u64) -> (u64, usize) {
    const ZEROS: u64 = 0x3030_3030_3030_3030;
    let low = word.wrapping_sub(ZEROS);
    let high = word.wrapping_add(0x4646_4646_4646_4646);
    // The highest bit of the first byte that is no digit is set, and of none before it.
    let others = (low | high) & 0x8080_8080_8080_8080;
    let count = others.trailing_zeros() / 8;
    // Zeros in front of the digits take the place of the others.
    let digits = low.checked_shl(64 - 8 * count).unwrap_or(0);
    // Pairs of digits, then pairs of pairs.
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let first = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let second = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    (first.wrapping_add(second) >> 32, count as usize)
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
    let power = exponent.unsigned_abs() as usize;
    if digits <= EXACT_MAX
        && let Some(factor) = POWERS.get(power)
    {
        let value = digits as f64;
        return Some(if exponent < 0 { value / factor } else { value * factor });
    }
    match exponent {
        _ if digits == 0 => Some(0.0),
        0 => Some(digits as f64),
        ..0 => RECIPROCALS.get(power).map(|reciprocal| divided(digits, exponent, *reciprocal)),
        _ => None,
    }
}

/// The double nearest to a number, which is not 0, times a negative power of ten, by the algorithm
/// of Eisel and Lemire ("Number Parsing at a Gigabyte per Second", section 5): a product with the
/// reciprocal of the power of five has all bits that rounding depends on.
#[inline]
fn divided(number: u64, exponent: i32, (high, low): (u64, u64)) -> f64 {
    /// The bits of a product of 63 bits behind those of a double and the one that rounds it.
    const REST_BITS: u32 = 9;
    let zeros = number.leading_zeros();
    let number = number << zeros;
    let (mut top, mut bottom) = product(number, high);
    if top.trailing_ones() >= REST_BITS {
        // What the rest of the reciprocal adds may carry into the bits that are kept.
        let (added, _) = product(number, low);
        let has_carry;
        (bottom, has_carry) = bottom.overflowing_add(added);
        top += u64::from(has_carry);
    }
    let upper = (top >> 63) as u32;
    let shift = REST_BITS + upper;
    let mut kept = top >> shift;
    // Half way between two doubles, exactly: this needs a divisor that divides the number.
    if bottom <= 1 && exponent >= TIE_EXPONENT_MIN && kept & 3 == 1 && kept << shift == top {
        kept -= 1;
    }
    // Rounded up where the last bit is set. A carry increments the exponent, as it should.
    let fraction = (kept + (kept & 1)) >> 1;
    let power = log2_of_power_of_ten(exponent) + upper as i32 - zeros as i32 + 63 + 1023;
    f64::from_bits((((power - 1) as u64) << 52) + fraction)
}

/// The upper and the lower half of a product.
#[inline]
fn product(left: u64, right: u64) -> (u64, u64) {
    let product = u128::from(left) * u128::from(right);
    ((product >> 64) as u64, product as u64)
}

/// The largest power of two that is no more than a power of ten, for small exponents.
#[inline]
fn log2_of_power_of_ten(exponent: i32) -> i32 {
    (exponent * 217_706) >> 16
}

/// The upper 128 bits of the reciprocals of powers of five, rounded up, in two halves.
static RECIPROCALS: [(u64, u64); 28] = {
    let mut all = [(0, 0); 28];
    let (mut index, mut divisor) = (1, 5_u64);
    while index < all.len() {
        all[index] = reciprocal(divisor);
        index += 1;
        divisor = divisor.wrapping_mul(5);
    }
    all
};

/// Of a divisor below 2^63 that is no power of two.
const fn reciprocal(divisor: u64) -> (u64, u64) {
    let mut rest = (1_u64 << (64 - divisor.leading_zeros())) - divisor;
    let mut quotient = 1_u128;
    let mut bits = 1;
    while bits < 128 {
        rest *= 2;
        quotient *= 2;
        if rest >= divisor {
            rest -= divisor;
            quotient += 1;
        }
        bits += 1;
    }
    quotient += 1;
    ((quotient >> 64) as u64, quotient as u64)
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
            "1.2345678901234567e-11",
            "9007199254740993e-27",
            "0e-9999",
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
            "1e-28",
            "1e400",
            "1e99999",
            "12345678901234567890",
            "0.00000000000000000001",
            "9007199254740993e1",
            "9007199254740993e-28",
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
