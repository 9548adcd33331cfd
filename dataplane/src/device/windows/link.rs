//! The host's addresses and routes: not managed on Windows, and said so.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::device::config::DeviceError;
use crate::device::host::{Family, HostPlan, InterfaceAddresses, LinkError, LocalAddress};
use crate::device::survey::Survey;

/// The host as a plan wants it. It cannot be made on Windows.
#[derive(Debug)]
pub struct HostState {
    never: std::convert::Infallible,
}

impl HostState {
    /// Refuses every plan.
    ///
    /// # Errors
    /// Always, with what the plan asks for.
    pub fn apply(plan: HostPlan) -> Result<Self, LinkError> {
        let words =
            |nets: &[ipnet::IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Err(LinkError::Unsupported {
            action: format!(
                "giving the adapter {} the addresses {} and the routes {}",
                plan.device,
                words(&plan.addresses),
                words(&plan.routes)
            ),
        })
    }

    /// Changes routes.
    ///
    /// # Errors
    /// None: there is no such value.
    pub fn change(
        &mut self,
        _routes: &[ipnet::IpNet],
        _cluster_cidrs: &[ipnet::IpNet],
    ) -> Result<(), LinkError> {
        match self.never {}
    }

    /// Undoes everything.
    ///
    /// # Errors
    /// None: there is no such value.
    pub fn undo(self) -> Result<(), LinkError> {
        match self.never {}
    }
}

/// Every address of every interface of this host.
///
/// # Errors
/// Always: not supported.
pub fn local_addresses() -> Result<Vec<LocalAddress>, LinkError> {
    Err(LinkError::Unsupported {
        action: "finding the host's addresses (give the underlay address)".to_owned(),
    })
}

/// The interface of a family's default route and its addresses.
///
/// # Errors
/// Always: not supported.
pub fn default_route_interface(_family: Family) -> Result<Option<InterfaceAddresses>, LinkError> {
    Err(LinkError::Unsupported { action: "finding the default route (give the underlay address)".to_owned() })
}

/// What of the host can be seen: nothing but its clock.
pub fn survey(_tcp_ports: &[u16]) -> Survey {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Survey {
        net_admin: unseen(),
        tun: unseen(),
        nft: unseen(),
        ruleset: unseen(),
        iptables_rules: unseen(),
        ipvs: unseen(),
        links: unseen(),
        addresses: unseen(),
        default_routes: unseen(),
        routes: unseen(),
        processes: unseen(),
        tcp_holders: unseen(),
        sysctls: Default::default(),
        subnet_env: unseen(),
        clock: i64::try_from(clock.as_secs()).unwrap_or(i64::MAX),
    }
}

fn unseen<T>() -> Result<T, String> {
    Err("not looked at on Windows".to_owned())
}

/// Whether VXLAN's port can be had on these addresses; it is given back at once.
///
/// # Errors
/// When it cannot.
pub fn probe_vxlan_port(addresses: &[IpAddr], port: u16) -> Result<(), DeviceError> {
    for address in addresses {
        let address = SocketAddr::new(*address, port);
        UdpSocket::bind(address)
            .map_err(|error| DeviceError::system(format!("binding UDP {address}"), error))?;
    }
    Ok(())
}

/// Whether another run of this program manages the host: none does on Windows.
pub fn is_managed() -> bool {
    false
}
