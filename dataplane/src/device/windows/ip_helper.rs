//! The calls that give an adapter its addresses and routes, resolved at run time: wine has none of them.
//!
//! Read first: the pages of netioapi.h. Addresses and routes made so live in the active store only: they go with the
//! adapter, and no reboot brings them back.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use windows_sys::Win32::Foundation::{ERROR_NOT_FOUND, NO_ERROR, WIN32_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    ConvertInterfaceAliasToLuid, MIB_IPFORWARD_ROW2, MIB_IPINTERFACE_ROW, MIB_UNICASTIPADDRESS_ROW,
};
use windows_sys::Win32::NetworkManagement::Ndis::NET_LUID_LH;
use windows_sys::Win32::Networking::WinSock::IpDadStatePreferred;

use super::{dynamic, sockaddr, tables};
use crate::device::host::Family;

/// What an adapter is told about one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceSettings {
    /// The family.
    pub(super) family: Family,
    /// MTU, in bytes.
    pub(super) mtu: u32,
    /// What is added to the metric of the adapter's routes.
    pub(super) metric: u32,
}

/// What can be asked of one adapter's IP configuration.
pub(super) trait IpHelper: fmt::Debug + Send {
    /// Addresses the adapter has.
    fn addresses(&self) -> io::Result<Vec<IpNet>>;
    /// On-link routes into the adapter.
    fn routes(&self) -> io::Result<Vec<IpNet>>;
    /// SetIpInterfaceEntry: MTU, fixed metric, forwarding.
    fn set_interface(&mut self, settings: InterfaceSettings) -> io::Result<()>;
    /// CreateUnicastIpAddressEntry.
    fn create_address(&mut self, address: IpNet) -> io::Result<()>;
    /// DeleteUnicastIpAddressEntry.
    fn delete_address(&mut self, address: IpNet) -> io::Result<()>;
    /// CreateIpForwardEntry2, on-link.
    fn create_route(&mut self, destination: IpNet) -> io::Result<()>;
    /// DeleteIpForwardEntry2.
    fn delete_route(&mut self, destination: IpNet) -> io::Result<()>;
}

/// How long an address family may take to appear on a new adapter.
const FAMILY_APPEARS_WITHIN: Duration = Duration::from_secs(10);

/// Windows' own IP Helper.
pub(super) struct System {
    luid: NET_LUID_LH,
    calls: Calls,
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: both members of the union are the same eight bytes.
        f.debug_struct("System").field("luid", &unsafe { self.luid.Value }).finish_non_exhaustive()
    }
}

impl System {
    /// The configuration of the adapter that Windows shows by that name.
    ///
    /// # Errors
    /// When there is no such adapter, or this Windows lacks one of the calls (all came with Vista).
    pub(super) fn of_adapter(name: &str) -> io::Result<Self> {
        let wide: Vec<u16> = name.encode_utf16().chain([0]).collect();
        let mut luid = NET_LUID_LH::default();
        // SAFETY: a name that ends in zero, and a place for the identifier.
        succeeded(unsafe { ConvertInterfaceAliasToLuid(wide.as_ptr(), &mut luid) })?;
        Ok(Self { luid, calls: Calls::resolve()? })
    }

    fn interface(&self, family: Family) -> io::Result<MIB_IPINTERFACE_ROW> {
        let mut row = MIB_IPINTERFACE_ROW::default();
        // SAFETY: a row of the function's type.
        unsafe { (self.calls.initialize_interface)(&mut row) };
        row.Family = sockaddr::family_number(family);
        row.InterfaceLuid = self.luid;
        // SAFETY: as above.
        succeeded(unsafe { (self.calls.get_interface)(&mut row) })?;
        Ok(row)
    }

    /// As [`Self::interface`], of an adapter that may be so new that the family is still to be bound to it.
    fn awaited_interface(&self, family: Family) -> io::Result<MIB_IPINTERFACE_ROW> {
        let deadline = Instant::now() + FAMILY_APPEARS_WITHIN;
        loop {
            match self.interface(family) {
                Err(error)
                    if error.raw_os_error() == Some(ERROR_NOT_FOUND as i32) && Instant::now() < deadline =>
                {
                    thread::sleep(Duration::from_millis(50));
                }
                result => return result,
            }
        }
    }

    fn address_row(&self, address: IpNet) -> MIB_UNICASTIPADDRESS_ROW {
        let mut row = MIB_UNICASTIPADDRESS_ROW::default();
        // SAFETY: a row of the function's type.
        unsafe { (self.calls.initialize_address)(&mut row) };
        row.InterfaceLuid = self.luid;
        row.Address = sockaddr::to_windows(address.addr());
        row.OnLinkPrefixLength = address.prefix_len();
        // No neighbor could contest it: there is nobody else on the link.
        row.DadState = IpDadStatePreferred;
        row
    }

    fn route_row(&self, destination: IpNet) -> MIB_IPFORWARD_ROW2 {
        let mut row = MIB_IPFORWARD_ROW2::default();
        // SAFETY: a row of the function's type.
        unsafe { (self.calls.initialize_route)(&mut row) };
        row.InterfaceLuid = self.luid;
        row.DestinationPrefix.Prefix = sockaddr::to_windows(destination.addr());
        row.DestinationPrefix.PrefixLength = destination.prefix_len();
        row.NextHop = sockaddr::to_windows(match destination {
            IpNet::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpNet::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        });
        row.Metric = 0;
        row
    }
}

