//! A contestant set up: two nodes in namespaces, a client pod on one and a server pod on the other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Stdio;

use anyhow::{Context, Result};
use windlass_tests::netns::on_path;
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::{Pod, Pods};
use windlass_tests::process::{Guarded, run};
use windlass_tests::topology::{Host, Topology};
use windlass_tests::traffic::ping;

use crate::contestants::{Carrier, Contestant, Target};
use crate::figures::{Figures, Span};
use crate::measure::raw::Spread;
use crate::measure::{Kind, Measure, cross_check};
use crate::nuisance::Nuisance;
use crate::ovs::OvsNode;
use crate::programming::Programming;
use crate::services::{MEASURED, PORT, with_services};
use crate::{peers, programming, veth};

/// A contestant that is ready to be measured; it goes when it is dropped.
#[derive(Debug)]
pub struct Stand<'a> {
    contestant: Contestant,
    client: Pods<'a>,
    server_pods: Pods<'a>,
    _servers: Vec<Guarded>,
    nodes: Vec<Node<'a>>,
    target: SocketAddr,
    programming: Option<Programming>,
}

/// What a node runs.
#[derive(Debug)]
enum Node<'a> {
    Kernel(#[allow(dead_code)] KernelPeer<'a>),
    Windlass(WindlassNode<'a>),
    Ovs(OvsNode),
}

impl Node<'_> {
    fn signal(&self, name: &str) -> Result<()> {
        match self {
            Node::Kernel(_) => Ok(()),
            Node::Windlass(node) => node.signal(name),
            Node::Ovs(node) => node.signal(name),
        }
    }
}

impl<'a> Stand<'a> {
    /// Sets the contestant up on a topology of its own and sees a ping come through.
    ///
    /// # Errors
    /// When a step fails; what was set up goes with the topology.
    pub fn new(contestant: Contestant, topology: &'a Topology, tunnel_segmentation: bool) -> Result<Self> {
        let (near, far) = (topology.host(0)?, topology.host(1)?);
        let (client, server_pods) = (Pods::with_pods(near, 1)?, Pods::with_pods(far, 1)?);
        let backend = server_pods.pod(0)?;
        let server_address = backend.ip(contestant.family());
        if !tunnel_segmentation {
            // Before the nodes start: Windlass looks then whether its tunnel-GSO lane is of use.
            veth::tunnel_segmentation_off(near)?;
            veth::tunnel_segmentation_off(far)?;
        }
        let (nodes, programming) = start_nodes(contestant, topology, client.pod(0)?, backend)?;
        for host in [near, far] {
            if contestant.veth_gro {
                veth::gro_on(host)?;
            }
        }
        if contestant.peers {
            peers::simulate(near, far, backend)?;
        }
        let servers = start_servers(contestant, backend)?;
        let target = match contestant.target {
            Target::Pod => SocketAddr::new(server_address, PORT),
            Target::Vip(_) => SocketAddr::new(MEASURED.vip(contestant.family()), MEASURED.port),
        };
        let stand = Self { contestant, client, server_pods, _servers: servers, nodes, target, programming };
        ping(&stand.client.pod(0)?.netns, server_address)?;
        stand.pause()?;
        Ok(stand)
    }

    /// Which contestant it is.
    #[must_use]
    pub fn contestant(&self) -> &Contestant {
        &self.contestant
    }

    /// Whether it can be measured so: iperf3 has no port of the VIP, raw packets are IPv4, peers have to be there.
    #[must_use]
    pub fn takes(&self, measure: &Measure) -> bool {
        match measure.kind {
            Kind::CrossCheck(_) => self.contestant.target == Target::Pod,
            Kind::Raw(Spread::Flows(_)) => !self.contestant.ipv6,
            Kind::Raw(Spread::Peers(_)) => self.contestant.peers,
            _ => true,
        }
    }

    /// MTU and offloads of every device: of the nodes, of the pods, and of the wire between the nodes.
    ///
    /// # Errors
    /// When a namespace's devices cannot be listed.
    pub fn devices(&self, topology: &Topology) -> Result<Vec<String>> {
        let (near, far) = (topology.host(0)?, topology.host(1)?);
        let places = [
            (near.spec.name, &near.netns),
            ("client pod", &self.client.pod(0)?.netns),
            (far.spec.name, &far.netns),
            ("server pod", &self.server_pods.pod(0)?.netns),
            ("wire", topology.wire()),
        ];
        let mut devices = Vec::new();
        for (place, netns) in places {
            devices.extend(veth::devices(netns)?.into_iter().map(|device| format!("{place} {device}")));
        }
        Ok(devices)
    }

