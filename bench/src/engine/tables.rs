//! A cluster of made-up nodes and services.
//!
//! Our pods are 10.1.0.0/24 and fd00:1::/64. Other nodes' pods are the /24s from 16.0.0.0 on and the /64s from fd00:2::
//! on, their underlay addresses those from 100.64.0.0 on. VIPs are counted from 10.96.0.0 and fd00:9:: on; each leads to
//! one pod of one node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use windlass_dataplane::tables::{LocalVtep, NextHop, RemoteVtep, Service, TableSet, Vip};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::vxlan::Vni;

use super::Family;

pub(super) const VNI: u32 = 1;
pub(super) const OUR_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(super) const VIP_PORT: u16 = 80;
pub(super) const POD_PORT: u16 = 8080;

/// The last part of every remote pod's address.
const REMOTE_POD: u32 = 5;
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

pub(super) fn local_pod(family: Family, pod: u32) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits(0x0a01_0000 + pod).into(),
        Family::V6 => Ipv6Addr::from_bits(0xfd00_0001 << 96 | u128::from(pod)).into(),
    }
}

pub(super) fn remote_pod(family: Family, node: u32) -> IpAddr {
    remote(family, node, REMOTE_POD)
}

fn remote(family: Family, node: u32, pod: u32) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits(0x1000_0000 + (node << 8) + pod).into(),
        Family::V6 => {
            Ipv6Addr::from_bits(0xfd00_0002 << 96 | u128::from(node) << 64 | u128::from(pod)).into()
        }
    }
}

pub(super) fn vip(family: Family, service: u32) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits(0x0a60_0000 + service).into(),
        Family::V6 => Ipv6Addr::from_bits(0xfd00_0009 << 96 | u128::from(service)).into(),
    }
}

pub(crate) fn underlay(node: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x6440_0000 + node).into()
}

fn mac(node: u32) -> Mac {
    let [a, b, c, d] = node.to_be_bytes();
    Mac([6, 0, a, b, c, d])
}

fn prefix_len(family: Family) -> u8 {
    if family == Family::V4 { 24 } else { 64 }
}

/// The tables for `services` services and `nodes` other nodes, in both families.
pub(super) fn tables(services: u32, nodes: u32) -> TableSet {
    let vni = Vni::new(VNI).unwrap_or_else(|| unreachable!("24 bits"));
    let net = |addr, len| ipnet::IpNet::new(addr, len).unwrap_or_else(|_| unreachable!("a prefix length"));
    let mut set = TableSet::default();
    let (fdb, neighbors) = (Arc::make_mut(&mut set.fdb), Arc::make_mut(&mut set.neighbors));
    let (routes, local) = (Arc::make_mut(&mut set.routes), Arc::make_mut(&mut set.local));
    local.vteps.insert(vni, LocalVtep { mac_v4: Some(OUR_MAC), mac_v6: Some(OUR_MAC) });
    for family in FAMILIES {
        let own = net(local_pod(family, 0), prefix_len(family));
        routes.insert(own, NextHop::Overlay);
        local.cluster_cidrs.push(own);
    }
    for node in 0..nodes {
        let mut vtep = RemoteVtep::new(format!("node-{node}"), SocketAddr::new(underlay(node), 4789));
        for family in FAMILIES {
            let gateway = remote(family, node, 0);
            let prefix = net(gateway, prefix_len(family));
            vtep.prefixes.push(prefix);
            neighbors.insert(vni, gateway, mac(node));
            routes.insert(prefix, NextHop::Remote { vni, gateway });
        }
        fdb.insert(vni, mac(node), Arc::new(vtep));
    }
    let table = Arc::make_mut(&mut set.services);
    for service in 0..services {
        for family in FAMILIES {
            let vip = Vip { addr: vip(family, service), port: VIP_PORT, protocol: Protocol::UDP };
            let backend = SocketAddr::new(remote_pod(family, service % nodes), POD_PORT);
            table.insert(Arc::new(Service::new(format!("default/s{service}:http"), vip, vec![backend])));
        }
    }
    set
}
