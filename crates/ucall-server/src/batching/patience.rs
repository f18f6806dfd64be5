//! Whether waiting for callers that are not known brings any.

/// The share of waits that have to bring calls.
const FRUITFUL_MIN: f64 = 0.25;
/// The weight of what is known already, when a wait ends.
const MEMORY: f64 = 0.75;
/// Batches from one wait to the next while waits bring no calls.
const PROBE_INTERVAL: u32 = 64;

/// What the last waits have brought.
#[derive(Debug)]
pub(super) struct Patience {
    /// The share of waits that have brought calls. At first it is that of callers in no loop.
    fruitful: f64,
    /// Whether this wait has brought a call, if one is on.
    wait: Option<bool>,
    /// Batches that have started since the last wait.
    batches: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { fruitful: 1.0, wait: None, batches: 0 }
    }
}

impl Patience {
    /// Whether to wait, as far as the last waits tell. A wait has begun then.
    pub(super) fn waits(&mut self) -> bool {
        let waits =
            self.wait.is_some() || self.fruitful >= FRUITFUL_MIN || self.batches >= PROBE_INTERVAL;
        if waits && self.wait.is_none() {
            self.wait = Some(false);
        }
        waits
    }

    /// A call has arrived that was not expected.
    pub(super) fn call_arrived(&mut self) {
        if let Some(has_brought) = &mut self.wait {
            *has_brought = true;
        }
    }

    pub(super) fn batch_starts(&mut self) {
        match self.wait.take() {
            Some(has_brought) => {
                self.fruitful = self.fruitful * MEMORY + (1.0 - MEMORY) * f64::from(has_brought);
                self.batches = 0;
            }
            None => self.batches = self.batches.saturating_add(1),
        }
    }
}
