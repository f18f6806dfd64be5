//! The `Date` header's text: IMF-fixdate (RFC 9110, section 5.6.7), from seconds since 1970.

/// The bytes of a date, always.
pub const DATE_BYTES: usize = 29;

/// The last second of the year 9999, which is the last that the format can express.
const SECONDS_MAX: u64 = 253_402_300_799;

const WEEKDAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// `Sat, 21 Nov 2026 21:00:00 GMT`, for the given seconds since 1970. After the year 9999 it is the
/// last second of that year.
#[must_use]
pub fn date_text(unix_seconds: u64) -> [u8; DATE_BYTES] {
    let seconds = unix_seconds.min(SECONDS_MAX);
    let days = seconds / 86_400;
    let (year, month, day) = civil_date(days);
    let [y1, y2] = digits(year / 100);
    let [y3, y4] = digits(year % 100);
    let [d1, d2] = digits(day);
    let [h1, h2] = digits(seconds / 3600 % 24);
    let [m1, m2] = digits(seconds / 60 % 60);
    let [s1, s2] = digits(seconds % 60);
    let [w1, w2, w3] = *name(&WEEKDAYS, days % 7);
    let [n1, n2, n3] = *name(&MONTHS, month - 1);
    [
        w1, w2, w3, b',', b' ', d1, d2, b' ', n1, n2, n3, b' ', y1, y2, y3, y4, b' ', h1, h2, b':',
        m1, m2, b':', s1, s2, b' ', b'G', b'M', b'T',
    ]
}

/// Year, month and day of a day since 1970, by counting years from March, so that the leap day
/// is the last of its year (Howard Hinnant's `civil_from_days`).
#[must_use]
pub fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

fn name<'a>(names: &[&'a [u8; 3]], index: u64) -> &'a [u8; 3] {
    names.get(index as usize).copied().unwrap_or(b"???")
}

fn digits(number: u64) -> [u8; 2] {
    [b'0' + (number / 10 % 10) as u8, b'0' + (number % 10) as u8]
}
