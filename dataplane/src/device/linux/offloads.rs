//! What kernel and devices do for many packets at once, and what they leave to the CPU.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;

use super::ethtool::Ethtool;
use super::tun::{Tun, TunConfig, TunOffload};
use super::{socket, sys, tunnel_gso};
use crate::device::survey::{KernelOffload, OFFLOADS, Offload, OffloadPlace, OffloadState, Seen};

/// The name of the devices that are made to see what the kernel takes; no other is in their namespace.
const PROBE: &str = "probe";
const PROBE_MTU: u16 = 1500;

/// Those of [`OFFLOADS`] that the kernel knows, and their states; nothing of a device that does not tell.
pub(super) fn of(interface: &str) -> Vec<(&'static str, OffloadState)> {
    let Ok(ethtool) = Ethtool::open(interface) else { return Vec::new() };
    let state = |offload: Offload| {
        let states = offload.features.iter().filter_map(|feature| ethtool.state(interface, feature).ok());
        states.min().map(|state| (offload.name, state))
    };
    OFFLOADS.into_iter().filter_map(state).collect()
}

/// Those of an underlay device in words, for the log.
pub(super) fn fact(interface: &str) -> String {
    let states = of(interface);
    let told: Vec<_> = OFFLOADS
        .into_iter()
        .filter(|offload| offload.place == OffloadPlace::Underlay)
        .filter_map(|offload| {
            let (name, state) = states.iter().find(|(name, _)| *name == offload.name)?;
            let lack = if *state == OffloadState::On { "" } else { offload.lack };
            Some(if lack.is_empty() { format!("{name} {state}") } else { format!("{name} {state} ({lack})") })
        })
        .collect();
    match told.is_empty() {
        true => format!("underlay device {interface} does not tell its offloads"),
        false => format!("underlay device {interface}: {}", told.join("; ")),
    }
}

/// What the kernel takes and gives. It is tried on sockets and devices of a network namespace that vanishes with this
/// call, so that the host sees nothing of it.
pub(super) fn of_kernel() -> Vec<KernelOffload> {
    thread::spawn(|| {
        let alone = sys::leave_network()
            .map_err(|error| format!("not looked at: a network namespace to try it in: {error}"));
        let socket = socket::unbound(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).map_err(|error| error.to_string());
        let (tun, tap) = match alone {
            Ok(()) => (tun_offload(), tunnel_gso::try_tap(PROBE)),
            Err(why) => (Err(why.clone()), Err(why)),
        };
        let tun = |wanted: &[TunOffload]| match &tun {
            Ok(offload) if wanted.contains(offload) => Ok(()),
            Ok(_) => Err("the kernel refuses them".to_owned()),
            Err(why) => Err(why.clone()),
        };
        let known = |ask: fn(&socket2::Socket) -> bool| match &socket {
            Ok(socket) if ask(socket) => Ok(()),
            Ok(_) => Err("the kernel does not know it".to_owned()),
            Err(why) => Err(why.clone()),
        };
        let states: [(&str, Seen<()>); 5] = [
            ("TUN TSO4, TSO6", tun(&[TunOffload::Tcp, TunOffload::TcpAndUdp])),
            ("TUN USO4, USO6", tun(&[TunOffload::TcpAndUdp])),
            ("UDP_SEGMENT", known(socket::joins_sent)),
            ("UDP_GRO", known(socket::can_join_received)),
            ("tunnel-GSO", tap),
        ];
        states.map(|(name, state)| KernelOffload { name, state }).into()
    })
    .join()
    .unwrap_or_default()
}

fn tun_offload() -> Seen<TunOffload> {
    let config =
        TunConfig { name: PROBE.to_owned(), queues: 1, mtu: PROBE_MTU, superpackets: true, persist: false };
    let mut queues = Tun::create(&config).map_err(|error| error.to_string())?.into_iter();
    Ok(queues.next().map_or(TunOffload::Off, |queue| queue.offload()))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{in_namespace, ip};
    use super::*;

    #[test]
    fn offloads_that_are_off_are_told_from_those_a_device_cannot_have() {
        in_namespace("offloads", || {
            ip("link add va type veth peer name vb");
            let state = |name: &str| of("va").into_iter().find(|(known, _)| *known == name).map(|it| it.1);
            assert_eq!(state("tx-checksumming"), Some(OffloadState::On));
            assert_eq!(state("generic-receive-offload"), Some(OffloadState::Off));
            Ethtool::open("va").unwrap().set("va", "rx-gro", true).unwrap();
            assert_eq!(state("generic-receive-offload"), Some(OffloadState::On));
            let loopback = of("lo");
            assert!(loopback.contains(&("tx-udp_tnl-segmentation", OffloadState::Cannot)), "{loopback:?}");
        });
    }

    #[test]
    fn the_kernel_is_tried_and_nothing_is_left() {
        in_namespace("kernel offloads", || {
            let offloads = of_kernel();
            assert_eq!(offloads.len(), 5);
            let udp = offloads.iter().filter(|offload| offload.name.starts_with("UDP_"));
            assert!(udp.clone().all(|offload| offload.state.is_ok()), "{offloads:?}");
            let devices = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            assert!(!devices.contains(PROBE), "{devices}");
        });
    }
}
