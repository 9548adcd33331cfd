//! What compiling and publishing cost: `cargo run --release -p windlass-control --example compile_cost [SERVICES] [ENDPOINTS] [NODES]`.
//!
//! Services of one port each, from objects in memory: all of them at once, and then one change at a time, as an API
//! watch brings them. "Compile" takes the changed object and makes tables of it, "publish" puts these before the
//! workers and frees the snapshot before.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_control::cluster::{
    Announcement, ClusterState, Endpoint, EndpointPort, EndpointSlice, Flannel, Node, ObjectName, Service,
    ServicePort,
};
use windlass_control::compile::{Compiler, compile};
use windlass_control::node::{NodeSettings, UnderlayChoice};
use windlass_dataplane::tables::Writer;
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::vxlan::Vni;

const VNI: Vni = match Vni::new(1) {
    Some(vni) => vni,
    None => unreachable!(),
};

/// Full compilations.
const FULL_ROUNDS: u32 = 9;

/// Changes of each kind.
const ROUNDS: u32 = 200;

fn main() {
    let mut counts = std::env::args().skip(1).filter_map(|count| count.parse().ok());
    let mut count = |default| counts.next().unwrap_or(default);
    let size = Size { services: count(10_000), endpoints: count(10), nodes: count(5_000).clamp(1, 32_000) };
    println!("{} services of {} endpoints, {} nodes; medians", size.services, size.endpoints, size.nodes);
    println!("{:<18}{:>12}{:>12}{:>12}", "", "compile", "publish", "total");
    let (state, settings) = (size.cluster(), settings());
    print("everything", (0..FULL_ROUNDS).map(|_| full(&state, &settings)).collect());
    let mut node = Running::new(&state, &settings);
    let rounds = |change: &mut dyn FnMut(u32) -> Cost| (0..ROUNDS).map(change).collect();
    let mut endpoint_added = |round| {
        let number = round % size.services;
        let mut slice = size.slice(number);
        slice.endpoints.push(size.endpoint(9_000_000 + round));
        let slice = Arc::new(slice);
        node.change(|compiler| compiler.set_endpoint_slice(&name(number), Some(slice)))
    };
    print("endpoint added", rounds(&mut endpoint_added));
    let mut added = |round| {
        let number = size.services + round;
        let (service, slice) = (Arc::new(service(number)), Arc::new(size.slice(number)));
        node.change(|compiler| {
            compiler.set_service(&name(number), Some(service));
            compiler.set_endpoint_slice(&name(number), Some(slice));
        })
    };
    print("service added", rounds(&mut added));
    let mut removed = |round| {
        let name = name(size.services + round);
        node.change(|compiler| {
            compiler.set_service(&name, None);
            compiler.set_endpoint_slice(&name, None);
        })
    };
    print("service removed", rounds(&mut removed));
    let mut moved = |round| {
        let number = round % size.nodes;
        let peer = Arc::new(peer(number, 40_000 + round));
        node.change(|compiler| compiler.set_node(&format!("node-{number}"), Some(peer)))
    };
    print("node changed", rounds(&mut moved));
}

/// What one change cost.
struct Cost {
    compile: Duration,
    publish: Duration,
}

fn print(what: &str, costs: Vec<Cost>) {
    let column = |cost: fn(&Cost) -> Duration| {
        let mut times: Vec<_> = costs.iter().map(cost).collect();
        times.sort_unstable();
        format!("{:.3} ms", times[times.len() / 2].as_secs_f64() * 1e3)
    };
    let (compile, publish) = (column(|cost| cost.compile), column(|cost| cost.publish));
    let total = column(|cost| cost.compile + cost.publish);
    println!("{what:<18}{compile:>12}{publish:>12}{total:>12}");
}

/// Everything at once, from nothing.
fn full(state: &ClusterState, settings: &NodeSettings) -> Cost {
    let started = Instant::now();
    let tables = compile(state, settings).tables;
    let compiled = Instant::now();
    let writer = Writer::new(tables);
    let published = Instant::now();
    assert_eq!(writer.current().services().len(), state.services.len());
    Cost { compile: compiled - started, publish: published - compiled }
}

/// A compiler and what it publishes to.
struct Running {
    compiler: Compiler,
    writer: Writer,
}

impl Running {
    fn new(state: &ClusterState, settings: &NodeSettings) -> Self {
        let mut compiler = Compiler::new(settings.clone());
        compiler.follow(state);
        let writer = Writer::new(compiler.update().draft.tables().clone());
        Self { compiler, writer }
    }

