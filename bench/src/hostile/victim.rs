//! The node that is attacked: what it holds of memory, what it has dropped and why.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;
use windlass_tests::netns::Netns;
use windlass_tests::node::{DEVICE, WindlassNode};

/// Counts by reason; what the kernel dropped in front of the node is counted too.
pub type Drops = BTreeMap<String, u64>;

/// What the process holds of memory, in bytes.
///
/// # Errors
/// When it is gone.
pub fn resident(node: &WindlassNode<'_>) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", node.id())).context("the node's memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().context("VmRSS in kB")?;
    Ok(kilobytes * 1024)
}

/// What the node and its host have dropped so far.
///
/// # Errors
/// When the node does not answer.
pub fn drops(node: &WindlassNode<'_>) -> Result<Drops> {
    let said = node.ask(&["show", "counters", "-o", "json"])?.said;
    let samples: Value = serde_json::from_str(&said).with_context(|| format!("counters in {said:?}"))?;
    let mut drops: Drops = samples
        .as_array()
        .into_iter()
        .flatten()
        .filter(|sample| sample["name"] == "windlass_drops_total")
        .filter_map(|sample| {
            Some((sample["labels"]["reason"].as_str()?.to_owned(), sample["value"].as_f64()? as u64))
        })
        .collect();
    drops.extend(dropped_before(&node.host().netns)?);
    Ok(drops)
}

/// Full receive buffers of UDP sockets, and the full queue of the overlay device.
fn dropped_before(netns: &Netns) -> Result<Drops> {
    let mut drops = Drops::new();
    let sockets = netns.exec("cat /proc/net/udp /proc/net/udp6")?;
    let full = sockets.lines().filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
    drops.insert("(socket buffer full)".to_owned(), full.sum());
    let queue = netns.exec(&format!("cat /sys/class/net/{DEVICE}/statistics/tx_dropped"))?;
    drops.insert("(device queue full)".to_owned(), queue.trim().parse().context("tx_dropped")?);
    Ok(drops)
}

/// What was dropped since `before`, the most first.
#[must_use]
pub fn since(before: &Drops, after: &Drops) -> Vec<(String, u64)> {
    let mut added: Vec<_> = after
        .iter()
        .map(|(reason, count)| {
            (reason.clone(), count.saturating_sub(before.get(reason).copied().unwrap_or(0)))
        })
        .filter(|(_, count)| *count > 0)
        .collect();
    added.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    added
}
