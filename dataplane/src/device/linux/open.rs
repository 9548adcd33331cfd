//! Opening everything the workers of one node run on.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use super::leftover::DeviceKeeper;
use super::port::{self, NamespaceLock};
use super::source_ports::SourcePorts;
use super::tap::Taps;
use super::tun::{Tun, TunConfig, TunOffload};
use super::tunnel_gso::{Lane, TunnelGso};
use super::udp::UdpPool;
use super::wait::EpollWait;
use super::{links, offloads, socket};
use crate::device::config::{DeviceConfig, DeviceError, Offloads, Opened, TunnelGsoMode, UdpConfig};
use crate::device::dual_stack::DualStack;
use crate::device::{OverlayDevice, Waker, WorkerIo};

/// The source ports and configuration of one address family.
type Family = (Arc<SourcePorts>, UdpConfig);

/// Opens the overlay device and the sockets: all of it closes when the workers are dropped.
///
/// # Errors
/// Names what could not be opened, who holds it, and the remedy.
pub fn open(config: &DeviceConfig) -> Result<Opened, DeviceError> {
    let lock = Arc::new(port::lock(&config.underlays, config.port)?);
    let queues = config.workers.max(1);
    let families = config
        .udp()
        .map(|udp| Ok((SourcePorts::bind(&udp)?, udp)))
        .collect::<Result<Vec<_>, DeviceError>>()?;
    let overlay = if config.segments.is_empty() { tuns(config, queues)? } else { taps(config, queues)? };
    let (lane, lane_fact) = open_lane(config)?;
    let mut opened = Opened {
        workers: Vec::with_capacity(queues),
        wakers: Vec::with_capacity(queues),
        device: overlay.names,
        source_ports: families.iter().flat_map(|(ports, _)| ports.ports()).copied().collect(),
        facts: vec![overlay.fact, lane_fact],
        keeper: overlay.keeper,
    };
    opened.facts.splice(1..1, facts(config, &families));
    for queue in overlay.queues {
        let (worker, waker) =
            open_worker(queue, &families, lane.as_ref(), &lock, config.offloads, queues > 1)?;
        opened.workers.push(worker);
        opened.wakers.push(waker);
    }
    Ok(opened)
}

/// The overlay devices, opened.
struct Overlay {
    names: String,
    queues: Vec<Queue>,
    keeper: Option<DeviceKeeper>,
    fact: String,
}

/// One worker's part of them, and what to wait for.
struct Queue {
    device: Box<dyn OverlayDevice>,
    descriptors: Vec<RawFd>,
}

fn tuns(config: &DeviceConfig, queues: usize) -> Result<Overlay, DeviceError> {
    let name = config.name.clone();
    let (mtu, superpackets, persist) = (config.mtu, config.offloads.device, config.persist);
    let tuns = Tun::create(&TunConfig { name: name.clone(), queues, mtu, superpackets, persist })?;
    let keeper = keeper(config, &tuns)?;
    let offload = tuns.first().map_or(TunOffload::Off, Tun::offload);
    let fact = format!("TUN device {name}: {}", device_fact(config, tuns.len(), offload));
    let queue = |tun: Tun| Queue { descriptors: vec![tun.as_raw_fd()], device: Box::new(tun) };
    Ok(Overlay { names: name, queues: tuns.into_iter().map(queue).collect(), keeper, fact })
}

fn taps(config: &DeviceConfig, queues: usize) -> Result<Overlay, DeviceError> {
    let (taps, offload) = Taps::create(&config.segments, config.mtu, queues, config.offloads.device)?;
    let names: Vec<_> = config.segments.iter().map(|segment| segment.name.as_str()).collect();
    let names = names.join(", ");
    let fact = format!("TAP devices {names}: {}", device_fact(config, taps.len(), offload));
    let queue = |taps: Taps| Queue { descriptors: taps.descriptors(), device: Box::new(taps) };
    Ok(Overlay { names, queues: taps.into_iter().map(queue).collect(), keeper: None, fact })
}

fn keeper(config: &DeviceConfig, tuns: &[Tun]) -> Result<Option<DeviceKeeper>, DeviceError> {
    let first = tuns.first().filter(|_| config.persist);
    let keeper = first.map(|tun| DeviceKeeper::new(&config.name, tun)).transpose();
    keeper.map_err(|error| DeviceError::system(format!("keeping the device {}", config.name), error))
}

