//! What a device does for many packets at once, and what it leaves to the CPU.

use super::ethtool::Ethtool;
use crate::device::survey::OFFLOADS;

/// Those of [`OFFLOADS`] that the kernel knows, and whether each is on; nothing of a device that does not tell.
pub(super) fn of(interface: &str) -> Vec<(&'static str, bool)> {
    let Ok(ethtool) = Ethtool::open(interface) else { return Vec::new() };
    let state = |(name, _): (&'static str, _)| ethtool.is_on(interface, name).ok().map(|on| (name, on));
    OFFLOADS.into_iter().filter_map(state).collect()
}

/// The same in words, for the log.
pub(super) fn fact(interface: &str) -> String {
    let told: Vec<_> = of(interface)
        .into_iter()
        .map(|(name, on)| {
            let lack = OFFLOADS.into_iter().find(|(known, _)| *known == name).map_or("", |(_, lack)| lack);
            if on { format!("{name} on") } else { format!("{name} off: {lack}") }
        })
        .collect();
    match told.is_empty() {
        true => format!("underlay device {interface} does not tell its offloads"),
        false => format!("underlay device {interface}: {}", told.join("; ")),
    }
}
