//! A node of L2 segments: which of them it is in, by which underlay address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use windlass_dataplane::device::SegmentDevice;

use super::underlay::{self, HostFacts, UnderlayChoice};
use super::{FLANNEL_VNI, NodeError, NodeSettings, PORT_WITHOUT_NET_CONF};
use crate::cluster::{ClusterState, Problem, Segment};
use crate::config::Config;

/// Finds the segments that list an address of this host among their VTEPs.
///
/// # Errors
/// When there is none, or nothing fits through the underlay.
pub(super) fn resolve(
    state: &ClusterState,
    config: &Config,
    host: &dyn HostFacts,
) -> Result<(NodeSettings, Vec<Problem>), NodeError> {
    if state.segments.is_empty() {
        return Err(NodeError::NoSegment);
    }
    let mut problems = Vec::new();
    let underlay = choose(state, config, host)?;
    let is_ours = |addr: &IpAddr| underlay.iter().any(|choice| choice.addr == *addr);
    let mut segments: Vec<SegmentDevice> = Vec::new();
    for (name, segment) in state.segments.iter().filter(|(_, segment)| segment.vteps.iter().any(is_ours)) {
        let Segment { vni, device, .. } = &**segment;
        let taken = segments.iter().find(|other| other.vni == *vni || other.name == *device);
        match taken {
            Some(other) => {
                let what = if other.vni == *vni { format!("VNI {vni}") } else { format!("device {device}") };
                let text =
                    format!("another segment has {what} already; give it one of its own: it is left out");
                problems.push(Problem::new(format!("Segment {name}"), text));
            }
            None => segments.push(SegmentDevice { vni: *vni, name: device.clone() }),
        }
    }
    // Stations may have IPv6 whatever the underlay has.
    let overlay_mtu = underlay::overlay_mtu(&underlay, None, false, host, &mut problems)?;
    let settings = NodeSettings {
        node: config.node.clone(),
        vni: segments.first().map_or(FLANNEL_VNI, |segment| segment.vni),
        port: config.underlay_port.unwrap_or(PORT_WITHOUT_NET_CONF),
        addresses: underlay.iter().map(|choice| choice.addr).collect(),
        underlay,
        mac_v4: None,
        mac_v6: None,
        pod_cidrs: Vec::new(),
        cluster_cidrs: Vec::new(),
        service_cidrs: Vec::new(),
        source_vip_v4: config.source_vip_v4,
        source_vip_v6: config.source_vip_v6,
        overlay_mtu,
        node_port_addrs: Vec::new(),
        zone: None,
        segments,
    };
    Ok((settings, problems))
}

/// The configured addresses, else of each family the one address of this host that segments list.
fn choose(
    state: &ClusterState,
    config: &Config,
    host: &dyn HostFacts,
) -> Result<Vec<UnderlayChoice>, NodeError> {
    if let Some(addr) = config.underlay_addrs.iter().find(|addr| !host.has_addr(**addr)) {
        return Err(NodeError::NotLocal { addr: *addr });
    }
    let listed: BTreeSet<IpAddr> =
        state.segments.values().flat_map(|segment| segment.vteps.iter().copied()).collect();
    let choices: Vec<UnderlayChoice> = match config.underlay_addrs.as_slice() {
        [] => {
            let mut ours: Vec<IpAddr> = listed.iter().copied().filter(|addr| host.has_addr(*addr)).collect();
            // One of each family; the addresses are sorted.
            ours.dedup_by_key(|addr| addr.is_ipv6());
            let why = || "in the segments' vteps".to_owned();
            ours.into_iter().map(|addr| UnderlayChoice { addr, why: why() }).collect()
        }
        given => {
            let why = || "--underlay-addr".to_owned();
            given.iter().map(|addr| UnderlayChoice { addr: *addr, why: why() }).collect()
        }
    };
    if choices.iter().any(|choice| listed.contains(&choice.addr)) {
        return Ok(choices);
    }
    let listed: Vec<_> = listed.iter().take(10).map(ToString::to_string).collect();
    Err(NodeError::NotInSegments { listed: listed.join(", ") })
}
