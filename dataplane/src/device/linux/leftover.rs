//! What a run that persists leaves on the host: the next run goes on with it, [`cleanup`] removes it.
//!
//! A TUN device outlives its queues once TUNSETPERSIST is set (Documentation/networking/tuntap.rst). Ours carries
//! an alias, which `ip link` shows, so that nobody else's persistent device is taken for it.

use std::fs::File;
use std::io;
use std::path::Path;

use libc::{NLM_F_ACK, c_ulong};

use super::netlink::{Netlink, Request};
use super::tun::Tun;
use super::{host, links, survey, sys};
use crate::device::host::LinkError;

/// The alias of a device that a run has left standing.
const ALIAS: &str = "kept by windlass";

/// Lets the overlay device outlive this process.
#[derive(Debug)]
pub struct DeviceKeeper {
    /// One of the device's queues, once more.
    queue: File,
    name: String,
}

impl DeviceKeeper {
    /// Of the device with this queue.
    pub(super) fn new(name: &str, tun: &Tun) -> io::Result<Self> {
        Ok(Self { queue: tun.queue()?, name: name.to_owned() })
    }

    /// The device stays from here on, however this process ends.
    ///
    /// # Errors
    /// When the system refuses; the device then goes with the process.
    pub fn keep(self) -> Result<(), LinkError> {
        let failed = |error| LinkError::system(format!("keeping the device {}", self.name), error);
        let netlink = Netlink::open().map_err(failed)?;
        let index = host::find_device(&netlink, &self.name)?;
        set_alias(&netlink, index, ALIAS).map_err(failed)?;
        sys::ioctl(&self.queue, libc::TUNSETPERSIST, 1).map_err(failed)
    }
}

/// Whether a device of that name stands there that a run has left, and no run has it.
pub(super) fn is_left(name: &str) -> bool {
    let links = Netlink::open().and_then(|netlink| links::links(&netlink)).unwrap_or_default();
    links.iter().any(|link| link.name == name && link.is_kept()) && survey::managed_by().is_none()
}

/// Makes a device that was left go with its last queue, as any other.
pub(super) fn release(name: &str, queue: &File) -> io::Result<()> {
    sys::ioctl(queue, libc::TUNSETPERSIST, 0 as c_ulong)?;
    let netlink = Netlink::open()?;
    let links = links::links(&netlink)?;
    let device = links.iter().find(|link| link.name == name);
    device.map_or(Ok(()), |device| set_alias(&netlink, device.index, ""))
}

impl links::Link {
    /// Whether a run has left it standing.
    pub(super) fn is_kept(&self) -> bool {
        self.is("tun") && self.alias.as_deref() == Some(ALIAS)
    }
}

/// Removes all that runs have left on this host, `state_file` telling what settings were, and says what it was.
///
/// # Errors
/// [`LinkError::Busy`] while a run has it, and everything that could not be removed; the rest is.
pub fn cleanup(state_file: &Path) -> Result<Vec<String>, LinkError> {
    let _lock = host::lock()?;
    let netlink = host::open_netlink()?;
    let (mut removed, mut errors) = host::remove_left(&netlink, state_file);
    match links::links(&netlink) {
        Err(error) => errors.push(LinkError::system("listing interfaces", error)),
        Ok(links) => {
            for link in links.iter().filter(|link| link.is_kept()) {
                match delete(&netlink, link.index) {
                    Ok(()) => removed.push(format!("device {}", link.name)),
                    Err(error) => {
                        errors.push(LinkError::system(format!("removing the device {}", link.name), error));
                    }
                }
            }
        }
    }
    LinkError::collect(errors).map(|()| removed)
}

fn set_alias(netlink: &Netlink, index: u32, alias: &str) -> io::Result<()> {
    netlink.execute(link_request(libc::RTM_NEWLINK, index).attribute(libc::IFLA_IFALIAS, alias.as_bytes()))
}

fn delete(netlink: &Netlink, index: u32) -> io::Result<()> {
    netlink.execute(link_request(libc::RTM_DELLINK, index))
}

fn link_request(kind: u16, index: u32) -> Request {
    let mut header = [0; links::LINK_HEADER_LEN];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    Request::new(kind, NLM_F_ACK, &header)
}
