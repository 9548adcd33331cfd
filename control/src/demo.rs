//! `windlass demo`: two nodes in one process, without root.
//!
//! ```text
//!   pods (smoltcp)             pods (smoltcp)
//!     │ bridge                   │ bridge
//!   Windlass worker  ══ UDP ══  Windlass worker
//!     node-a        loopback      node-b
//! ```
//!
//! Manifests, tables, workers, engine and VXLAN are the real ones; `bridge` plays the overlay device and the
//! host, `wire` the network between the nodes. Each node has a thread for its worker and one for its pods.
//!
//! It passes when every TCP connection carried everything and closed, every UDP question was answered, all of
//! it compared byte by byte; when a ping to a VIP was answered and a service without endpoints refused at once;
//! and when on both nodes received + generated = sent + dropped. A datagram that was lost and asked again is
//! shown, and is no failure: UDP promises no more.

mod bell;
mod bridge;
mod clients;
mod pattern;
mod pod;
mod probe;
mod report;
mod scene;
mod servers;
mod tally;
mod wire;

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use windlass_dataplane::counters::Counters;
use windlass_dataplane::device::WorkerIo;
use windlass_dataplane::tables::Writer;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::worker::{Workers, WorkersConfig};

use bridge::{Bridge, BridgeDevice};
use clients::Client;
use pod::{App, Pod, Pods};
use probe::Probe;
use scene::{Scene, SceneNode, Service};
use servers::{Answerer, Echo};
use tally::{Served, Tally};
use wire::{Peer, Plug};

pub use report::Report;

/// How long clients may take to finish what they have begun when the load's time is over.
const GRACE: Duration = Duration::from_millis(2500);

/// How long the last packets may take from node to node.
const SETTLE: Duration = Duration::from_millis(300);

const TICK: Duration = Duration::from_millis(10);

/// Connections that a node remembers; the demo opens some thousand.
const CONNECTIONS: usize = 200_000;

/// Runs the demo with `duration` of load; `say` gets the lines that tell what is going on. Ends some three
/// seconds after the load at the latest.
///
/// # Errors
/// When a socket or a thread cannot be made, or a worker ends by itself. That something did not arrive is no
/// error but part of the report.
pub fn run(duration: Duration, say: &mut dyn FnMut(&str)) -> anyhow::Result<Report> {
    let scene = Scene::load()?;
    let tally = Arc::new(Tally::default());
    let served = backends(&scene);
    let plugs: Vec<Plug> = scene.nodes.iter().map(|_| Plug::new()).collect::<Result<_, _>>()?;
    say(&introduction(&scene, &plugs));
    let mut nodes = Vec::new();
    for index in 0..scene.nodes.len() {
        let apps = apps(&scene, &scene.nodes[index], &served, &tally);
        nodes.push(Node::start(&scene.nodes, &plugs, index, apps, &tally)?);
    }
    let counters: Vec<_> = nodes.iter().map(|node| node.workers.counters().to_vec()).collect();
    let load = watch(&nodes, &tally, duration, say);
    settle(&counters);
    tally.stop();
    for node in nodes {
        node.stop()?;
    }
    Ok(Report::new(&scene, &tally, &served, &counters, load))
}

/// A node at work.
struct Node {
    name: String,
    workers: Workers,
    pods: JoinHandle<()>,
    _tables: Writer,
}

impl Node {
    fn start(
        nodes: &[SceneNode],
        plugs: &[Plug],
        index: usize,
        pods: Vec<Pod>,
        tally: &Arc<Tally>,
    ) -> anyhow::Result<Self> {
        let (node, plug) = (&nodes[index], &plugs[index]);
        let others = nodes.iter().zip(plugs).filter(|(other, _)| other.underlay != node.underlay);
        let peers = others.map(|(node, plug)| Peer { underlay: node.underlay, socket: plug.local });
        let bridge = Arc::new(Bridge::new(plug.bell()));
        let io = WorkerIo {
            overlay: Box::new(BridgeDevice(Arc::clone(&bridge))),
            underlay: Box::new(plug.underlay(peers.collect())),
            wait: Box::new(plug.wait(Arc::clone(&bridge))),
        };
        let tables = Writer::new(node.tables.clone());
        let config = WorkersConfig { connections: CONNECTIONS, ..WorkersConfig::default() };
        let workers = Workers::spawn(vec![(io, plug.bell())], &tables, &config)
            .context("cannot start a worker thread")?;
        let pods = Pods { pods, bridge, tally: Arc::clone(tally), origin: Instant::now() };
        let name = node.settings.node.clone();
        let pods = thread::Builder::new()
            .name(format!("pods-{name}"))
            .spawn(|| pods.run())
            .context("cannot start a thread for pods")?;
        Ok(Self { name, workers, pods, _tables: tables })
    }

    fn is_running(&self) -> bool {
        self.workers.are_running() && !self.pods.is_finished()
    }

    fn stop(self) -> anyhow::Result<()> {
        let pods = self.pods.join();
        self.workers.stop().with_context(|| format!("{}: forwarding ended by itself", self.name))?;
        pods.map_err(|_| {
            anyhow::anyhow!("the pods of {} panicked; please report the message above", self.name)
        })
    }
}

fn backends(scene: &Scene) -> Vec<Arc<Served>> {
    let of = |service: &Service| {
        let protocol = service.protocol;
        service.backends.iter().map(move |addr| Arc::new(Served::new(*addr, protocol))).collect::<Vec<_>>()
    };
    [of(&scene.web), of(&scene.dns)].concat()
}

