//! The TAP device of the lane: written to, never read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use libc::{c_int, c_short, c_ulong};

use super::Unavailable;
use crate::device::linux::netlink::Netlink;
use crate::device::linux::tun::{self, TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6, TUN_F_USO4, TUN_F_USO6};
use crate::device::linux::virtio::TUNNEL_HEADER_LEN;
use crate::device::linux::{links, routes, sys, sysctl};
use crate::wire::ethernet::Mac;

/// linux/if_tun.h.
const TUNSETVNETHDRSZ: c_ulong = 0x4004_54d8;
const TUNSETSNDBUF: c_ulong = 0x4004_54d4;
const TUN_F_UDP_TUNNEL_GSO: u32 = 0x80;
const TUN_F_UDP_TUNNEL_GSO_CSUM: u32 = 0x100;

/// What may wait behind it for the uplink, in bytes, as with a socket's send buffer.
const BUFFER_LEN: c_int = 4 << 20;

/// Of what the kernel would send to it, which is nothing: written frames are as long as they like.
const MTU: u32 = 1500;
const QUEUE_LEN: u32 = 1;

/// Added to the overlay device's name.
const SUFFIX: &str = "-gso";

/// The device; it vanishes when this is dropped.
#[derive(Debug)]
pub(super) struct Tap {
    file: File,
    name: String,
    index: u32,
    mac: Mac,
}

impl Tap {
    /// Creates it beside the overlay device of that name, and brings it up.
    pub(super) fn create(overlay: &str) -> Result<Self, Unavailable> {
        let kept = overlay.len().min(tun::MAX_NAME_LEN - SUFFIX.len());
        let name = format!("{}{SUFFIX}", &overlay[..kept]);
        let file = open(&name)?;
        let failed = |action: &str| {
            let action = format!("{action} {name}");
            move |error: io::Error| Unavailable::system(&action, error)
        };
        let netlink = Netlink::open().map_err(failed("opening a netlink socket for"))?;
        let all = links::links(&netlink).map_err(failed("looking up"))?;
        let link = all.into_iter().find(|link| link.name == name);
        let index = link.ok_or_else(|| Unavailable(format!("{name} has gone")))?.index;
        // Nobody reads what the kernel would send to it; the setting goes with the device.
        let _ = sysctl::set(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1");
        routes::bring_up(&netlink, index, MTU, QUEUE_LEN).map_err(failed("bringing up"))?;
        let mac = mac(&name).map_err(failed("the MAC address of"))?.unwrap_or(Mac([0; 6]));
        Ok(Self { file, name, index, mac })
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its interface index.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Its MAC address.
    pub(super) fn mac(&self) -> Mac {
        self.mac
    }

    /// Writes one frame, whose first part begins with the virtio header.
    pub(super) fn write(&self, first: &[u8], second: &[u8]) -> io::Result<()> {
        loop {
            match sys::write_two(self.file.as_raw_fd(), first, second) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => return written.map(drop),
            }
        }
    }
}

/// The device by itself, down.
pub(super) fn open(name: &str) -> Result<File, Unavailable> {
    let failed = |action: String| move |error: io::Error| Unavailable::system(&action, error);
    let mut request = tun::interface_request(name).map_err(|error| Unavailable(error.to_string()))?;
    request.ifr_ifru.ifru_flags =
        (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL) as c_short;
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
    let file = opened.map_err(failed("opening /dev/net/tun".to_owned()))?;
    sys::ioctl(&file, libc::TUNSETIFF, (&raw mut request) as c_ulong)
        .map_err(|error| Unavailable(tun::create_error(name, error).to_string()))?;
    let header_len = TUNNEL_HEADER_LEN as c_int;
    sys::ioctl(&file, TUNSETVNETHDRSZ, (&raw const header_len) as c_ulong)
        .map_err(failed(format!("a virtio header of {header_len} bytes on {name}")))?;
    let plain = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_USO4 | TUN_F_USO6;
    let mask = plain | TUN_F_UDP_TUNNEL_GSO | TUN_F_UDP_TUNNEL_GSO_CSUM;
    sys::ioctl(&file, libc::TUNSETOFFLOAD, c_ulong::from(mask)).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::EINVAL) => {
                Unavailable("the kernel's TAP takes no tunnelled superpackets (Linux 6.17 does)".to_owned())
            }
            _ => Unavailable::system(&format!("offloads of {name}"), error),
        }
    })?;
    let buffer_len = BUFFER_LEN;
    sys::ioctl(&file, TUNSETSNDBUF, (&raw const buffer_len) as c_ulong)
        .map_err(failed(format!("the send buffer of {name}")))?;
    Ok(file)
}

/// The MAC address of an interface; `None` when it is not Ethernet.
pub(super) fn mac(interface: &str) -> io::Result<Option<Mac>> {
    let mut request = tun::interface_request(interface).map_err(io::Error::other)?;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    sys::ioctl(&socket, libc::SIOCGIFHWADDR as c_ulong, (&raw mut request) as c_ulong)?;
    let (kind, address) = sys::hardware_address(&request);
    let bytes = address.first_chunk::<6>().filter(|_| kind == libc::ARPHRD_ETHER);
    Ok(bytes.map(|bytes| Mac(*bytes)))
}
