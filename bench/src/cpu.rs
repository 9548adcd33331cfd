//! How many cores the machine keeps busy, from /proc/stat.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// Clock ticks that all cores spent so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    busy: u64,
    all: u64,
}

impl Ticks {
    /// Reads them.
    ///
    /// # Errors
    /// When /proc/stat cannot be read or is of another form.
    pub fn read() -> Result<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").context("/proc/stat")?)
    }

    /// Takes idle and iowait as idle, everything else as busy; `guest` is contained in `user` already.
    fn parse(stat: &str) -> Result<Self> {
        let line =
            stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).context("the line `cpu`")?;
        let fields: Vec<u64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal] = fields[..] else {
            anyhow::bail!("eight numbers in {line:?}")
        };
        let busy = user + nice + system + irq + softirq + steal;
        Ok(Self { busy, all: busy + idle + iowait })
    }

    /// The mean number of busy cores since `earlier`.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn busy_cores_since(self, earlier: Self, cores: usize) -> f64 {
        let all = self.all.saturating_sub(earlier.all).max(1);
        self.busy.saturating_sub(earlier.busy) as f64 / all as f64 * cores as f64
    }
}

/// Waits for `warm_up`, then gives the mean number of busy cores during `duration`.
///
/// # Errors
/// As [`Ticks::read`].
pub fn busy_cores(warm_up: Duration, duration: Duration) -> Result<f64> {
    thread::sleep(warm_up);
    let before = Ticks::read()?;
    thread::sleep(duration);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    Ok(Ticks::read()?.busy_cores_since(before, cores))
}

#[cfg(test)]
mod tests {
    use super::Ticks;

    #[test]
    fn busy_cores_are_the_share_that_was_not_idle() -> anyhow::Result<()> {
        let before = Ticks::parse("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3\n")?;
        let after = Ticks::parse("cpu  150 10 120 850 50 10 5 5 0 0\n")?;
        assert!((after.busy_cores_since(before, 2) - 1.0).abs() < 1e-9);
        assert!(Ticks::parse("intr 5").is_err());
        Ok(())
    }
}