/// The pods of a node: the backends that the manifests put there, clients, and on the first node the probe.
fn apps(scene: &Scene, node: &SceneNode, served: &[Arc<Served>], tally: &Arc<Tally>) -> Vec<Pod> {
    let mtu = node.settings.overlay_mtu as usize;
    let pod = |addr, app: Box<dyn App>| Pod::new(addr, node.gateway, mtu, app);
    let mut pods = Vec::new();
    for backend in served.iter().filter(|served| node.has_pod(*served.addr.ip())) {
        let served = Arc::clone(backend);
        let app: Box<dyn App> = match backend.protocol {
            Protocol::TCP => Box::new(Echo::new(served)),
            _ => Box::new(Answerer::new(served, Arc::clone(tally))),
        };
        pods.push(pod(*backend.addr.ip(), app));
    }
    for addr in &node.clients {
        let client = Client::new(*addr, scene.web.vip, scene.dns.vip, tally);
        pods.push(pod(*addr, Box::new(client)));
    }
    if scene.nodes.first().is_some_and(|first| first.underlay == node.underlay) {
        let probe = Probe::new(*scene.dns.vip.ip(), scene.empty.vip, tally);
        pods.push(pod(node.probe, Box::new(probe)));
    }
    pods
}

/// Tells of the load until its time is over and all clients have finished. Returns how long that took.
fn watch(nodes: &[Node], tally: &Tally, duration: Duration, say: &mut dyn FnMut(&str)) -> Duration {
    let start = Instant::now();
    let deadline = start + duration + GRACE;
    let (mut next_line, mut last) = (Duration::from_secs(1), Progress::default());
    while tally.busy() > 0 && Instant::now() < deadline && nodes.iter().all(Node::is_running) {
        thread::sleep(TICK);
        let elapsed = start.elapsed();
        if elapsed >= duration {
            tally.finish();
        }
        if elapsed >= next_line {
            let now = Progress::read(tally, elapsed);
            say(&now.line(&last));
            (next_line, last) = (elapsed.max(next_line) + Duration::from_secs(1), now);
        }
    }
    if tally.busy() > 0 {
        tally.fail(format!("{} clients have not finished {GRACE:?} after the load", tally.busy()));
    }
    start.elapsed()
}

#[derive(Default)]
struct Progress {
    at: Duration,
    tcp_bytes: u64,
    answers: u64,
}

impl Progress {
    fn read(tally: &Tally, at: Duration) -> Self {
        Self { at, tcp_bytes: tally.tcp_bytes.load(Relaxed), answers: tally.answers.load(Relaxed) }
    }

    fn line(&self, before: &Self) -> String {
        let seconds = (self.at - before.at).as_secs_f64();
        let mbit = (self.tcp_bytes - before.tcp_bytes) as f64 * 8.0 / 1e6 / seconds;
        let answers = (self.answers - before.answers) as f64 / seconds;
        format!(
            "{:4.0} s  TCP {mbit:7.1} Mbit/s each way   UDP {answers:7.0} answers/s",
            self.at.as_secs_f64()
        )
    }
}

/// Lets the last acknowledgements arrive, so that the sums of both nodes fit together too.
fn settle(counters: &[Vec<Arc<Counters>>]) {
    let deadline = Instant::now() + SETTLE;
    thread::sleep(TICK);
    while report::lost_on_underlay(counters) > 0 && Instant::now() < deadline {
        thread::sleep(TICK);
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    if protocol == Protocol::TCP { "TCP" } else { "UDP" }
}

fn introduction(scene: &Scene, plugs: &[Plug]) -> String {
    let mut text = String::from(
        "Two nodes in this process, joined by VXLAN over real UDP sockets; no root, no kernel tunnel.\n\n",
    );
    for (node, plug) in scene.nodes.iter().zip(plugs) {
        let local = |service: &Service| -> Vec<String> {
            let here = service.backends.iter().filter(|backend| node.has_pod(*backend.ip()));
            here.map(ToString::to_string).collect()
        };
        let clients: Vec<_> = node.clients.iter().map(ToString::to_string).collect();
        let settings = &node.settings;
        let pods = settings.pod_cidrs.first().map(ToString::to_string).unwrap_or_default();
        let lines = [
            format!(
                "  ┌─ {} ── pods {pods}, VNI {}, MTU {}",
                settings.node, settings.vni, settings.overlay_mtu
            ),
            format!("  │ web      {}", local(&scene.web).join(", ")),
            format!("  │ dns      {}", local(&scene.dns).join(", ")),
            format!("  │ clients  {}", clients.join(", ")),
            format!("  └─ underlay {} ── here {}", node.underlay, plug.local),
        ];
        text.push_str(&lines.join("\n"));
        text.push_str("\n           ║\n");
    }
    text.truncate(text.trim_end_matches("           ║\n").len());
    text.push('\n');
    for service in [&scene.web, &scene.dns, &scene.empty] {
        let backends: Vec<_> = service.backends.iter().map(ToString::to_string).collect();
        let backends = if backends.is_empty() { "nobody".to_owned() } else { backends.join(" and ") };
        let (name, vip, protocol) = (&service.name, service.vip, protocol_name(service.protocol));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  VIP {vip:<20} {protocol}  {name:<24} → {backends}");
    }
    text
}
