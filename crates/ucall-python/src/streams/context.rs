//! What the streams of one worker share.

use std::sync::Arc;

use ucall_server::MemoryBudget;

use crate::batch_sizes::BatchCounts;
use crate::outcomes::Outcomes;
use crate::report::Report;

/// What the streams of one worker share.
#[derive(Clone)]
pub(crate) struct StreamContext {
    pub(crate) outcomes: Arc<Outcomes>,
    pub(crate) report: Arc<Report>,
    pub(crate) budget: MemoryBudget,
    pub(crate) reply_bytes_max: usize,
    pub(crate) counts: Arc<BatchCounts>,
}
