//! Rounds doubles to the floating-point numbers of 16 bits.

/// The bits of the nearest number of IEEE 754's half precision; of those as near, the even one.
pub(super) fn half_bits(value: f64) -> u16 {
    /// Of a double, and of a half.
    const FRACTION_BITS: i32 = 52;
    const HALF_FRACTION_BITS: i32 = 10;
    const BIAS: i32 = 1023;
    const HALF_EXPONENT_MIN: i32 = -14;

    let bits = value.to_bits();
    let sign = ((bits >> 48) & 0x8000) as u16;
    let exponent = ((bits >> FRACTION_BITS) & 0x7ff) as i32 - BIAS;
    let fraction = bits & ((1 << FRACTION_BITS) - 1);
    if exponent == 1024 {
        return sign | 0x7c00 | if fraction == 0 { 0 } else { 0x200 };
    }
    if exponent > 15 {
        return sign | 0x7c00;
    }
    // Numbers below the smallest normal one have fewer bits.
    let lost = FRACTION_BITS - HALF_FRACTION_BITS + (HALF_EXPONENT_MIN - exponent).max(0);
    if lost > FRACTION_BITS + 1 {
        return sign;
    }
    let whole = fraction | (1 << FRACTION_BITS);
    let (kept, rest) = (whole >> lost, whole & ((1 << lost) - 1));
    let half = 1_u64 << (lost - 1);
    let rounded = kept + u64::from(rest > half || rest == half && kept & 1 == 1);
    // The leading bit of a normal number adds one to the exponent, and so does a carry.
    let biased = u64::try_from(exponent.max(HALF_EXPONENT_MIN) - HALF_EXPONENT_MIN).unwrap_or(0);
    sign | ((biased << HALF_FRACTION_BITS) + rounded) as u16
}

/// The upper half of the nearest 32-bit float, rounded to the even one of two as near.
pub(super) fn bfloat_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let even = (bits >> 16) & 1;
    ((u64::from(bits) + 0x7fff + u64::from(even)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a half, by its definition.
    fn value_of(bits: u16) -> f64 {
        let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
        let (exponent, fraction) = ((bits >> 10) & 0x1f, f64::from(bits & 0x3ff));
        match exponent {
            0 => sign * fraction * 2_f64.powi(-24),
            0x1f if fraction == 0.0 => sign * f64::INFINITY,
            0x1f => f64::NAN,
            _ => sign * (1.0 + fraction / 1024.0) * 2_f64.powi(i32::from(exponent) - 15),
        }
    }

    #[test]
    fn each_half_is_its_own_nearest() {
        for bits in 0..=u16::MAX {
            let value = value_of(bits);
            if !value.is_nan() {
                assert_eq!(half_bits(value), bits, "{value}");
            }
        }
        assert!(value_of(half_bits(f64::NAN)).is_nan());
    }

    #[test]
    fn halves_are_rounded_to_the_nearest_and_to_even() {
        for bits in 0..0x7c00_u16 {
            let (low, high) = (value_of(bits), value_of(bits + 1));
            let high = if high.is_infinite() { 65536.0 } else { high };
            let middle = (low + high) / 2.0;
            let even = bits + (bits & 1);
            assert_eq!(half_bits(middle), even, "{middle}");
            assert_eq!(half_bits(-middle), even | 0x8000, "{middle}");
            assert_eq!(half_bits(middle.next_down()), bits, "{middle}");
            assert_eq!(half_bits(middle.next_up()), bits + 1, "{middle}");
        }
        assert_eq!(half_bits(5e-324), 0);
        assert_eq!(half_bits(1e300), 0x7c00);
    }

    #[test]
    fn bfloats_are_rounded_to_the_nearest_and_to_even() {
        for bits in [0, 1, 0x3f80, 0x3f81, 0x7f7e, 0x7f7f, 0x8000, 0xbf80] {
            let low = f32::from_bits(u32::from(bits) << 16);
            assert_eq!(bfloat_bits(low), bits);
            let middle = f32::from_bits((u32::from(bits) << 16) | 0x8000);
            assert_eq!(bfloat_bits(middle), bits + (bits & 1));
            assert_eq!(bfloat_bits(f32::from_bits(middle.to_bits() - 1)), bits);
            assert_eq!(bfloat_bits(f32::from_bits(middle.to_bits() + 1)), bits + 1);
        }
        assert!(f32::from_bits(u32::from(bfloat_bits(f32::NAN)) << 16).is_nan());
        assert_eq!(bfloat_bits(f32::NEG_INFINITY), 0xff80);
    }
}
