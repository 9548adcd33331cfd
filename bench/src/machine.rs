//! What the figures were measured on.

use std::fs;
use std::path::Path;
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
    /// The cores that the comparison and everything it started could run on, as /proc/self/status lists them.
    pub allowed_cores: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Real network cards and their drivers. None of them carries what is measured.
    pub network_cards: Vec<String>,
    /// Version of this program.
    pub version: &'static str,
    /// The commit of the source tree, as `git describe --always --dirty` names it: what `cargo run` builds.
    pub commit: String,
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
            allowed_cores: allowed_cores().unwrap_or_else(unknown),
            kernel: first_word("/proc/sys/kernel/osrelease"),
            network_cards: network_cards(),
            version: env!("CARGO_PKG_VERSION"),
            commit: commit().unwrap_or_else(unknown),
            began: run(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))
                .map_or_else(|_| unknown(), |date| date.trim().to_owned()),
            load_before: first_word("/proc/loadavg"),
        }
    }
}

impl Machine {
    /// It in a line each: processor and kernel, what was run, and what carried the packets.
    #[must_use]
    pub fn lines(&self) -> [String; 3] {
        let Self { processor, cores, kernel, version, commit, .. } = self;
        let cards = match self.network_cards.is_empty() {
            true => "none".to_owned(),
            false => self.network_cards.join(", "),
        };
        [
            format!(
                "{processor}, {cores} cores, Linux {kernel}; begun {}, load before {}",
                self.began, self.load_before
            ),
            format!("Windlass {version}, source tree at commit {commit}"),
            format!(
                "No real network card took part (this machine sees: {cards}); everything could run on the cores {}",
                self.allowed_cores
            ),
        ]
    }
}

fn allowed_cores() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(|list| list.trim().to_owned())
}

/// Only real ones, or what a hypervisor shows for such, have a device behind them.
fn network_cards() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut cards: Vec<String> = entries.filter_map(|entry| network_card(&entry.path())).collect();
    cards.sort();
    cards
}

fn network_card(interface: &Path) -> Option<String> {
    let driver = fs::read_link(interface.join("device/driver")).ok()?;
    Some(format!("{} ({})", interface.file_name()?.display(), driver.file_name()?.display()))
}

/// `None` when the source tree is no longer where this program was built.
fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--abbrev=12"]);
    run(&mut git).ok().map(|name| name.trim().to_owned())
}

fn first_word(file: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().next().map_or_else(unknown, str::to_owned)
}

fn unknown() -> String {
    "unknown".to_owned()
}