impl IpHelper for System {
    fn addresses(&self) -> io::Result<Vec<IpNet>> {
        // SAFETY: both members of the union are the same eight bytes.
        let luid = unsafe { self.luid.Value };
        let ours = tables::adapters()?.into_iter().filter(|adapter| adapter.luid == luid);
        let addresses = ours.flat_map(|adapter| adapter.addresses);
        // Windows gives each adapter its link-local address, and needs it.
        let ours = addresses.filter(|(address, _)| !is_link_local_v6(*address));
        Ok(ours.filter_map(|(address, len)| IpNet::new(address, len).ok()).collect())
    }

    fn routes(&self) -> io::Result<Vec<IpNet>> {
        // SAFETY: both members of the union are the same eight bytes.
        let luid = unsafe { self.luid.Value };
        let mut routes = tables::routes(Family::V4)?;
        routes.extend(tables::routes(Family::V6)?);
        routes.retain(|route| route.luid == luid && route.gateway.is_none());
        // Windows makes the host, broadcast, multicast and link-local routes itself.
        let ours = routes.into_iter().map(|route| route.destination);
        Ok(ours.filter(|net| !net.addr().is_multicast() && !is_link_local_v6(net.addr())).collect())
    }

    fn set_interface(&mut self, settings: InterfaceSettings) -> io::Result<()> {
        let mut row = self.awaited_interface(settings.family)?;
        row.NlMtu = settings.mtu;
        row.UseAutomaticMetric = false;
        row.Metric = settings.metric;
        row.ForwardingEnabled = true;
        // GetIpInterfaceEntry fills in what SetIpInterfaceEntry refuses for IPv4.
        row.SitePrefixLength = 0;
        // SAFETY: a row as the function filled it in.
        succeeded(unsafe { (self.calls.set_interface)(&mut row) })
    }

    fn create_address(&mut self, address: IpNet) -> io::Result<()> {
        // SAFETY: a row of the function's type, as in all calls below.
        succeeded(unsafe { (self.calls.create_address)(&self.address_row(address)) })
    }

    fn delete_address(&mut self, address: IpNet) -> io::Result<()> {
        // SAFETY: as above.
        succeeded(unsafe { (self.calls.delete_address)(&self.address_row(address)) })
    }

    fn create_route(&mut self, destination: IpNet) -> io::Result<()> {
        // SAFETY: as above.
        succeeded(unsafe { (self.calls.create_route)(&self.route_row(destination)) })
    }

    fn delete_route(&mut self, destination: IpNet) -> io::Result<()> {
        // SAFETY: as above.
        succeeded(unsafe { (self.calls.delete_route)(&self.route_row(destination)) })
    }
}

fn is_link_local_v6(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn succeeded(code: WIN32_ERROR) -> io::Result<()> {
    if code == NO_ERROR { Ok(()) } else { Err(io::Error::from_raw_os_error(code as i32)) }
}

type Fill<Row> = unsafe extern "system" fn(*mut Row);
type Change<Row> = unsafe extern "system" fn(*mut Row) -> WIN32_ERROR;
type Apply<Row> = unsafe extern "system" fn(*const Row) -> WIN32_ERROR;

/// The functions by what they do, of iphlpapi.dll.
#[derive(Clone, Copy)]
struct Calls {
    initialize_interface: Fill<MIB_IPINTERFACE_ROW>,
    get_interface: Change<MIB_IPINTERFACE_ROW>,
    set_interface: Change<MIB_IPINTERFACE_ROW>,
    initialize_address: Fill<MIB_UNICASTIPADDRESS_ROW>,
    create_address: Apply<MIB_UNICASTIPADDRESS_ROW>,
    delete_address: Apply<MIB_UNICASTIPADDRESS_ROW>,
    initialize_route: Fill<MIB_IPFORWARD_ROW2>,
    create_route: Apply<MIB_IPFORWARD_ROW2>,
    delete_route: Apply<MIB_IPFORWARD_ROW2>,
}

impl Calls {
    fn resolve() -> io::Result<Self> {
        let library = dynamic::system_library("iphlpapi.dll")?;
        // SAFETY: the fields' types are those that netioapi.h declares for these names.
        unsafe {
            Ok(Self {
                initialize_interface: dynamic::function(library, c"InitializeIpInterfaceEntry")?,
                get_interface: dynamic::function(library, c"GetIpInterfaceEntry")?,
                set_interface: dynamic::function(library, c"SetIpInterfaceEntry")?,
                initialize_address: dynamic::function(library, c"InitializeUnicastIpAddressEntry")?,
                create_address: dynamic::function(library, c"CreateUnicastIpAddressEntry")?,
                delete_address: dynamic::function(library, c"DeleteUnicastIpAddressEntry")?,
                initialize_route: dynamic::function(library, c"InitializeIpForwardEntry")?,
                create_route: dynamic::function(library, c"CreateIpForwardEntry2")?,
                delete_route: dynamic::function(library, c"DeleteIpForwardEntry2")?,
            })
        }
    }
}
