//! What the figures were measured on.

use std::fs;
use std::process::Command;
use std::thread;

use serde::Serialize;
use windlass_tests::process::run;

/// The machine, as far as it shows.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub processor: String,
    /// Number of cores.
    pub cores: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// When the comparison began, UTC.
    pub began: String,
    /// Mean number of processes that wanted to run in the minute before.
    pub load_before: String,
}

impl Machine {
    /// Reads it; what cannot be read is `unknown`.
    #[must_use]
    pub fn read() -> Self {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            processor: model.map_or_else(unknown, |(_, name)| name.trim().to_owned()),
            cores: thread::available_parallelism().map_or(1, usize::from),
            kernel: first_word("/proc/sys/kernel/osrelease"),
            began: run(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))
                .map_or_else(|_| unknown(), |date| date.trim().to_owned()),
            load_before: first_word("/proc/loadavg"),
        }
    }
}

fn first_word(file: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().next().map_or_else(unknown, str::to_owned)
}

fn unknown() -> String {
    "unknown".to_owned()
}