    fn change(&mut self, change: impl FnOnce(&mut Compiler)) -> Cost {
        let started = Instant::now();
        change(&mut self.compiler);
        let update = self.compiler.update();
        let compiled = Instant::now();
        let before = self.writer.current().generation();
        let published = self.writer.publish_draft(&update.draft);
        // The draft holds the tables before: they are freed with it.
        drop(update);
        let cost = Cost { compile: compiled - started, publish: compiled.elapsed() };
        assert_ne!(published.generation(), before);
        cost
    }
}

fn settings() -> NodeSettings {
    NodeSettings {
        node: "own".to_owned(),
        vni: VNI,
        port: 8472,
        underlay: vec![UnderlayChoice { addr: Ipv4Addr::new(192, 168, 0, 1).into(), why: String::new() }],
        mac_v4: Some(Mac([2, 0, 0, 0, 0, 1])),
        mac_v6: None,
        pod_cidrs: "10.244.0.0/24".parse().into_iter().collect(),
        cluster_cidrs: "10.128.0.0/9".parse().into_iter().collect(),
        service_cidrs: "10.96.0.0/12".parse().into_iter().collect(),
        source_vip_v4: Ipv4Addr::new(169, 254, 77, 1),
        source_vip_v6: std::net::Ipv6Addr::LOCALHOST,
        overlay_mtu: 1450,
        addresses: Vec::new(),
        node_port_addrs: Vec::new(),
        zone: None,
        segments: Vec::new(),
    }
}

/// How large the cluster is.
#[derive(Clone, Copy)]
struct Size {
    services: u32,
    endpoints: u32,
    nodes: u32,
}

impl Size {
    fn cluster(self) -> ClusterState {
        let mut state = ClusterState::default();
        for number in 0..self.nodes {
            state.nodes.insert(format!("node-{number}"), Arc::new(peer(number, number)));
        }
        for number in 0..self.services {
            state.services.insert(name(number), Arc::new(service(number)));
            state.endpoint_slices.insert(name(number), Arc::new(self.slice(number)));
        }
        state
    }

    fn slice(self, service: u32) -> EndpointSlice {
        EndpointSlice {
            service: Some(name(service).name),
            ports: vec![EndpointPort { name: "http".to_owned(), protocol: Protocol::TCP, port: 8080 }],
            endpoints: (0..self.endpoints)
                .map(|index| self.endpoint(service * self.endpoints + index))
                .collect(),
            ..EndpointSlice::default()
        }
    }

    fn endpoint(self, number: u32) -> Endpoint {
        let node = number % self.nodes;
        let addr = POD_CIDRS + (node << 8) + 1 + number / self.nodes % 250;
        Endpoint {
            addr: Ipv4Addr::from(addr).into(),
            node: Some(format!("node-{node}")),
            ready: true,
            serving: true,
            terminating: false,
            hints: None,
        }
    }
}

/// 10.128.0.0: where the podCIDRs begin.
const POD_CIDRS: u32 = 0x0a80_0000;

/// 10.96.0.16: where the ClusterIPs begin.
const CLUSTER_IPS: u32 = 0x0a60_0010;

/// 172.16.0.0: where the nodes are.
const NODES: u32 = 0xac10_0000;

fn peer(number: u32, mac: u32) -> Node {
    let [.., third, fourth] = mac.to_be_bytes();
    let cidr = format!("{}/24", Ipv4Addr::from(POD_CIDRS + (number << 8)));
    let flannel = Flannel {
        backend_type: Some("vxlan".to_owned()),
        vtep_v4: Announcement::Ready { vni: VNI, mac: Mac([2, 0, 0, 1, third, fourth]) },
        public_ip: Some(Ipv4Addr::from(NODES + number).into()),
        ..Flannel::default()
    };
    Node { pod_cidrs: cidr.parse().into_iter().collect(), flannel, ..Node::default() }
}

fn name(service: u32) -> ObjectName {
    ObjectName::new("default", format!("service-{service:06}"))
}

fn service(number: u32) -> Service {
    let ports =
        vec![ServicePort { name: "http".to_owned(), protocol: Protocol::TCP, port: 80, node_port: None }];
    let cluster_ips = vec![IpAddr::from(Ipv4Addr::from(CLUSTER_IPS + number))];
    Service { cluster_ips, ports, ..Service::default() }
}
