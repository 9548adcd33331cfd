//! What IP Helper tells of the host: adapters, addresses and routes. Nothing here changes anything.
#![allow(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::ptr;
use std::slice;

use ipnet::IpNet;
use windows_sys::Win32::Foundation::{ERROR_BUFFER_OVERFLOW, ERROR_NO_DATA, ERROR_NOT_FOUND, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    FreeMibTable, GAA_FLAG_SKIP_ANYCAST, GAA_FLAG_SKIP_DNS_SERVER, GAA_FLAG_SKIP_MULTICAST,
    GetAdaptersAddresses, GetIpForwardTable2, IP_ADAPTER_ADDRESSES_LH, MIB_IPFORWARD_ROW2,
    MIB_IPFORWARD_TABLE2,
};
use windows_sys::Win32::Networking::WinSock::{AF_UNSPEC, SOCKADDR_INET, SOCKET_ADDRESS};

use super::sockaddr;
use crate::device::host::Family;

/// A network adapter.
#[derive(Clone, Debug)]
pub(super) struct Adapter {
    /// The name that Windows shows for it.
    pub(super) name: String,
    /// Its index; the same for both families.
    pub(super) index: u32,
    /// Its identifier across renames.
    pub(super) luid: u64,
    /// Its MTU, in bytes.
    pub(super) mtu: u32,
    /// What Windows adds to a route's own metric, of IPv4 and IPv6.
    pub(super) metrics: (u32, u32),
    /// Its addresses and the length of their on-link prefixes.
    pub(super) addresses: Vec<(IpAddr, u8)>,
}

/// A route.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// Where it leads.
    pub(super) destination: IpNet,
    /// Index of its adapter.
    pub(super) index: u32,
    /// The adapter's identifier.
    pub(super) luid: u64,
    /// The next hop; `None` when the destination is on the link.
    pub(super) gateway: Option<IpAddr>,
    /// Its metric, without the adapter's.
    pub(super) metric: u32,
}

impl Adapter {
    /// What Windows adds to the metric of a route of that family.
    pub(super) fn metric(&self, family: Family) -> u32 {
        match family {
            Family::V4 => self.metrics.0,
            Family::V6 => self.metrics.1,
        }
    }
}

/// All adapters.
pub(super) fn adapters() -> io::Result<Vec<Adapter>> {
    let flags = GAA_FLAG_SKIP_ANYCAST | GAA_FLAG_SKIP_MULTICAST | GAA_FLAG_SKIP_DNS_SERVER;
    let family = u32::from(AF_UNSPEC);
    let mut len: u32 = 16 << 10;
    loop {
        // Of u64, as the structures want to be aligned.
        let mut buffer = vec![0_u64; (len as usize).div_ceil(8)];
        let first: *mut IP_ADAPTER_ADDRESSES_LH = buffer.as_mut_ptr().cast();
        // SAFETY: `len` bytes that live during the call.
        match unsafe { GetAdaptersAddresses(family, flags, ptr::null(), first, &mut len) } {
            // SAFETY: the call has filled the buffer with a list that points into the buffer only.
            NO_ERROR => return Ok(unsafe { walk(first) }),
            ERROR_NO_DATA => return Ok(Vec::new()),
            // Adapters may have come since; `len` says what they take.
            ERROR_BUFFER_OVERFLOW => {}
            error => return Err(io::Error::from_raw_os_error(error as i32)),
        }
    }
}

/// # Safety
/// `next` is null or begins a list as GetAdaptersAddresses makes it.
unsafe fn walk(mut next: *const IP_ADAPTER_ADDRESSES_LH) -> Vec<Adapter> {
    let mut adapters = Vec::new();
    // SAFETY: an element of the list, all of whose pointers lead to its buffer.
    while let Some(adapter) = unsafe { next.as_ref() } {
        let mut addresses = Vec::new();
        let mut unicast = adapter.FirstUnicastAddress.cast_const();
        // SAFETY: as above.
        while let Some(entry) = unsafe { unicast.as_ref() } {
            // SAFETY: as above.
            if let Some(address) = unsafe { socket_address(&entry.Address) } {
                addresses.push((address, entry.OnLinkPrefixLength));
            }
            unicast = entry.Next;
        }
        // SAFETY: every member of the union is plain numbers.
        let index = unsafe { adapter.Anonymous1.Anonymous.IfIndex };
        adapters.push(Adapter {
            // SAFETY: a string that ends in zero.
            name: unsafe { wide_string(adapter.FriendlyName) },
            index: if index == 0 { adapter.Ipv6IfIndex } else { index },
            // SAFETY: both members of the union are the same eight bytes.
            luid: unsafe { adapter.Luid.Value },
            mtu: adapter.Mtu,
            metrics: (adapter.Ipv4Metric, adapter.Ipv6Metric),
            addresses,
        });
        next = adapter.Next;
    }
    adapters
}

/// # Safety
/// The structure points to a socket address of the length it says.
unsafe fn socket_address(address: &SOCKET_ADDRESS) -> Option<IpAddr> {
    let mut windows = SOCKADDR_INET::default();
    let len = size_of::<SOCKADDR_INET>().min(usize::try_from(address.iSockaddrLength).ok()?);
    // SAFETY: `len` bytes of each, which do not overlap.
    unsafe {
        ptr::copy_nonoverlapping(address.lpSockaddr.cast(), ptr::from_mut(&mut windows).cast::<u8>(), len)
    };
    sockaddr::from_windows(&windows)
}

/// The text.
///
/// # Safety
/// `text` is null or ends in a zero.
pub(super) unsafe fn wide_string(text: *const u16) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: it ends in a zero, and nothing behind that is read.
    let len = (0..).take_while(|at| unsafe { *text.add(*at) } != 0).count();
    // SAFETY: `len` characters were just read.
    String::from_utf16_lossy(unsafe { slice::from_raw_parts(text, len) })
}

/// All routes of a family.
pub(super) fn routes(family: Family) -> io::Result<Vec<Route>> {
    let mut table: *mut MIB_IPFORWARD_TABLE2 = ptr::null_mut();
    // SAFETY: a place for a pointer to a table that is ours to free.
    match unsafe { GetIpForwardTable2(sockaddr::family_number(family), &mut table) } {
        NO_ERROR => {}
        ERROR_NOT_FOUND => return Ok(Vec::new()),
        error => return Err(io::Error::from_raw_os_error(error as i32)),
    }
    // SAFETY: the table has as many rows as it says.
    let rows = unsafe { slice::from_raw_parts((*table).Table.as_ptr(), (*table).NumEntries as usize) };
    let routes = rows.iter().filter_map(route).collect();
    // SAFETY: the call has made it, and no row is looked at any more.
    unsafe { FreeMibTable(table.cast()) };
    Ok(routes)
}

fn route(row: &MIB_IPFORWARD_ROW2) -> Option<Route> {
    let prefix = sockaddr::from_windows(&row.DestinationPrefix.Prefix)?;
    Some(Route {
        destination: IpNet::new(prefix, row.DestinationPrefix.PrefixLength).ok()?,
        index: row.InterfaceIndex,
        // SAFETY: both members of the union are the same eight bytes.
        luid: unsafe { row.InterfaceLuid.Value },
        gateway: sockaddr::from_windows(&row.NextHop).filter(|hop| !hop.is_unspecified()),
        metric: row.Metric,
    })
}
