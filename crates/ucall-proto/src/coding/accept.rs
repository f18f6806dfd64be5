//! Which coding a client prefers (RFC 9110, section 12.5.3).

use super::Coding;

/// Weights are in thousandths.
const WEIGHT_MAX: u16 = 1000;

/// What a client says of the codings.
#[derive(Clone, Copy, Debug, Default)]
struct Weights {
    zstd: Option<u16>,
    gzip: Option<u16>,
    identity: Option<u16>,
    others: Option<u16>,
}

impl Coding {
    /// The coding that the values of `Accept-Encoding` prefer to none; zstd of two that are alike.
    #[must_use]
    pub fn accepted_by<'a>(values: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut weights = Weights::default();
        values.flat_map(|value| value.split(|&byte| byte == b',')).for_each(|it| weights.read(it));
        weights.preferred().filter(|coding| Self::named(coding.name().as_bytes()).is_some())
    }
}

impl Weights {
    /// Reads an element such as `gzip;q=0.5`. One that is invalid says nothing.
    fn read(&mut self, element: &[u8]) {
        let mut parts = element.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let Some(weight) = parts.next().map_or(Some(WEIGHT_MAX), read_weight) else { return };
        let known = match () {
            () if name.eq_ignore_ascii_case(b"zstd") => &mut self.zstd,
            () if name.eq_ignore_ascii_case(b"gzip") => &mut self.gzip,
            () if name.eq_ignore_ascii_case(b"x-gzip") => &mut self.gzip,
            () if name.eq_ignore_ascii_case(b"identity") => &mut self.identity,
            () if name == b"*" => &mut self.others,
            () => return,
        };
        *known = Some(weight);
    }

    fn preferred(&self) -> Option<Coding> {
        let weight = |listed: Option<u16>| listed.or(self.others).unwrap_or_default();
        let (zstd, gzip) = (weight(self.zstd), weight(self.gzip));
        let (coding, best) = if zstd >= gzip { (Coding::Zstd, zstd) } else { (Coding::Gzip, gzip) };
        (best > 0 && best >= self.identity.unwrap_or_default()).then_some(coding)
    }
}

/// The weight of `q=0.5` in thousandths.
fn read_weight(parameter: &[u8]) -> Option<u16> {
    let value = match parameter {
        [b'q' | b'Q', b'=', value @ ..] => value,
        _ => return None,
    };
    let (whole, decimals) = match value {
        [whole @ (b'0' | b'1')] => (whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return None,
    };
    let mut weight = u16::from(whole - b'0');
    for place in 0..3 {
        let digit = decimals.get(place).copied().unwrap_or(b'0');
        if !digit.is_ascii_digit() {
            return None;
        }
        weight = weight * 10 + u16::from(digit - b'0');
    }
    (weight <= WEIGHT_MAX).then_some(weight)
}

#[cfg(all(test, feature = "compression"))]
mod tests {
    use super::*;

    fn accepted(values: &[&str]) -> Option<Coding> {
        Coding::accepted_by(values.iter().map(|it| it.as_bytes()))
    }

    #[test]
    fn the_preferred_coding_is_found() {
        for (value, coding) in [
            ("gzip", Some(Coding::Gzip)),
            ("GZIP", Some(Coding::Gzip)),
            ("x-gzip", Some(Coding::Gzip)),
            ("zstd", Some(Coding::Zstd)),
            ("gzip, deflate, br, zstd", Some(Coding::Zstd)),
            ("gzip;q=0.9, zstd;q=0.8", Some(Coding::Gzip)),
            ("gzip;q=0.899, zstd ; q=0.9", Some(Coding::Zstd)),
            ("gzip;Q=1.000, zstd;q=0.999", Some(Coding::Gzip)),
            ("*", Some(Coding::Zstd)),
            ("*;q=0.5, zstd;q=0", Some(Coding::Gzip)),
            ("*, gzip;q=0", Some(Coding::Zstd)),
            ("identity, gzip;q=0.5", None),
            ("identity;q=0.5, gzip;q=0.5", Some(Coding::Gzip)),
            ("identity;q=0, *;q=0", None),
            ("gzip;q=0", None),
            ("gzip;q=0.000", None),
            ("br, deflate", None),
            ("", None),
            (",,", None),
            ("gzip;q=2, zstd;q=1.001", None),
            ("gzip;q=0.1234", None),
            ("gzip;q=", None),
            ("gzip;level=9", None),
            ("gzip zstd", None),
        ] {
            assert_eq!(accepted(&[value]), coding, "{value}");
        }
    }

    #[test]
    fn values_are_joined() {
        assert_eq!(accepted(&[]), None);
        assert_eq!(accepted(&["gzip;q=0.5", "zstd;q=0.4"]), Some(Coding::Gzip));
        assert_eq!(accepted(&["gzip", "gzip;q=0"]), None, "the last one counts");
    }
}
