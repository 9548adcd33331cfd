use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::leftover::{DeviceKeeper, cleanup};
use super::testing::{eventually, in_namespace, ip, run, tun};
use super::tun::{Tun, TunConfig};
use super::{HostState, default_route_interface, local_addresses};
use crate::device::OverlayDevice;
use crate::device::host::{Entrances, Family, HostPlan, LinkError};
use crate::packet::PacketBatch;
use crate::wire::checksum;
use crate::wire::flow::{Protocol, Vip};

fn plan(name: &str) -> HostPlan {
    let nets = |text: &str| text.split(' ').map(|net| net.parse().unwrap()).collect::<Vec<_>>();
    HostPlan {
        device: "windlass0".to_owned(),
        mtu: 1400,
        txqueuelen: 5000,
        addresses: nets("10.244.1.0/32 fd00:10:1::/128"),
        routes: nets("10.244.0.0/16 10.96.0.0/12 169.254.77.1/32 fd00:10::/48 fd77::1/128"),
        pod_cidrs: nets("10.244.1.0/24 fd00:10:1::/64"),
        cluster_cidrs: nets("10.244.0.0/16 fd00:10::/48"),
        source_vips: vec!["169.254.77.1".parse().unwrap(), "fd77::1".parse().unwrap()],
        node_port_vips: vec!["169.254.77.2".parse().unwrap(), "fd77::2".parse().unwrap()],
        entrances: entrances(&["192.0.2.1", "2001:db8::1"], 30_080),
        masquerades_pods: true,
        vtep_port: 8472,
        sysctls: HostPlan::forwarding_sysctls("windlass0", true, true),
        state_file: Some(state_file(name)),
    }
}

/// A node port and the same port of an external address, over TCP and UDP, each keeping its clients.
fn entrances(addresses: &[&str], port: u16) -> Entrances {
    let vips = |protocol| {
        addresses.iter().map(move |address| Vip { addr: address.parse().unwrap(), port, protocol })
    };
    let node_ports: BTreeSet<Vip> = vips(Protocol::TCP).chain(vips(Protocol::UDP)).collect();
    let external = node_ports.iter().map(|vip| Vip { port: 80, ..*vip }).collect();
    Entrances { kept: node_ports.clone(), node_ports, external }
}

fn state_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("windlass-{}-{name}", std::process::id()))
}

/// Everything of the host that a plan could touch.
fn host() -> String {
    let sysctls = "-n net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv6.conf.default.forwarding";
    [
        ip("-o link show up"),
        ip("-4 address"),
        ip("-4 route show table all"),
        ip("-6 route show table all"),
        ip("-4 rule"),
        ip("-6 rule"),
        run("nft", "list ruleset"),
        run("sysctl", sysctls),
    ]
    .join("\n")
}

#[test]
fn a_plan_is_applied_and_undone_without_a_trace() {
    in_namespace("host plan", || {
        let before = host();
        let device = tun("windlass0");
        let state = HostState::apply(plan("applied")).unwrap();
        let routes = ip("-4 route");
        assert!(
            routes.contains("10.244.0.0/16 dev windlass0 proto 77 scope link src 10.244.1.0"),
            "{routes}"
        );
        assert!(routes.contains("10.96.0.0/12 dev windlass0 proto 77 scope link src 10.244.1.0"), "{routes}");
        assert!(routes.contains("unreachable 10.244.1.0/24 proto 77 metric 4294967295"), "{routes}");
        let routes = ip("-6 route");
        assert!(routes.contains("fd00:10::/48 dev windlass0 proto 77 src fd00:10:1::"), "{routes}");
        assert!(routes.contains("unreachable fd00:10:1::/64 dev lo proto 77 metric 4294967295"), "{routes}");
        let link = ip("address show windlass0");
        assert!(link.contains("mtu 1400") && link.contains("qlen 5000") && !link.contains("fe80:"), "{link}");
        assert!(run("nft", "list ruleset").contains("table inet windlass"));
        assert_eq!(run("sysctl", "-n net.ipv4.ip_forward").trim(), "1");
        state.undo().unwrap();
        assert_eq!(run("sysctl", "-n net.ipv4.ip_forward").trim(), "0");
        assert!(!ip("route show table all").contains("proto 77"));
        drop(device);
        assert_eq!(host(), before);
        assert!(!state_file("applied").exists());
    });
}

