//! What the host has: interfaces and their addresses.

use std::io;
use std::net::IpAddr;

use super::netlink::{self, Netlink, Request};
use super::route_table;
use crate::device::host::{Family, InterfaceAddresses, LinkError, LocalAddress};

/// Length of a link message's own header, in bytes.
pub(super) const LINK_HEADER_LEN: usize = 16;
const ADDRESS_HEADER_LEN: usize = 8;

/// linux/if_link.h: IFLA_VXLAN_ID, IFLA_VXLAN_PORT.
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_PORT: u16 = 15;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mtu: u32,
    /// The bridge or other interface it is a port of.
    pub(super) master: Option<u32>,
    /// What kind of device, unless it is hardware.
    pub(super) kind: Option<String>,
    /// What people call it.
    pub(super) alias: Option<String>,
    /// The VNI of a vxlan device.
    pub(super) vxlan_vni: Option<u32>,
    /// The UDP port of a vxlan device.
    pub(super) vxlan_port: Option<u16>,
}

impl Link {
    /// Whether it is of that kind.
    pub(super) fn is(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }
}

/// Every address of every interface of this host.
///
/// # Errors
/// When the system refuses the question.
pub fn local_addresses() -> Result<Vec<LocalAddress>, LinkError> {
    addresses().map_err(|error| LinkError::system("listing the host's addresses", error))
}

/// The interface of a family's default route and its addresses; `None` without such a route.
///
/// # Errors
/// When the system refuses the question.
pub fn default_route_interface(family: Family) -> Result<Option<InterfaceAddresses>, LinkError> {
    let failed = |error| LinkError::system("looking up the default route", error);
    let netlink = Netlink::open().map_err(failed)?;
    let Some(index) = route_table::default_route(&netlink, family).map_err(failed)? else { return Ok(None) };
    let found = links(&netlink).map_err(failed)?.into_iter().find(|link| link.index == index);
    let Some(link) = found else { return Ok(None) };
    let usable = |local: &LocalAddress| {
        local.index == index && Family::of(&local.address) == family && !is_link_local(&local.address)
    };
    let addresses = local_addresses()?.into_iter().filter(usable).map(|local| local.address).collect();
    Ok(Some(InterfaceAddresses { name: link.name, index, mtu: link.mtu, addresses }))
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

pub(super) fn addresses() -> io::Result<Vec<LocalAddress>> {
    let netlink = Netlink::open()?;
    let links = links(&netlink)?;
    let mut found = Vec::new();
    let request = Request::new(libc::RTM_GETADDR, libc::NLM_F_DUMP, &[0; ADDRESS_HEADER_LEN]);
    netlink.dump(request, |_, body| found.extend(local_address(body, &links)))?;
    Ok(found)
}

fn local_address(body: &[u8], links: &[Link]) -> Option<LocalAddress> {
    let (header, rest) = body.split_at_checked(ADDRESS_HEADER_LEN)?;
    let index = netlink::number(&header[4..])?;
    // IFA_ADDRESS is the peer's on a point-to-point interface; IFA_LOCAL is then ours.
    let local = netlink::attribute(rest, libc::IFA_LOCAL);
    let address = netlink::address(local.or_else(|| netlink::attribute(rest, libc::IFA_ADDRESS))?)?;
    let link = links.iter().find(|link| link.index == index)?;
    Some(LocalAddress { interface: link.name.clone(), index, address, prefix_len: header[1], mtu: link.mtu })
}

/// All interfaces.
pub(super) fn links(netlink: &Netlink) -> io::Result<Vec<Link>> {
    let mut found = Vec::new();
    let request = Request::new(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; LINK_HEADER_LEN]);
    netlink.dump(request, |_, body| found.extend(link(body)))?;
    Ok(found)
}

fn link(body: &[u8]) -> Option<Link> {
    let (header, rest) = body.split_at_checked(LINK_HEADER_LEN)?;
    let details = netlink::attribute(rest, libc::IFLA_LINKINFO);
    let vxlan = details.and_then(vxlan_settings);
    Some(Link {
        index: netlink::number(&header[4..])?,
        name: netlink::string(netlink::attribute(rest, libc::IFLA_IFNAME)?),
        mtu: netlink::attribute(rest, libc::IFLA_MTU).and_then(netlink::number).unwrap_or(0),
        master: netlink::attribute(rest, libc::IFLA_MASTER).and_then(netlink::number),
        kind: details.and_then(kind),
        alias: netlink::attribute(rest, libc::IFLA_IFALIAS).map(netlink::string),
        vxlan_vni: vxlan.and_then(|vxlan| netlink::attribute(vxlan, IFLA_VXLAN_ID)).and_then(netlink::number),
        vxlan_port: vxlan.and_then(vxlan_port),
    })
}

fn kind(details: &[u8]) -> Option<String> {
    netlink::attribute(details, libc::IFLA_INFO_KIND).map(netlink::string)
}

fn vxlan_settings(details: &[u8]) -> Option<&[u8]> {
    let is_vxlan = kind(details).is_some_and(|kind| kind == "vxlan");
    netlink::attribute(details, libc::IFLA_INFO_DATA).filter(|_| is_vxlan)
}

fn vxlan_port(settings: &[u8]) -> Option<u16> {
    let port = netlink::attribute(settings, IFLA_VXLAN_PORT)?;
    port.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes))
}