    /// The congestion control of its client's TCP; the server's is the same, as both take the host's default.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn congestion_control(&self) -> Result<String> {
        let said = self.client.pod(0)?.netns.exec("cat /proc/sys/net/ipv4/tcp_congestion_control")?;
        Ok(said.trim().to_owned())
    }

    /// How long its services took to program, where that was measured.
    #[must_use]
    pub fn programming(&self) -> Option<&Programming> {
        self.programming.as_ref()
    }

    /// Runs one measure's traffic.
    ///
    /// # Errors
    /// When the client fails; the error carries what it said.
    pub fn take(&self, measure: &Measure, span: Span) -> Result<Figures> {
        self.resume()?;
        let mut command = self.client.pod(0)?.netns.command(std::env::current_exe()?);
        command.args(["measure", measure.key]).arg(self.target.to_string());
        command.arg("--warm-up-ms").arg(span.warm_up.as_millis().to_string());
        command.arg("--duration-ms").arg(span.duration.as_millis().to_string());
        let nuisance = self.beset()?;
        let said = run(&mut command);
        drop(nuisance);
        self.pause()?;
        let said = said?;
        serde_json::from_str(&said).with_context(|| format!("figures in {said:?}"))
    }

    /// Makes a further pod on the client's node.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn add_client_pod(&mut self) -> Result<()> {
        self.client.add().map(drop)
    }

    /// The pod at `index` on the client's node; the first is the client.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn client_pod(&self, index: usize) -> Result<&Pod> {
        self.client.pod(index)
    }

    /// The server's pod.
    ///
    /// # Errors
    /// Never, as it was made at first.
    pub fn server(&self) -> Result<&Pod> {
        self.server_pods.pod(0)
    }

    /// What clients connect to.
    #[must_use]
    pub fn target(&self) -> SocketAddr {
        self.target
    }

    /// The `windlass run` of the node at `index`, if it runs one: the client's is the first.
    #[must_use]
    pub fn windlass(&self, index: usize) -> Option<&WindlassNode<'a>> {
        match self.nodes.get(index) {
            Some(Node::Windlass(node)) => Some(node),
            _ => None,
        }
    }

    /// Ends what it runs; its namespaces go with the topology.
    pub fn end(self) {
        for node in self.nodes {
            if let Node::Windlass(node) = node {
                node.dismiss();
            }
        }
    }

    fn beset(&self) -> Result<Vec<Guarded>> {
        match (self.contestant.nuisance, self.nodes.first()) {
            (Some(nuisance), Some(Node::Windlass(node))) => nuisance.begin(node),
            _ => Ok(Vec::new()),
        }
    }

    fn pause(&self) -> Result<()> {
        self.signal_if_restless("STOP")
    }

    fn resume(&self) -> Result<()> {
        self.signal_if_restless("CONT")
    }

    fn signal_if_restless(&self, signal: &str) -> Result<()> {
        if self.contestant.never_rests() {
            self.nodes.iter().try_for_each(|node| node.signal(signal))?;
        }
        Ok(())
    }
}

/// Our own server, and that of iperf3 where there is one.
fn start_servers(contestant: Contestant, backend: &Pod) -> Result<Vec<Guarded>> {
    let address = match contestant.peers {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => backend.ip(contestant.family()),
    };
    let mut serve = backend.netns.command(std::env::current_exe()?);
    let mut servers =
        vec![Guarded::spawn_ready(serve.arg("serve").arg(SocketAddr::new(address, PORT).to_string()))?];
    if on_path("iperf3") {
        let mut iperf3 = backend.netns.command("iperf3");
        iperf3.args(["--server", "--port", &cross_check::PORT.to_string()]);
        iperf3.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        servers.push(Guarded::spawn(&mut iperf3)?);
    }
    Ok(servers)
}

type Started<'a> = (Vec<Node<'a>>, Option<Programming>);

fn start_nodes<'a>(
    contestant: Contestant,
    topology: &'a Topology,
    client: &Pod,
    backend: &Pod,
) -> Result<Started<'a>> {
    let (near, far) = (topology.host(0)?, topology.host(1)?);
    match contestant.carrier {
        Carrier::Kernel => {
            let nodes = vec![kernel(near, topology)?, kernel(far, topology)?];
            if contestant.peers {
                peers::program_kernel(near)?;
            }
            let programming = match contestant.target {
                Target::Vip(services) => Some(programming::kernel(near, services, backend.address)?),
                Target::Pod => None,
            };
            Ok((nodes, programming))
        }
        Carrier::Windlass(flags) => {
            let objects = objects(contestant, topology, backend.ip(contestant.family()));
            let far = windlass(far, &objects, flags)?;
            let near = match contestant.nuisance {
                Some(nuisance) => beset(near, &objects, flags, nuisance)?,
                None => windlass(near, &objects, flags)?,
            };
            Ok((vec![near, far], None))
        }
        Carrier::WindlassToKernel(flags) => {
            let objects = objects(contestant, topology, backend.ip(contestant.family()));
            Ok((vec![windlass(near, &objects, flags)?, kernel(far, topology)?], None))
        }
        Carrier::Ovs(port_type) => {
            let ends = [(near, client, &far.spec), (far, backend, &near.spec)];
            let nodes = ends.into_iter().enumerate().map(|(core, (host, pod, remote))| {
                Ok(Node::Ovs(OvsNode::start(host, pod, remote, port_type, core)?))
            });
            Ok((nodes.collect::<Result<_>>()?, None))
        }
    }
}

fn objects(contestant: Contestant, topology: &Topology, backend: IpAddr) -> Objects {
    let mut objects = Objects::cluster(&topology.specs());
    if contestant.peers {
        peers::add_nodes(&mut objects);
    }
    let node = topology.specs().get(1).map_or("", |spec| spec.name);
    match contestant.target {
        Target::Vip(services) => with_services(objects, services, (backend, node)),
        Target::Pod => objects,
    }
}

fn kernel<'a>(host: &'a Host, topology: &Topology) -> Result<Node<'a>> {
    Ok(Node::Kernel(KernelPeer::new(host, &topology.specs())?))
}

fn windlass<'a>(host: &'a Host, objects: &Objects, flags: &[&str]) -> Result<Node<'a>> {
    Ok(Node::Windlass(WindlassNode::start(host, objects, flags)?))
}

fn beset<'a>(host: &'a Host, objects: &Objects, flags: &[&str], nuisance: Nuisance) -> Result<Node<'a>> {
    let flags = [flags, nuisance.flags()].concat();
    let node = match nuisance {
        Nuisance::StalledLog => WindlassNode::start_unread(host, objects, &flags)?,
        Nuisance::Scrapers | Nuisance::StalledCapture => WindlassNode::start(host, objects, &flags)?,
    };
    Ok(Node::Windlass(node))
}