#[test]
fn a_change_adds_and_removes_routes_and_what_is_masqueraded() {
    in_namespace("changed plan", || {
        let before = host();
        let device = tun("windlass0");
        let planned = plan("changed");
        let mut state = HostState::apply(planned.clone()).unwrap();
        let applied = host();
        let mut routes = planned.routes.clone();
        routes.retain(|net| net.to_string() != "10.96.0.0/12");
        routes.push("172.31.9.9/32".parse().unwrap());
        let mut cidrs = planned.cluster_cidrs.clone();
        cidrs.push("10.99.0.0/16".parse().unwrap());
        state.change(&routes, &cidrs, &planned.entrances).unwrap();
        let found = ip("-4 route");
        assert!(found.contains("172.31.9.9 dev windlass0 proto 77 scope link src 10.244.1.0"), "{found}");
        assert!(!found.contains("10.96.0.0/12") && found.contains("unreachable 10.244.1.0/24"), "{found}");
        assert!(run("nft", "list ruleset").contains("10.99.0.0/16"));
        state.change(&planned.routes, &planned.cluster_cidrs, &planned.entrances).unwrap();
        assert_eq!(host(), applied);
        ip("route add unreachable 10.97.0.1/32");
        routes.push("10.97.0.1/32".parse().unwrap());
        let error = state.change(&routes, &planned.cluster_cidrs, &planned.entrances).unwrap_err();
        assert!(error.to_string().contains("ip route delete 10.97.0.1/32"), "{error}");
        assert!(ip("-4 route").contains("172.31.9.9"), "the other routes are changed all the same");
        ip("route delete unreachable 10.97.0.1/32");
        state.undo().unwrap();
        drop(device);
        assert_eq!(host(), before);
    });
}

#[test]
fn g1_what_a_killed_run_has_left_is_swept_and_finally_undone() {
    in_namespace("crash", || {
        let before = host();
        let device = tun("windlass0");
        HostState::apply(plan("killed")).unwrap().keep();
        drop(device);
        assert!(ip("-4 route").contains("unreachable 10.244.1.0/24"));
        let mut changed = plan("killed");
        changed.pod_cidrs = vec!["10.244.9.0/24".parse().unwrap()];
        let device = tun("windlass0");
        let state = HostState::apply(changed).unwrap();
        let routes = ip("-4 route");
        assert!(routes.contains("unreachable 10.244.9.0/24"), "{routes}");
        assert!(!routes.contains("unreachable 10.244.1.0/24"), "{routes}");
        assert!(matches!(HostState::apply(plan("killed")), Err(LinkError::Busy)));
        drop(state);
        drop(device);
        assert_eq!(host(), before);
    });
}

