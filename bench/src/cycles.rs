//! Cycles of the calling thread in user mode, where there are counters.

use std::io;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

/// A counter of cycles, or the reason why there is none.
#[derive(Debug)]
pub struct Cycles(io::Result<Counter>);

impl Default for Cycles {
    fn default() -> Self {
        Self::new()
    }
}

impl Cycles {
    /// Asks the kernel for one. Virtual machines often have none.
    #[must_use]
    pub fn new() -> Self {
        Self(Builder::new(Hardware::CPU_CYCLES).exclude_kernel(true).exclude_hv(true).build())
    }

    /// Starts from zero, paused.
    pub fn reset(&mut self) {
        self.each(Counter::reset);
    }

    /// Counts from here on.
    pub fn resume(&mut self) {
        self.each(Counter::enable);
    }

    /// Stops counting.
    pub fn pause(&mut self) {
        self.each(Counter::disable);
    }

    /// The count, if there is a counter.
    pub fn read(&mut self) -> Option<u64> {
        self.0.as_mut().ok()?.read().ok()
    }

    /// For a heading: what stands beside the nanoseconds, or why nothing does.
    #[must_use]
    pub fn remark(&self) -> String {
        match &self.0 {
            Ok(_) => ", and cycles".to_owned(),
            Err(error) => format!("; cycles SKIPPED: no counter here ({error})"),
        }
    }

    fn each(&mut self, operation: impl FnOnce(&mut Counter) -> io::Result<()>) {
        if let Ok(counter) = &mut self.0
            && let Err(error) = operation(counter)
        {
            self.0 = Err(error);
        }
    }
}