fn open_worker(
    queue: Queue,
    families: &[Family],
    lane: Option<&Arc<TunnelGso>>,
    lock: &Arc<NamespaceLock>,
    offloads: Offloads,
    shared: bool,
) -> Result<(WorkerIo, Arc<dyn Waker>), DeviceError> {
    let mut sockets = Vec::with_capacity(families.len());
    let (mut v4, mut v6) = (None, None);
    for (source_ports, udp) in families {
        let receiver = socket::receiving(udp, shared)?;
        if offloads.udp_receive {
            // Refused before Linux 5.0; `facts` has told.
            let _ = socket::join_received(&receiver);
        }
        sockets.push(receiver.as_raw_fd());
        let joins = offloads.udp_send && socket::joins_sent(source_ports.socket(0));
        let lane = lane.and_then(|lane| Lane::new(lane, udp.underlay));
        let pool = UdpPool::new(receiver, Arc::clone(source_ports), joins, lane, Arc::clone(lock));
        *(if udp.underlay.is_ipv4() { &mut v4 } else { &mut v6 }) = Some(pool);
    }
    let failed = |error: io::Error| DeviceError::system("opening an epoll instance", error);
    let wait = EpollWait::new(&queue.descriptors, &sockets).map_err(failed)?;
    let waker = wait.waker();
    let underlay = DualStack::new(v4, v6);
    let worker = WorkerIo { overlay: queue.device, underlay: Box::new(underlay), wait: Box::new(wait) };
    Ok((worker, waker))
}

/// The tunnel-GSO lane where it is wanted and works, and what to say of it.
fn open_lane(config: &DeviceConfig) -> Result<(Option<Arc<TunnelGso>>, String), DeviceError> {
    let off = |why: &str| (None, format!("tunnel-GSO lane off: {why}"));
    if config.offloads.tunnel_gso == TunnelGsoMode::Off {
        return Ok(off("by setting"));
    }
    let forced = config.offloads.tunnel_gso == TunnelGsoMode::On;
    let opened = match config.offloads.device {
        true => TunnelGso::open(config, forced).map_err(|why| why.to_string()),
        false => Err("no superpackets come from the overlay device, by setting".to_owned()),
    };
    match opened {
        Ok(lane) => {
            let fact = format!("tunnel-GSO lane on: {}", lane.describe());
            Ok((Some(Arc::new(lane)), fact))
        }
        Err(reason) if forced => Err(DeviceError::NoTunnelGso { reason }),
        Err(reason) => Ok(off(&reason)),
    }
}

/// What has become of an offload, for the log.
fn state(wanted: bool, available: bool) -> &'static str {
    match (wanted, available) {
        (false, _) => "off by setting",
        (true, false) => "off: the kernel does not know it",
        (true, true) => "on",
    }
}

fn device_fact(config: &DeviceConfig, queues: usize, offload: TunOffload) -> String {
    let offload = match offload {
        TunOffload::Off if !config.offloads.device => "off by setting".to_owned(),
        TunOffload::Off => "off: the kernel refuses them".to_owned(),
        offload => offload.to_string(),
    };
    format!("queues {queues}, MTU {}, offloads {offload}", config.mtu)
}

fn facts(config: &DeviceConfig, families: &[Family]) -> Vec<String> {
    let offloads = config.offloads;
    let sockets = families.iter().map(|(ports, udp)| {
        let send = state(offloads.udp_send, socket::joins_sent(ports.socket(0)));
        let receive = state(offloads.udp_receive, socket::can_join_received(ports.socket(0)));
        let count = ports.ports().len();
        let (underlay, port) = (udp.underlay, udp.port);
        format!("UDP {underlay} port {port}: {count} source ports, UDP_SEGMENT {send}, UDP_GRO {receive}")
    });
    let interfaces = underlay_interfaces(config);
    sockets.chain(interfaces.iter().map(|interface| offloads::fact(interface))).collect()
}

/// The interfaces with the underlay addresses; none where they cannot be listed, or the address is any.
fn underlay_interfaces(config: &DeviceConfig) -> BTreeSet<String> {
    let addresses = links::local_addresses().unwrap_or_default();
    let ours = addresses.into_iter().filter(|local| config.underlays.contains(&local.address));
    ours.map(|local| local.interface).collect()
}
