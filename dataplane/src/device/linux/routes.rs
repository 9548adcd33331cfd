//! Addresses, routes and flags of interfaces, changed by netlink.
//!
//! Our routes carry a protocol number of their own, by which those of a killed run are found.

use std::io;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use libc::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};

use super::netlink::{self, Netlink, Request, family_number};
use super::route_table::{self, HEADER_LEN};
use crate::device::host::Family;

/// The protocol number of our routes. 4 to 255 are free to choose (linux/rtnetlink.h); iproute2's rt_protos
/// names none between 42 and 185.
pub(super) const PROTOCOL: u8 = 77;

/// The routing table of marked packets.
pub(super) const MARKED_TABLE: u8 = 77;

/// The highest metric: any other route to the same prefix wins.
const LAST_METRIC: u32 = u32::MAX;

/// A route of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Route {
    /// Into the interface of that index, with a preferred source.
    Device(IpNet, u32, Option<IpAddr>),
    /// To nowhere, unless there is another route.
    Unreachable(IpNet),
    /// Into the interface of that index, whatever the destination, for marked packets of a family.
    Marked(Family, u32),
}

impl Route {
    /// Where it leads.
    pub(super) fn destination(&self) -> IpNet {
        match self {
            Self::Device(net, ..) | Self::Unreachable(net) => *net,
            Self::Marked(Family::V4, _) => Ipv4Net::default().into(),
            Self::Marked(Family::V6, _) => Ipv6Net::default().into(),
        }
    }

    fn request(&self, kind: u16, flags: i32) -> Request {
        let net = self.destination();
        let (scope, action) = match self {
            Self::Unreachable(_) => (libc::RT_SCOPE_UNIVERSE, libc::RTN_UNREACHABLE),
            _ if net.addr().is_ipv4() => (libc::RT_SCOPE_LINK, libc::RTN_UNICAST),
            _ => (libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST),
        };
        let table = if matches!(self, Self::Marked(..)) { MARKED_TABLE } else { libc::RT_TABLE_MAIN };
        let family = family_number(Family::of(&net.addr()));
        let header = [family, net.prefix_len(), 0, 0, table, PROTOCOL, scope, action, 0, 0, 0, 0];
        let request = Request::new(kind, flags | NLM_F_ACK, &header);
        // The kernel takes no attribute for "every destination".
        let request =
            if net.prefix_len() == 0 { request } else { request.address(libc::RTA_DST, net.network()) };
        match *self {
            Self::Unreachable(_) => request.number(libc::RTA_PRIORITY, LAST_METRIC),
            Self::Device(_, index, None) | Self::Marked(_, index) => request.number(libc::RTA_OIF, index),
            Self::Device(_, index, Some(source)) => {
                request.number(libc::RTA_OIF, index).address(libc::RTA_PREFSRC, source)
            }
        }
    }

    /// Adds it; AlreadyExists when the host has one to the same prefix and metric.
    pub(super) fn add(&self, netlink: &Netlink) -> io::Result<()> {
        netlink.execute(self.request(libc::RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL))
    }

    /// Removes it; one that has gone with its interface is no error.
    pub(super) fn remove(&self, netlink: &Netlink) -> io::Result<()> {
        match netlink.execute(self.request(libc::RTM_DELROUTE, 0)) {
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV | libc::ENETDOWN)) =>
            {
                Ok(())
            }
            removed => removed,
        }
    }
}

/// All routes of our protocol, of this run or an earlier one.
pub(super) fn ours(netlink: &Netlink) -> io::Result<Vec<Route>> {
    route_table::every(netlink, route_of_ours)
}

fn route_of_ours(header: &[u8; HEADER_LEN], rest: &[u8]) -> Option<Route> {
    if header[5] != PROTOCOL {
        return None;
    }
    if header[4] == MARKED_TABLE {
        let family = if header[0] == family_number(Family::V4) { Family::V4 } else { Family::V6 };
        let index = netlink::number(netlink::attribute(rest, libc::RTA_OIF)?)?;
        return Some(Route::Marked(family, index));
    }
    if header[4] != libc::RT_TABLE_MAIN {
        return None;
    }
    let destination = netlink::address(netlink::attribute(rest, libc::RTA_DST)?)?;
    let net = IpNet::new(destination, header[1]).ok()?;
    if header[7] == libc::RTN_UNREACHABLE {
        return Some(Route::Unreachable(net));
    }
    let index = netlink::number(netlink::attribute(rest, libc::RTA_OIF)?)?;
    let source = netlink::attribute(rest, libc::RTA_PREFSRC).and_then(netlink::address);
    Some(Route::Device(net, index, source))
}

/// Gives an interface an address. IPv6 skips duplicate detection: nobody else is on the device, and until it
/// ended nothing could be sent from the address.
pub(super) fn add_address(netlink: &Netlink, index: u32, net: IpNet) -> io::Result<()> {
    let flags = libc::IFA_F_PERMANENT | libc::IFA_F_NODAD | libc::IFA_F_NOPREFIXROUTE;
    let mut header = vec![family_number(Family::of(&net.addr())), net.prefix_len(), 0, 0];
    header.extend(index.to_ne_bytes());
    let request = Request::new(libc::RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, &header)
        .address(libc::IFA_LOCAL, net.addr())
        .address(libc::IFA_ADDRESS, net.addr())
        .number(libc::IFA_FLAGS, flags);
    match netlink.execute(request) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        added => added,
    }
}

/// Takes an address from an interface.
pub(super) fn remove_address(netlink: &Netlink, index: u32, net: IpNet) -> io::Result<()> {
    let mut header = vec![family_number(Family::of(&net.addr())), net.prefix_len(), 0, 0];
    header.extend(index.to_ne_bytes());
    let request = Request::new(libc::RTM_DELADDR, NLM_F_ACK, &header).address(libc::IFA_LOCAL, net.addr());
    netlink.execute(request)
}

/// Sets an interface's MTU and queue length, and brings it up.
pub(super) fn bring_up(netlink: &Netlink, index: u32, mtu: u32, txqueuelen: u32) -> io::Result<()> {
    let up = libc::IFF_UP as u32;
    let mut header = vec![0; 4];
    header.extend(index.to_ne_bytes());
    header.extend(up.to_ne_bytes());
    header.extend(up.to_ne_bytes());
    let request = Request::new(libc::RTM_NEWLINK, NLM_F_ACK, &header)
        .number(libc::IFLA_MTU, mtu)
        .number(libc::IFLA_TXQLEN, txqueuelen);
    netlink.execute(request)
}
