//! When the requests of an open loop are due.

use std::time::Duration;

use crate::Error;

/// Times from the start of the load.
pub enum Arrivals {
    /// At a fixed rate: the time between two requests.
    Even(Duration),
    /// At these times, the earliest first.
    Listed(Vec<Duration>),
}

impl Arrivals {
    /// That many requests a second.
    pub fn at_rate(rate: f64) -> Result<Self, Error> {
        if rate <= 0.0 {
            return Err("--rate is above 0".into());
        }
        Ok(Self::Even(Duration::from_secs_f64(1.0 / rate)))
    }

    /// The times in a file: nanoseconds from the start, a line each.
    pub fn listed(text: &str) -> Result<Self, Error> {
        let times: Vec<u64> = text.lines().map(str::parse).collect::<Result<_, _>>()?;
        if times.is_empty() || !times.is_sorted() {
            return Err("--arrivals lists times, the earliest first".into());
        }
        Ok(Self::Listed(times.into_iter().map(Duration::from_nanos).collect()))
    }

    /// When the request of that number, from 0, is due; `None` after the last one.
    pub fn due(&self, number: u32) -> Option<Duration> {
        match self {
            Self::Even(interval) => Some(*interval * number),
            Self::Listed(times) => times.get(number as usize).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_no_last_request() -> Result<(), Error> {
        let arrivals = Arrivals::at_rate(1000.0)?;
        assert_eq!(arrivals.due(0), Some(Duration::ZERO));
        assert_eq!(arrivals.due(5000), Some(Duration::from_secs(5)));
        assert!(Arrivals::at_rate(0.0).is_err());
        Ok(())
    }

    #[test]
    fn listed_requests_are_due_at_their_times() -> Result<(), Error> {
        let arrivals = Arrivals::listed("0\n250\n250\n")?;
        let due: Vec<_> = (0..4).map(|number| arrivals.due(number)).collect();
        let nanos = |it| Some(Duration::from_nanos(it));
        assert_eq!(due, [nanos(0), nanos(250), nanos(250), None]);
        for wrong in ["", "2\n1", "x", "-1"] {
            assert!(Arrivals::listed(wrong).is_err(), "{wrong:?}");
        }
        Ok(())
    }
}
