//! The seam between a compiled node and the machine: devices, the host's set-up, workers.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use ipnet::IpNet;
use windlass_control::compile::HostSide;
use windlass_control::config::{Config, Dscp};
use windlass_control::inspect::rows::DeviceRow;
use windlass_control::node::{HostFacts, NodeSettings};
use windlass_control::snapshot::{Connections, Restored};
use windlass_dataplane::device::{
    self, DeviceConfig, Family, HostPlan, HostState, LinkError, LocalAddress, PodTuning,
};
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine;
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::tables::{Draft, ForwardingTables, TableSet, Writer};
use windlass_dataplane::worker::{Workers, WorkersConfig};

use super::inspect::{Known, Subject};
use super::node_ports::NodePortSockets;
use super::readings::WorkerReadings;
use super::record::Record;
use super::saving;

/// What this host has.
pub(in crate::cli) struct Host {
    addresses: Vec<LocalAddress>,
    default_routes: Vec<IpAddr>,
}

impl Host {
    /// Looks at the host.
    pub(in crate::cli) fn observe() -> anyhow::Result<Self> {
        let mut default_routes = Vec::new();
        for family in [Family::V4, Family::V6] {
            let interface = device::default_route_interface(family)?;
            default_routes.extend(interface.and_then(|interface| interface.addresses.first().copied()));
        }
        Ok(Self { addresses: device::local_addresses()?, default_routes })
    }
}

impl HostFacts for Host {
    fn default_route_addr(&self, ipv6: bool) -> Option<IpAddr> {
        self.default_routes.iter().copied().find(|addr| addr.is_ipv6() == ipv6)
    }

    fn has_addr(&self, addr: IpAddr) -> bool {
        self.addresses.iter().any(|local| local.address == addr)
    }

    fn mtu(&self, addr: IpAddr) -> Option<u32> {
        self.addresses.iter().find(|local| local.address == addr).map(|local| local.mtu)
    }
}

/// A node that forwards.
pub(super) struct Running {
    workers: Arc<Workers>,
    /// None where segments are bridged: the host's routes and rules have no part in it.
    host: Option<HostState>,
    side: HostSide,
    /// Whether the host could not follow when it last had to.
    host_is_behind: bool,
    pods: Option<PodTuning>,
    pods_seen_at: Instant,
    writer: Writer,
    subject: Arc<Subject>,
    persists: bool,
    node_ports: Option<NodePortSockets>,
}

/// What a change of tables brought with it.
pub(super) struct Change {
    /// The tables before.
    pub(super) before: Arc<ForwardingTables>,
    /// The tables as they are.
    pub(super) after: Arc<ForwardingTables>,
    /// How many UDP connections were forgotten (F6).
    pub(super) purged: usize,
    /// Whether the host's routes could follow.
    pub(super) host: Result<(), LinkError>,
}

/// Opens the devices, sets the host up and starts the workers, who go on with what is `remembered`. What was made is undone when a later step fails.
pub(super) fn start(
    config: &Config,
    settings: &NodeSettings,
    tables: &TableSet,
    known: Known,
    remembered: Option<&Connections>,
) -> anyhow::Result<Running> {
    anyhow::ensure!(device::HAS_SEGMENTS || !settings.is_bridge(), NO_SEGMENTS);
    let side = HostSide::new(settings, &tables.services);
    let plan = (!settings.is_bridge()).then(|| host_plan(config, settings, &side));
    let cpus = config.pin.cpus(config.workers, device::usable_cpus)?;
    let seed = RandomState::new().build_hasher().finish();
    let mut opened = device::open(&device_config(config, settings, seed)?)?;
    opened.facts.extend((!settings.is_bridge()).then(|| pods_fact(config).to_owned()));
    for fact in &opened.facts {
        tracing::info!("{fact}");
    }
    let host = plan.map(HostState::apply).transpose()?;
    let node_ports =
        (!device::HAS_ENTRANCES).then(|| NodePortSockets::start(settings, tables)).transpose()?;
    let pods = if host.is_some() { pod_tuning(config, settings)? } else { None };
    let writer = Writer::new(tables.clone());
    let device = DeviceRow {
        name: opened.device,
        mtu: settings.overlay_mtu,
        workers: opened.workers.len(),
        cpus: cpus.clone(),
        source_ports: opened.source_ports,
        facts: opened.facts,
    };
    let workers_config = WorkersConfig {
        is_bridge: settings.is_bridge(),
        settings: engine_settings(config, seed),
        poll: config.poll,
        cpus,
        ..WorkersConfig::default()
    };
    let engine = workers_config.settings.clone();
    let subject = Arc::new(Subject { snapshots: writer.snapshots(), known, engine, device });
    let io = opened.workers.into_iter().zip(opened.wakers).collect();
    let connections = Conntrack::new(workers_config.connections, config.workers);
    if let Some(remembered) = remembered {
        restore(remembered, &connections, &writer.current(), config.workers);
    }
    let workers =
        Workers::spawn_with(io, &writer, &workers_config, connections).context("cannot start the workers")?;
    if config.persist {
        let keeper = opened.keeper.context("--persist: on this system the device goes with its program")?;
        keeper.keep()?;
    }
    Ok(Running {
        workers: Arc::new(workers),
        host,
        side,
        host_is_behind: false,
        pods,
        pods_seen_at: Instant::now(),
        writer,
        subject,
        persists: config.persist,
        node_ports,
    })
}

