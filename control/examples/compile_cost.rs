//! What compiling and publishing cost: `cargo run --release -p windlass-control --example compile_cost [SERVICES] [ENDPOINTS]`.
//!
//! Services of one port each, from objects in memory; then one endpoint more, as one slice of an API watch.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use windlass_control::cluster::{
    Announcement, ClusterState, Endpoint, EndpointPort, EndpointSlice, Flannel, Node, ObjectName, Service,
    ServicePort,
};
use windlass_control::compile::compile;
use windlass_control::node::{NodeSettings, UnderlayChoice};
use windlass_dataplane::tables::Writer;
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::vxlan::Vni;

const VNI: Vni = match Vni::new(1) {
    Some(vni) => vni,
    None => unreachable!(),
};

const ROUNDS: u32 = 9;

fn main() {
    let mut counts = std::env::args().skip(1).filter_map(|count| count.parse().ok());
    let (services, endpoints) = (counts.next().unwrap_or(10_000), counts.next().unwrap_or(10));
    let settings = settings();
    let mut state = cluster(services, endpoints);
    let mut writer = Writer::new(compile(&state, &settings).tables);
    let (mut compiling, mut publishing) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        if let Some(slice) = state.endpoint_slices.values_mut().next() {
            slice.endpoints.push(endpoint(9_000_000 + round));
        }
        let started = Instant::now();
        let tables = compile(&state, &settings).tables;
        compiling.push(started.elapsed());
        let started = Instant::now();
        let published = writer.publish(tables);
        publishing.push(started.elapsed());
        assert_eq!(published.services().len(), services as usize);
    }
    println!("{services} services of {endpoints} endpoints, one change: median of {ROUNDS}");
    println!("compile {:?}, publish {:?}", median(compiling), median(publishing));
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
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
    }
}

fn cluster(services: u32, endpoints: u32) -> ClusterState {
    let mut state = ClusterState::default();
    for number in 1..=250_u8 {
        let cidr = format!("10.200.{number}.0/24").parse().into_iter().collect();
        let flannel = Flannel {
            backend_type: Some("vxlan".to_owned()),
            vtep_v4: Announcement::Ready { vni: VNI, mac: Mac([2, 0, 0, 0, 1, number]) },
            public_ip: Some(Ipv4Addr::new(192, 168, 1, number).into()),
            ..Flannel::default()
        };
        state.nodes.insert(format!("node-{number}"), Node { pod_cidrs: cidr, flannel, ..Node::default() });
    }
    for number in 0..services {
        let name = ObjectName::new("default", format!("service-{number:06}"));
        let ports = vec![ServicePort { name: "http".to_owned(), protocol: Protocol::TCP, port: 80 }];
        let cluster_ips = vec![IpAddr::from(Ipv4Addr::from(0x0a60_0000 + number + 10))];
        state.services.insert(name.clone(), Service { cluster_ips, ports, ..Service::default() });
        let slice = EndpointSlice {
            service: Some(name.name.clone()),
            ports: vec![EndpointPort { name: "http".to_owned(), protocol: Protocol::TCP, port: 8080 }],
            endpoints: (0..endpoints).map(|index| endpoint(number * endpoints + index)).collect(),
            ..EndpointSlice::default()
        };
        state.endpoint_slices.insert(name, slice);
    }
    state
}

fn endpoint(number: u32) -> Endpoint {
    let addr = Ipv4Addr::from(0x0ac8_0000_u32.wrapping_add(number)).into();
    Endpoint {
        addr,
        node: Some(format!("node-{}", number % 250)),
        ready: true,
        serving: true,
        terminating: false,
    }
}
