//! Windows: a Wintun adapter and UDP sockets, for one worker.
//!
//! Under wine, which has neither drivers nor the calls that change addresses and routes, a stand-in records the calls
//! (`recorder`), and the wintun.dll that lies beside the program is a stand-in too.
//!
//! There is one worker. An adapter has one session, a session one ring of packets to receive; two workers that take
//! turns at it would send packets of one flow in another order than they came. (The receiving sockets could be several,
//! with SIO_CPU_AFFINITY, and Wintun's sending ring takes several writers: half of the work could be divided.)

mod control;
mod dynamic;
mod elevation;
mod event_log;
mod firewall;
mod forwarding;
mod hns;
mod holders;
mod ip_helper;
mod library;
mod link;
mod message;
mod processes;
mod recorder;
mod security;
mod single;
mod sockaddr;
mod socket;
mod survey;
mod system_folder;
mod tables;
mod udp;
mod wait;
mod wine;
mod wintun;

use std::sync::Arc;

pub use event_log::{EventKind, EventSource};
pub use link::{HostState, default_route_interface, local_addresses, managed_by, probe_vxlan_port};
pub use security::restrict_to_administrators;
pub use survey::survey;
pub use system_folder::system_folder;

use super::config::{DeviceConfig, DeviceError, Opened, TunnelGsoMode};
use super::dual_stack::DualStack;
use super::ring::RingDevice;
use super::{Waker, WorkerIo};

/// Opens the overlay device and the sockets: all of it closes when the workers are dropped.
///
/// # Errors
/// Names what could not be opened and the remedy.
pub fn open(config: &DeviceConfig) -> Result<Opened, DeviceError> {
    if config.offloads.tunnel_gso == TunnelGsoMode::On {
        return Err(DeviceError::NoTunnelGso { reason: "only Linux has it".to_owned() });
    }
    if config.workers > 1 {
        return Err(DeviceError::OneWorker { workers: config.workers });
    }
    let pools = config
        .udp()
        .map(|udp| Ok((udp::UdpPool::open(&udp, config.offloads)?, udp)))
        .collect::<Result<Vec<_>, DeviceError>>()?;
    let rings = wintun::WintunRings::open(config)?;
    let failed = |error| DeviceError::system("making events to wait for", error);
    let receivers = pools.iter().map(|(pool, _)| pool.receiver());
    let wait = wait::EventWait::new(rings.read_event()?, receivers).map_err(failed)?;
    let waker: Arc<dyn Waker> = wait.waker();
    let source_ports = pools.iter().flat_map(|(pool, _)| pool.ports()).copied().collect();
    let (name, ring) = (&config.name, config.ring_capacity >> 10);
    let mut facts = vec![format!("Wintun adapter {name}: rings of {ring} KiB, one worker")];
    if wine::is_wine() {
        facts
            .push("wine: wintun.dll is a stand-in, and calls of IP Helper are recorded, not made".to_owned());
    }
    facts.extend(
        pools.iter().map(|(pool, udp)| format!("UDP {} port {}: {}", udp.underlay, udp.port, pool.facts())),
    );
    let (mut v4, mut v6) = (None, None);
    for (pool, udp) in pools {
        *(if udp.underlay.is_ipv4() { &mut v4 } else { &mut v6 }) = Some(pool);
    }
    let underlay = DualStack::new(v4, v6);
    let worker =
        WorkerIo { overlay: Box::new(RingDevice(rings)), underlay: Box::new(underlay), wait: Box::new(wait) };
    Ok(Opened {
        keeper: None,
        workers: vec![worker],
        wakers: vec![waker],
        device: config.name.clone(),
        source_ports,
        facts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_worker_is_refused_with_the_reason() {
        let mut config = DeviceConfig::new("windlass-test", 1450, [127, 0, 0, 1].into(), 4789);
        config.workers = 2;
        let error = open(&config).err().unwrap().to_string();
        assert!(error.starts_with("--workers 2: there is one worker on Windows"), "{error}");
    }
}