fn restore(remembered: &Connections, table: &Conntrack, tables: &ForwardingTables, workers: usize) {
    let Restored { connections, forgotten } = remembered.restore(table, tables, workers);
    tracing::info!("{connections} connections of the run before go on, {forgotten} are forgotten");
}

impl Running {
    /// The counters of all workers.
    pub(super) fn readings(&self, reloads: Arc<Record>) -> Arc<WorkerReadings> {
        Arc::new(WorkerReadings::new(&self.workers, reloads, Arc::clone(&self.subject)))
    }

    /// Publishes tables, forgets UDP connections whose backend has gone (F6), and makes the host's routes follow.
    /// A connection that a worker opens by the tables before is seen to by its next packet.
    pub(super) fn change(&mut self, settings: &NodeSettings, draft: &Draft) -> Change {
        let before = self.writer.current();
        let after = self.writer.publish_draft(draft);
        let purged = match after.may_strand(&before, draft.touched()) {
            true => self.workers.connections().purge(|connection| after.strands(connection)),
            false => 0,
        };
        if let Some(sockets) = &mut self.node_ports {
            sockets.follow(settings, draft.tables());
        }
        let has_to_follow = self.side.follow(settings, &before, &after, draft.touched());
        let host = match self.host.as_mut().filter(|_| has_to_follow || self.host_is_behind) {
            None => Ok(()),
            Some(host) => {
                let routes = device_routes(settings, &self.side);
                host.change(&routes, &settings.cluster_cidrs, self.side.entrances())
            }
        };
        self.host_is_behind = host.is_err();
        Change { before, after, purged, host }
    }

    /// Frees what no worker looks at any more.
    pub(super) fn reap(&mut self) {
        self.writer.reap();
    }

    /// Tunes the veths of pods that have come, where that is wanted, once a second.
    pub(super) fn look_for_pods(&mut self) {
        let Some(pods) = self.pods.as_mut().filter(|_| self.pods_seen_at.elapsed() >= PODS_EVERY) else {
            return;
        };
        self.pods_seen_at = Instant::now();
        if let Err(error) = pods.look() {
            tracing::debug!(%error, "pods that have come are not tuned");
        }
    }

    /// Packets dropped for a reason, by all workers.
    pub(super) fn dropped(&self, reason: DropReason) -> u64 {
        self.workers.counters().iter().map(|counters| counters.dropped(reason)).sum()
    }

    /// Whether every worker is still at work.
    pub(super) fn is_well(&self) -> bool {
        self.workers.are_running()
    }

    /// What is written down for the next run, besides the cluster.
    pub(super) fn saved(&self, config: &Config, known: Known) -> saving::Subject {
        let connections = Arc::clone(self.workers.connections());
        saving::Subject::new(config, known, connections, self.workers.origin())
    }

    /// Undoes what was made of the host, unless it is to persist, and stops the workers, in the order in which
    /// packets lose nothing else.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        drop(self.node_ports);
        let (pods, undone) = match self.persists {
            true => {
                self.pods.into_iter().for_each(PodTuning::keep);
                self.host.into_iter().for_each(HostState::keep);
                (Ok(()), Ok(()))
            }
            false => (self.pods.map_or(Ok(()), PodTuning::undo), self.host.map_or(Ok(()), HostState::undo)),
        };
        let pods = pods.context("cannot put the pods' veths back");
        let undone = undone.context("cannot undo all of what was made of the host");
        let workers = Arc::into_inner(self.workers).context("the workers are still being read")?;
        let stopped = workers.stop().context("forwarding failed");
        pods.and(undone).and(stopped)
    }
}

const NO_SEGMENTS: &str = "--device-kind tap: this platform has no TAP devices; run Windlass on Linux";

/// Packets that may wait for the device: a worker takes them in batches of superpackets.
const TXQUEUELEN: u32 = 4_096;

/// Where previous sysctl values lie until they are restored: a folder that a reboot clears.
pub(in crate::cli) const STATE_FILE: &str = "/run/windlass/sysctls";

