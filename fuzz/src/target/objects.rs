//! Well-formed Kubernetes objects with any content, as an API server would hand them out.
//!
//! Input: objects in a row, each a kind and then its fields, texts chosen from those that mean something or given.

use serde_json::{Value, json};
use windlass_control::source::manifests::load_text;

use crate::Seed;
use crate::cluster::{self, PREFIX};
use crate::input::Input;

const MAX_OBJECTS: usize = 24;

const NAMES: [&str; 6] = ["node-a", "node-b", "node-c", "web", "dns", "kubernetes"];

const ADDRESSES: [&str; 28] = [
    "10.96.0.10",
    "10.96.0.21",
    "10.244.0.10",
    "10.244.2.15",
    "10.244.3.4",
    "192.168.1.40",
    "192.168.1.51",
    "192.168.1.52",
    "203.0.113.7",
    "127.0.0.1",
    "169.254.1.1",
    "169.254.77.1",
    "224.0.0.1",
    "0.0.0.0",
    "255.255.255.255",
    "0.1.2.3",
    "010.0.0.1",
    "10.244.2.0",
    "fd00:10:96::a",
    "fd00:10:244:2::15",
    "fd00::40",
    "fe80::1",
    "::1",
    "::",
    "ff02::1",
    "::ffff:10.0.0.1",
    "fd77:6e64:6c61:7373::1",
    "None",
];

const NETWORKS: [&str; 14] = [
    "10.244.0.0/24",
    "10.244.2.0/24",
    "10.244.3.0/24",
    "10.244.0.0/16",
    "10.96.0.0/12",
    "10.244.2.0/32",
    "0.0.0.0/0",
    "192.168.1.0/24",
    "fd00:10:244::/64",
    "fd00:10:244:2::/64",
    "fd00:10:96::/112",
    "::/0",
    "010.0.0.0/8",
    "127.0.0.0/8",
];

const BACKEND_DATA: [&str; 6] = [
    r#"{"VNI":4096,"VtepMAC":"ce:7a:e5:af:6a:e9"}"#,
    r#"{"VNI":4096,"VtepMAC":"00:15:5d:3c:3e:3c"}"#,
    r#"{"VNI":4097,"VtepMAC":"00:15:5d:3c:3e:3d"}"#,
    r#"{"VNI":4096,"VtepMAC":""}"#,
    "null",
    "{",
];

/// A choice beyond the list: the text is given.
const GIVEN: u8 = 0xff;

/// What the objects say can be programmed, or is refused by name.
///
/// # Panics
/// When it is not so.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut items = Vec::new();
    while items.len() < MAX_OBJECTS && !input.is_empty() {
        items.push(object(&mut input));
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    match load_text("objects", &list, PREFIX) {
        Ok(loaded) => cluster::check(&loaded.state),
        Err(error) => unreachable!("{error}: {list}"),
    }
}

fn object(input: &mut Input<'_>) -> Value {
    match input.byte() % 5 {
        0 => node(input),
        1 => service(input),
        2 => endpoint_slice(input),
        3 => json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": metadata(input),
                    "spec": {"cidrs": texts(input, &NETWORKS)}}),
        _ => {
            let conf = json!({"Network": text(input, &NETWORKS), "EnableIPv6": input.flag(),
                "IPv6Network": text(input, &NETWORKS),
                "Backend": {"Type": "vxlan", "VNI": input.number(), "Port": input.number(), "MTU": input.number()}});
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-flannel-cfg"},
                   "data": {"net-conf.json": conf.to_string()}})
        }
    }
}

fn node(input: &mut Input<'_>) -> Value {
    let mut metadata = metadata(input);
    metadata["annotations"] = json!({
        format!("{PREFIX}/backend-type"): "vxlan",
        format!("{PREFIX}/backend-data"): text(input, &BACKEND_DATA),
        format!("{PREFIX}/backend-v6-data"): text(input, &BACKEND_DATA),
        format!("{PREFIX}/public-ip"): text(input, &ADDRESSES),
        format!("{PREFIX}/public-ipv6"): text(input, &ADDRESSES),
    });
    let kinds = ["InternalIP", "ExternalIP", "Hostname"];
    let address =
        |input: &mut Input<'_>| json!({"type": input.choose(&kinds), "address": text(input, &ADDRESSES)});
    let addresses: Vec<_> = (0..input.byte() % 3).map(|_| address(input)).collect();
    json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"addresses": addresses},
           "spec": {"podCIDRs": texts(input, &NETWORKS)}})
}

