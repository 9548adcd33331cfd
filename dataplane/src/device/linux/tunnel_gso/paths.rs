//! Whether the way to a peer leads over the lane's uplink, and how wide it is.
//!
//! The BPF program is bound to one interface, looks at no MTU and at no IPsec policy; a UDP socket follows routes and
//! policies by itself. So the lane asks for each peer, now and then.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::Uplink;
use crate::device::host::Family;
use crate::device::linux::netlink::{self, Netlink, Request, family_number};
use crate::device::linux::route_table::HEADER_LEN;

/// How long an answer holds.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// Most peers remembered.
const PEERS: usize = 256;

/// linux/xfrm.h: XFRM_MSG_GETSPDINFO, XFRMA_SPD_INFO, and where `struct xfrmu_spdinfo` has the output policies.
const GET_POLICY_COUNTS: u16 = 0x25;
const POLICY_COUNTS: u16 = 1;
const OUTPUT_POLICIES: usize = 4;

/// linux/rtnetlink.h.
const RTAX_MTU: u16 = 2;

/// The ways to the peers that superpackets were sent to.
#[derive(Debug, Default)]
pub(super) struct Paths {
    known: Vec<Path>,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    remote: IpAddr,
    /// `None` when the lane does not lead there.
    mtu: Option<u32>,
    asked_at: Instant,
}

impl Paths {
    /// The path MTU toward `remote` in bytes; `None` when the way does not lead over the uplink, or an IPsec policy
    /// might want to see the packet.
    pub(super) fn mtu(&mut self, uplink: &Uplink, remote: IpAddr) -> Option<u32> {
        let place = self.known.iter().position(|path| path.remote == remote);
        if let Some(path) = place.map(|place| self.known[place]).filter(|path| path.is_fresh()) {
            return path.mtu;
        }
        let path = Path { remote, mtu: ask(uplink, remote), asked_at: Instant::now() };
        match place {
            Some(place) => self.known[place] = path,
            None => {
                if self.known.len() == PEERS {
                    self.known.remove(0);
                }
                self.known.push(path);
            }
        }
        path.mtu
    }
}

impl Path {
    fn is_fresh(&self) -> bool {
        self.asked_at.elapsed() < FRESH_FOR
    }
}

/// What cannot be found out counts as no.
fn ask(uplink: &Uplink, remote: IpAddr) -> Option<u32> {
    if output_policies().unwrap_or(1) > 0 {
        return None;
    }
    let (interface, mtu) = route(uplink.address, remote).ok()??;
    (interface == uplink.index).then(|| mtu.map_or(uplink.mtu, |mtu| mtu.min(uplink.mtu)))
}

/// Interface and MTU, where one is set or was learned, of the route that a datagram from `source` takes.
fn route(source: IpAddr, remote: IpAddr) -> io::Result<Option<(u32, Option<u32>)>> {
    let bits = if remote.is_ipv4() { 32 } else { 128 };
    let mut header = [0; HEADER_LEN];
    header[..3].copy_from_slice(&[family_number(Family::of(&remote)), bits, bits]);
    let request = Request::new(libc::RTM_GETROUTE, libc::NLM_F_ACK, &header)
        .address(libc::RTA_DST, remote)
        .address(libc::RTA_SRC, source);
    let mut found = None;
    Netlink::open()?.dump(request, |_, body| found = found.or_else(|| unicast(body)))?;
    Ok(found)
}

fn unicast(body: &[u8]) -> Option<(u32, Option<u32>)> {
    let (header, rest) = body.split_at_checked(HEADER_LEN)?;
    if header[7] != libc::RTN_UNICAST {
        return None;
    }
    let interface = netlink::attribute(rest, libc::RTA_OIF).and_then(netlink::number)?;
    let metrics = netlink::attribute(rest, libc::RTA_METRICS);
    let mtu = metrics.and_then(|metrics| netlink::attribute(metrics, RTAX_MTU)).and_then(netlink::number);
    Some((interface, mtu.filter(|mtu| *mtu > 0)))
}

/// How many IPsec policies there are for what this host sends; none where the kernel has no IPsec.
fn output_policies() -> io::Result<u32> {
    let netlink = match Netlink::open_protocol(libc::NETLINK_XFRM) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(0),
        netlink => netlink?,
    };
    let mut count = None;
    let request = Request::new(GET_POLICY_COUNTS, libc::NLM_F_ACK, &[0; 4]);
    netlink.dump(request, |_, body| {
        let counts = body.get(4..).and_then(|rest| netlink::attribute(rest, POLICY_COUNTS));
        count = counts.and_then(|counts| netlink::number(counts.get(OUTPUT_POLICIES..)?));
    })?;
    Ok(count.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::device::linux::testing::{in_namespace, ip};
    use crate::wire::ethernet::Mac;

    #[test]
    fn the_way_to_a_peer_has_the_mtu_of_its_route_and_leads_over_the_uplink_only() {
        in_namespace("paths", || {
            for (name, address) in [("up0", "192.0.2.1/24"), ("up1", "198.51.100.1/24")] {
                ip(&format!("link add {name} type veth peer name {name}-peer"));
                ip(&format!("address add {address} dev {name}"));
                ip(&format!("link set {name} up"));
            }
            ip("route add 203.0.113.7 via 192.0.2.7 mtu 1400");
            ip("route add 203.0.113.8 via 198.51.100.8");
            ip("route add unreachable 203.0.113.9");
            let index = ip("-o link show up0").split(':').next().unwrap().parse().unwrap();
            let (address, mac) = ("192.0.2.1".parse().unwrap(), Mac([2; 6]));
            let uplink = Uplink { address, name: "up0".to_owned(), index, mtu: 1500, mac, cuts: false };
            let mtu = |remote: &str| ask(&uplink, remote.parse().unwrap());
            let remotes = ["192.0.2.5", "203.0.113.7", "203.0.113.8", "203.0.113.9", "192.0.2.1"];
            assert_eq!(remotes.map(mtu), [Some(1500), Some(1400), None, None, None]);
            assert_eq!(output_policies().unwrap(), 0);
            let policy = "xfrm policy add src 192.0.2.1/32 dst 192.0.2.5/32 dir out action block";
            let added = Command::new("ip").args(policy.split(' ')).status().unwrap();
            // A kernel without IPsec has no policies to heed.
            if added.success() {
                assert_eq!(mtu("192.0.2.5"), None);
            }
        });
    }

    #[test]
    fn an_answer_holds_for_a_while_and_many_peers_are_no_leak() {
        let mut paths = Paths::default();
        // The interface does not exist: no way leads over it.
        let (address, mac) = (IpAddr::from([127, 0, 0, 1]), Mac([2; 6]));
        let uplink =
            Uplink { address, name: "none".to_owned(), index: u32::MAX, mtu: 1500, mac, cuts: false };
        for number in 0..2 * PEERS as u32 {
            assert_eq!(paths.mtu(&uplink, IpAddr::from(number.to_be_bytes())), None);
        }
        assert_eq!(paths.known.len(), PEERS);
        let last = paths.known.last_mut().unwrap();
        (last.mtu, last.asked_at) = (Some(1280), Instant::now() + FRESH_FOR);
        let remote = last.remote;
        assert_eq!(paths.mtu(&uplink, remote), Some(1280));
    }
}