/// How often pods that have come are looked for.
const PODS_EVERY: Duration = Duration::from_secs(1);

/// Where previous settings of pods' veths lie until they are restored: as above.
pub(in crate::cli) const PODS_FILE: &str = "/run/windlass/pods";

/// Which families our pods have: IPv4 and IPv6.
fn families(settings: &NodeSettings) -> (bool, bool) {
    let has = |ipv6: bool| settings.pod_cidrs.iter().any(|cidr| cidr.addr().is_ipv6() == ipv6);
    (has(false), has(true))
}

fn source_vips(settings: &NodeSettings) -> Vec<IpAddr> {
    let (ipv4, ipv6) = families(settings);
    let ipv4 = ipv4.then_some(IpAddr::V4(settings.source_vip_v4));
    ipv4.into_iter().chain(ipv6.then_some(IpAddr::V6(settings.source_vip_v6))).collect()
}

fn node_port_vips(settings: &NodeSettings) -> Vec<IpAddr> {
    source_vips(settings).iter().map(|vip| settings.node_port_vip(vip.is_ipv6())).collect()
}

/// What the host routes into the device.
fn device_routes(settings: &NodeSettings, side: &HostSide) -> Vec<IpNet> {
    let (ipv4, ipv6) = families(settings);
    let mut routes = side.prefixes();
    routes.retain(|prefix| if prefix.addr().is_ipv6() { ipv6 } else { ipv4 });
    routes.extend(source_vips(settings).into_iter().map(IpNet::from));
    routes.extend(node_port_vips(settings).into_iter().map(IpNet::from));
    routes
}

/// Puts back what a killed run has left of the pods' veths, and tunes them where that is wanted.
fn pod_tuning(config: &Config, settings: &NodeSettings) -> Result<Option<PodTuning>, LinkError> {
    PodTuning::sweep(PODS_FILE.as_ref())?;
    let begin = || PodTuning::begin(settings.pod_cidrs.clone(), Some(PODS_FILE.into()));
    config.tune_pods.then(begin).transpose()
}

/// What becomes of the pods' veths, for the log and `show device`.
fn pods_fact(config: &Config) -> &'static str {
    match config.tune_pods {
        true => "pods' veths: GRO and rx-udp-gro-forwarding on (--tune-pods)",
        false => "pods' veths: as they are; --tune-pods lets them aggregate what pods send (GRO)",
    }
}

fn host_plan(config: &Config, settings: &NodeSettings, side: &HostSide) -> HostPlan {
    let (ipv4, ipv6) = families(settings);
    HostPlan {
        device: config.device.clone(),
        mtu: settings.overlay_mtu,
        txqueuelen: TXQUEUELEN,
        addresses: settings.pod_cidrs.iter().map(|cidr| IpNet::from(cidr.network())).collect(),
        routes: device_routes(settings, side),
        pod_cidrs: settings.pod_cidrs.clone(),
        cluster_cidrs: settings.cluster_cidrs.clone(),
        source_vips: source_vips(settings),
        node_port_vips: node_port_vips(settings),
        entrances: side.entrances().clone(),
        masquerades_pods: config.ip_masq,
        vtep_port: settings.port,
        sysctls: HostPlan::forwarding_sysctls(&config.device, ipv4, ipv6),
        state_file: Some(STATE_FILE.into()),
    }
}

fn device_config(config: &Config, settings: &NodeSettings, seed: u64) -> anyhow::Result<DeviceConfig> {
    let underlay = settings.underlay.first().context("there is no underlay address")?.addr;
    let mtu = u16::try_from(settings.overlay_mtu).unwrap_or(u16::MAX);
    let mut device = DeviceConfig::new(&config.device, mtu, underlay, settings.port);
    device.underlays = settings.underlay.iter().map(|choice| choice.addr).collect();
    device.segments = settings.segments.clone();
    device.workers = config.workers;
    device.source_ports = usize::from(config.source_ports);
    device.ring_capacity = config.ring_capacity;
    device.seed = seed;
    device.offloads = config.offloads;
    device.persist = config.persist;
    Ok(device)
}

pub(in crate::cli) fn engine_settings(config: &Config, seed: u64) -> engine::Settings {
    engine::Settings {
        strict_reserved_bits: config.strict_vxlan,
        accept_inner_vlan: config.accept_inner_vlan,
        allow_unknown_vteps: config.allow_unknown_vteps,
        dscp: match config.dscp {
            Dscp::Copy => engine::Dscp::Copy,
            Dscp::Fixed(dscp) => engine::Dscp::Fixed(dscp),
        },
        seed,
        ..engine::Settings::default()
    }
}