#[test]
fn entrances_change_by_elements_alone_and_rules_stay_as_many() {
    in_namespace("entrances", || {
        let device = tun("windlass0");
        let planned = plan("entrances");
        let mut state = HostState::apply(planned.clone()).unwrap();
        let (applied, ruleset) = (host(), run("nft", "list ruleset"));
        assert!(
            ip("-4 rule").contains("from all fwmark 0x10000000/0x10000000 lookup 77"),
            "{}",
            ip("-4 rule")
        );
        assert!(ip("-4 route show table 77").contains("default dev windlass0"));
        let addresses: Vec<String> = (1..=200).map(|last| format!("198.51.100.{last}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let many = entrances(&addresses, 31_000);
        state.change(&planned.routes, &planned.cluster_cidrs, &many).unwrap();
        let changed = run("nft", "list ruleset");
        assert!(changed.contains("198.51.100.200 . udp . 31000"), "{changed}");
        assert!(!changed.contains("30080"), "{changed}");
        let rules = |text: &str| text.matches("dnat").count() + text.matches("meta mark set").count();
        assert_eq!(rules(&changed), rules(&ruleset));
        state.change(&planned.routes, &planned.cluster_cidrs, &planned.entrances).unwrap();
        assert_eq!(host(), applied);
        state.undo().unwrap();
        drop(device);
    });
}

#[test]
fn packets_are_steered_only_while_a_service_has_an_entrance() {
    in_namespace("steering", || {
        let device = tun("windlass0");
        let planned = HostPlan { entrances: Entrances::default(), ..plan("steering") };
        let mut state = HostState::apply(planned.clone()).unwrap();
        let quiet = host();
        let expect = |steered: bool, node_ports: bool| {
            let found = host();
            for (words, there) in [
                ("fwmark 0x10000000/0x10000000 lookup 77", steered),
                ("chain steer {", steered),
                ("hook output priority mangle", steered),
                ("ct state new", steered),
                ("chain node_ports {", node_ports),
                ("hook output priority -100", node_ports),
            ] {
                assert_eq!(found.contains(words), there, "{words} in\n{found}");
            }
        };
        expect(false, false);
        let all = entrances(&["192.0.2.1", "2001:db8::1"], 30_080);
        let mut change = |entrances: &Entrances| {
            state.change(&planned.routes, &planned.cluster_cidrs, entrances).unwrap();
        };
        change(&all);
        expect(true, true);
        change(&Entrances { node_ports: all.node_ports.clone(), ..Entrances::default() });
        expect(false, true);
        change(&Entrances { external: all.external.clone(), ..Entrances::default() });
        expect(true, false);
        change(&Entrances::default());
        assert_eq!(host(), quiet);
        change(&all);
        state.keep();
        let state = HostState::apply(planned).unwrap();
        assert_eq!(host(), quiet, "what a killed run steered is swept");
        state.undo().unwrap();
        drop(device);
    });
}

#[test]
fn a_route_of_someone_else_is_named_and_what_was_done_is_undone() {
    in_namespace("taken route", || {
        ip("route add unreachable 10.96.0.0/12");
        let device = tun("windlass0");
        let before = host();
        let error = HostState::apply(plan("taken")).unwrap_err();
        assert!(error.to_string().contains("ip route delete 10.96.0.0/12"), "{error}");
        assert!(!ip("route show table all").contains("proto 77"));
        assert!(!run("nft", "list ruleset").contains("windlass"));
        drop(device);
        assert_eq!(host(), before);
    });
}

/// A UDP packet without payload.
fn udp(src: [u8; 4], dst: [u8; 4], port: u16) -> Vec<u8> {
    let mut packet = vec![0; 28];
    (packet[0], packet[3], packet[8], packet[9]) = (0x45, 28, 64, 17);
    packet[12..16].copy_from_slice(&src);
    packet[16..20].copy_from_slice(&dst);
    let header = checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&header.to_be_bytes());
    packet[20..22].copy_from_slice(&4000_u16.to_be_bytes());
    packet[22..24].copy_from_slice(&port.to_be_bytes());
    packet[25] = 8;
    packet
}

#[test]
fn e5_pods_reach_no_vtep_and_are_masqueraded_as_source_vips_are() {
    in_namespace("filter rules", || {
        let (mut device, mut pods, mut uplink) = (tun("windlass0"), tun("pods"), tun("uplink"));
        for (name, address) in [("pods", "10.244.1.1/24"), ("uplink", "192.0.2.1/24")] {
            run("sysctl", &format!("-qw net.ipv6.conf.{name}.disable_ipv6=1"));
            ip(&format!("address add {address} dev {name}"));
            ip(&format!("link set {name} up"));
        }
        let _state = HostState::apply(plan("rules")).unwrap();
        let (pod, vip, node) = ([10, 244, 1, 5], [169, 254, 77, 1], [192, 0, 2, 9]);
        let mut from_pod = PacketBatch::new(2, 0);
        assert!(from_pod.receive_copy(&udp(pod, node, 8472)) && from_pod.receive_copy(&udp(pod, node, 8473)));
        assert_eq!(pods.send_batch(&from_pod.pool, &from_pod.packets).sent, 2);
        let mut from_vip = PacketBatch::new(2, 0);
        assert!(from_vip.receive_copy(&udp(vip, node, 8472)) && from_vip.receive_copy(&udp(vip, node, 53)));
        assert_eq!(device.send_batch(&from_vip.pool, &from_vip.packets).sent, 2);
        let mut sent = PacketBatch::new(8, 0);
        eventually(|| uplink.recv_batch(&mut sent).unwrap());
        let seen = |packet| {
            let bytes: &[u8] = sent.pool.bytes(packet);
            ([bytes[12], bytes[13], bytes[14], bytes[15]], u16::from_be_bytes([bytes[22], bytes[23]]))
        };
        let seen: Vec<_> = sent.packets.iter().map(seen).collect();
        assert_eq!(
            seen,
            [([192, 0, 2, 1], 8473), ([192, 0, 2, 1], 53)],
            "both as this host, pods by --ip-masq"
        );
    });
    let _ = fs::remove_file(state_file("rules"));
}

#[test]
fn the_hosts_addresses_and_default_routes_are_found() {
    in_namespace("facts", || {
        assert_eq!(default_route_interface(Family::V4).unwrap(), None);
        ip("link add up0 mtu 1480 type veth peer name up1");
        ip("link set up1 up");
        ip("link set up0 up");
        ip("address add 192.0.2.7/24 dev up0");
        ip("address add 2001:db8::7/64 dev up0 nodad");
        ip("route add default via 192.0.2.1 metric 50");
        ip("-6 route add default via 2001:db8::1");
        for (family, address) in [(Family::V4, "192.0.2.7"), (Family::V6, "2001:db8::7")] {
            let found = default_route_interface(family).unwrap().unwrap();
            assert_eq!((found.name.as_str(), found.mtu), ("up0", 1480));
            assert_eq!(found.addresses, [address.parse::<std::net::IpAddr>().unwrap()]);
        }
        let addresses = local_addresses().unwrap();
        let found =
            addresses.iter().find(|local| local.address == "192.0.2.7".parse::<std::net::IpAddr>().unwrap());
        let found = found.unwrap();
        assert_eq!((found.interface.as_str(), found.prefix_len, found.mtu), ("up0", 24, 1480));
    });
}

fn kept_tun(queues: usize) -> (Vec<Tun>, DeviceKeeper) {
    let config =
        TunConfig { name: "windlass0".to_owned(), queues, mtu: 1450, superpackets: true, persist: true };
    let tuns = Tun::create(&config).unwrap();
    let keeper = DeviceKeeper::new("windlass0", &tuns[0]).unwrap();
    (tuns, keeper)
}

#[test]
fn g1_what_is_kept_stands_while_nobody_runs_and_the_next_run_goes_on_with_it() {
    in_namespace("kept device", || {
        let before = host();
        let (tuns, keeper) = kept_tun(1);
        let state = HostState::apply(plan("kept")).unwrap();
        keeper.keep().unwrap();
        let index = ip("-o link show windlass0").split(':').next().unwrap().to_owned();
        state.keep();
        drop(tuns);
        let left = ip("-4 route") + &run("nft", "list ruleset");
        for words in ["10.96.0.0/12 dev windlass0", "unreachable 10.244.1.0/24", "table inet windlass"] {
            assert!(left.contains(words), "{words} is not in {left}");
        }
        let mut changed = plan("kept");
        changed.addresses[0] = "10.244.9.0/32".parse().unwrap();
        let (tuns, keeper) = kept_tun(2);
        let state = HostState::apply(changed).unwrap();
        let link = ip("-o address show windlass0");
        assert!(link.starts_with(&index), "the device is the same: {link}");
        assert!(link.contains("10.244.9.0/32") && !link.contains("10.244.1.0/32"), "{link}");
        assert!(ip("-4 route").contains("10.96.0.0/12 dev windlass0 proto 77 scope link src 10.244.9.0"));
        let busy = cleanup(&state_file("kept"));
        assert!(matches!(busy, Err(LinkError::Busy)), "{busy:?}");
        drop(keeper);
        state.keep();
        drop(tuns);
        let removed = cleanup(&state_file("kept")).unwrap();
        for what in ["route to 10.96.0.0/12", "device windlass0", "nftables table", "ip_forward"] {
            assert!(removed.iter().any(|line| line.contains(what)), "{what} is not in {removed:?}");
        }
        assert_eq!(host(), before);
        assert_eq!(cleanup(&state_file("kept")).unwrap(), Vec::<String>::new());
    });
}

#[test]
fn a_run_that_keeps_nothing_takes_a_kept_device_with_it() {
    in_namespace("released device", || {
        let before = host();
        let (tuns, keeper) = kept_tun(1);
        keeper.keep().unwrap();
        drop(tuns);
        assert!(ip("link show windlass0").contains("kept by windlass"));
        let device = tun("windlass0");
        assert!(!ip("link show windlass0").contains("kept by windlass"));
        drop(device);
        assert_eq!(host(), before);
    });
}

#[test]
fn somebody_elses_persistent_device_is_not_taken() {
    in_namespace("foreign device", || {
        ip("tuntap add windlass0 mode tun multi_queue");
        let config = TunConfig {
            name: "windlass0".to_owned(),
            queues: 1,
            mtu: 1450,
            superpackets: true,
            persist: true,
        };
        assert!(Tun::create(&config).is_err());
        ip("link delete windlass0");
    });
}
