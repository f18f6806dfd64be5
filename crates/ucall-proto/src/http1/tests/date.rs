//! Dates, compared with known ones and with another implementation.

use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use crate::http1::date_text;

fn date(unix_seconds: u64) -> String {
    String::from_utf8(date_text(unix_seconds).to_vec()).unwrap()
}

#[test]
fn writes_known_dates() {
    for (seconds, text) in [
        (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
        (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
        (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
        (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
        (1_795_294_800, "Sat, 21 Nov 2026 21:00:00 GMT"),
        (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
        (253_402_300_800, "Fri, 31 Dec 9999 23:59:59 GMT"),
        (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
    ] {
        assert_eq!(date(seconds), text);
    }
}

proptest! {
    #[test]
    fn agrees_with_httpdate(seconds in 0u64..253_402_300_800) {
        let expected = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
        prop_assert_eq!(date(seconds), expected);
    }
}
