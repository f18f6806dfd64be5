//! Bounds how often calls are sent again, so that retries do not multiply the load of upstreams
//! that fail.

/// A call earns this part of a retry.
const EARNED: f64 = 0.1;
/// Retries that are saved up.
const SAVED_MAX: f64 = 100.0;

/// The retries that a relay may make.
#[derive(Debug)]
pub(crate) struct RetryBudget(f64);

impl RetryBudget {
    pub(crate) fn new() -> Self {
        Self(SAVED_MAX)
    }

    /// Earns for one call.
    pub(crate) fn earn(&mut self) {
        self.0 = (self.0 + EARNED).min(SAVED_MAX);
    }

    /// Spends one retry, if there is one.
    pub(crate) fn spend(&mut self) -> bool {
        let has_one = self.0 >= 1.0;
        if has_one {
            self.0 -= 1.0;
        }
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_ten_may_be_retried_once_the_savings_are_spent() {
        let mut budget = RetryBudget::new();
        assert_eq!((0..200).filter(|_| budget.spend()).count(), 100);
        (0..1001).for_each(|_| budget.earn());
        assert_eq!((0..200).filter(|_| budget.spend()).count(), 100);
        (0..55).for_each(|_| budget.earn());
        assert_eq!((0..200).filter(|_| budget.spend()).count(), 5);
    }
}