fn service(input: &mut Input<'_>) -> Value {
    let metadata = metadata(input);
    let ports: Vec<_> = (0..input.byte() % 4).map(|_| port(input)).collect();
    let spec = json!({
        "clusterIPs": texts(input, &ADDRESSES),
        "ports": ports,
        "sessionAffinity": input.choose(&["None", "ClientIP", ""]),
        "internalTrafficPolicy": input.choose(&["Cluster", "Local"]),
    });
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
}

fn endpoint_slice(input: &mut Input<'_>) -> Value {
    let mut metadata = metadata(input);
    metadata["labels"] = json!({"kubernetes.io/service-name": input.choose(&NAMES)});
    let ports: Vec<_> = (0..input.byte() % 3).map(|_| port(input)).collect();
    let endpoint = |input: &mut Input<'_>| {
        let conditions = input.byte();
        json!({"addresses": [text(input, &ADDRESSES)], "nodeName": input.choose(&NAMES),
               "conditions": {"ready": conditions & 1 == 0, "serving": conditions & 2 == 0,
                              "terminating": conditions & 4 == 4}})
    };
    let endpoints: Vec<_> = (0..input.byte() % 5).map(|_| endpoint(input)).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "ports": ports,
           "addressType": input.choose(&["IPv4", "IPv6", "FQDN"]), "endpoints": endpoints})
}

fn port(input: &mut Input<'_>) -> Value {
    json!({"name": input.choose(&["", "http", "dns"]), "port": input.number(),
           "protocol": input.choose(&["TCP", "UDP", "SCTP"])})
}

fn metadata(input: &mut Input<'_>) -> Value {
    json!({"name": input.choose(&NAMES), "creationTimestamp": format!("20{:02}-01-10T08:00:00Z", input.byte() % 100)})
}

fn texts(input: &mut Input<'_>, choices: &[&str]) -> Vec<String> {
    (0..input.byte() % 3).map(|_| text(input, choices)).collect()
}

fn text(input: &mut Input<'_>, choices: &[&str]) -> String {
    match input.byte() {
        GIVEN => String::from_utf8_lossy(input.piece()).into_owned(),
        choice => choices[usize::from(choice) % choices.len()].to_owned(),
    }
}

/// Two nodes, and services in front of good and of refused endpoints.
pub fn seeds() -> Vec<Seed> {
    // Name, age, annotations (data, v6 data, IP, v6 IP), one InternalIP, one podCIDR.
    let node_a = [0, 0, 1, 0, 4, 5, 27, 1, 0, 5, 1, 0];
    let node_b = [0, 1, 2, 1, 4, 6, 27, 1, 0, 6, 1, 1];
    // One port 80/TCP, one ClusterIP.
    let service = |vip: u8| [1, 3, 3, 1, 1, 0, 80, 0, 1, vip, 0, 0];
    // One port 8080/TCP, IPv4, two endpoints.
    let slice = |one: u8, two: u8| [2, 3, 3, 3, 1, 1, 0x1f, 0x90, 0, 2, 0, one, 1, 0, two, 0, 0];
    let cluster = |vip: u8, one: u8, two: u8| {
        [&node_a[..], &node_b, &service(vip), &slice(one, two), &[3, 5, 1, 1, 4]].concat()
    };
    vec![
        ("pods-of-both-nodes", cluster(1, 2, 3)),
        ("endpoint-loopback", cluster(1, 9, 3)),
        ("endpoint-node", cluster(1, 5, 6)),
        ("vip-of-a-node", cluster(6, 2, 3)),
        ("vip-of-a-pod", cluster(2, 2, 3)),
        ("vip-multicast", cluster(12, 2, 3)),
        ("given-text", [&node_a[..], &[1, 3, 3, 0, 1, 0xff, 4, b'$', b'(', b'x', b')', 0, 0]].concat()),
    ]
}
