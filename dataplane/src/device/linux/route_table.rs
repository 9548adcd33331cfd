//! The host's routes, read by netlink.
//!
//! Read first: rtnetlink(7).

use std::io;

use ipnet::IpNet;
use libc::NLM_F_DUMP;

use super::netlink::{self, Netlink, Request, family_number};
use crate::device::host::Family;

/// Length of a route message's own header, in bytes.
pub(super) const HEADER_LEN: usize = 12;

/// Length of a next hop's header among those of a multipath route, in bytes.
const NEXT_HOP_HEADER_LEN: usize = 8;

/// What `read` makes of each route of each table, from the message's header and its attributes.
pub(super) fn every<T>(
    netlink: &Netlink,
    read: impl Fn(&[u8; HEADER_LEN], &[u8]) -> Option<T>,
) -> io::Result<Vec<T>> {
    let mut found = Vec::new();
    let request = Request::new(libc::RTM_GETROUTE, NLM_F_DUMP, &[0; HEADER_LEN]);
    netlink.dump(request, |_, body| {
        found.extend(body.split_first_chunk().and_then(|(header, attributes)| read(header, attributes)));
    })?;
    Ok(found)
}

/// The interface of the main table's default route of the lowest metric.
pub(super) fn default_route(netlink: &Netlink, family: Family) -> io::Result<Option<u32>> {
    let found = every(netlink, |header, attributes| default_route_of(header, attributes, family))?;
    Ok(found.into_iter().min().map(|(_, index)| index))
}

/// Metric and interface of a default route of the main table.
fn default_route_of(header: &[u8; HEADER_LEN], attributes: &[u8], family: Family) -> Option<(u32, u32)> {
    let is_default = header[0] == family_number(family) && header[1] == 0;
    if !is_default || !is_unicast_of_main(header) {
        return None;
    }
    let metric = netlink::attribute(attributes, libc::RTA_PRIORITY).and_then(netlink::number).unwrap_or(0);
    let index = match netlink::attribute(attributes, libc::RTA_OIF) {
        Some(index) => netlink::number(index)?,
        None => {
            let hops = netlink::attribute(attributes, libc::RTA_MULTIPATH)?;
            netlink::number(hops.get(4..NEXT_HOP_HEADER_LEN)?)?
        }
    };
    Some((metric, index))
}

/// The interfaces of unicast routes of the main table whose destinations `is_wanted`.
pub(super) fn routed(netlink: &Netlink, is_wanted: impl Fn(&IpNet) -> bool) -> io::Result<Vec<u32>> {
    every(netlink, |header, attributes| {
        let to = netlink::address(netlink::attribute(attributes, libc::RTA_DST)?)?;
        let index = netlink::number(netlink::attribute(attributes, libc::RTA_OIF)?)?;
        let is_wanted = is_unicast_of_main(header) && is_wanted(&IpNet::new(to, header[1]).ok()?);
        is_wanted.then_some(index)
    })
}

fn is_unicast_of_main(header: &[u8; HEADER_LEN]) -> bool {
    header[4] == libc::RT_TABLE_MAIN && header[7] == libc::RTN_UNICAST
}
