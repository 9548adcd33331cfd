//! A stand-in for IP Helper that changes nothing and records what it was asked: for wine, which has no such calls,
//! and for tests.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;

use super::ip_helper::{InterfaceSettings, IpHelper};
use crate::device::host::Family;

/// The calls so far, one line each.
pub(super) type Calls = Arc<Mutex<Vec<String>>>;

/// Records calls, says each in the log, and remembers addresses and routes as the adapter would.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    calls: Calls,
    addresses: Vec<IpNet>,
    routes: Vec<IpNet>,
    /// The call that fails, for tests.
    refused: Option<&'static str>,
}

impl Recorder {
    /// A recorder for an adapter that already has these addresses and routes.
    #[cfg(test)]
    pub(super) fn with(addresses: Vec<IpNet>, routes: Vec<IpNet>, refused: Option<&'static str>) -> Self {
        Self { calls: Calls::default(), addresses, routes, refused }
    }

    /// What it records, as it goes on.
    #[cfg(test)]
    pub(super) fn calls(&self) -> Calls {
        Arc::clone(&self.calls)
    }

    fn record(&self, call: &str, of: &str) -> io::Result<()> {
        let line = format!("{call} {of}");
        if self.refused == Some(line.as_str()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        tracing::info!("stand-in for IP Helper: {line}");
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        Ok(())
    }
}

impl IpHelper for Recorder {
    fn addresses(&self) -> io::Result<Vec<IpNet>> {
        Ok(self.addresses.clone())
    }

    fn routes(&self) -> io::Result<Vec<IpNet>> {
        Ok(self.routes.clone())
    }

    fn set_interface(&mut self, settings: InterfaceSettings) -> io::Result<()> {
        let InterfaceSettings { family, mtu, metric } = settings;
        let family = match family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        self.record("SetIpInterfaceEntry", &format!("{family} mtu {mtu} metric {metric} forwarding"))
    }

    fn create_address(&mut self, address: IpNet) -> io::Result<()> {
        self.record("CreateUnicastIpAddressEntry", &address.to_string())?;
        self.addresses.push(address);
        Ok(())
    }

    fn delete_address(&mut self, address: IpNet) -> io::Result<()> {
        self.record("DeleteUnicastIpAddressEntry", &address.to_string())?;
        self.addresses.retain(|known| *known != address);
        Ok(())
    }

    fn create_route(&mut self, destination: IpNet) -> io::Result<()> {
        self.record("CreateIpForwardEntry2", &destination.to_string())?;
        self.routes.push(destination);
        Ok(())
    }

    fn delete_route(&mut self, destination: IpNet) -> io::Result<()> {
        self.record("DeleteIpForwardEntry2", &destination.to_string())?;
        self.routes.retain(|known| *known != destination);
        Ok(())
    }
}
