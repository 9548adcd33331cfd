//! One VXLAN port, one holder per network namespace, and the name of whoever holds it.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::path::Path;

use super::links;
use super::netlink::Netlink;
use crate::device::config::DeviceError;

/// Holds a name in the network namespace while it lives: abstract sockets belong to the namespace and vanish with
/// their process, however it ends.
#[derive(Debug)]
pub(super) struct NamespaceLock(#[allow(dead_code)] UnixDatagram);

impl NamespaceLock {
    /// Takes the name; AddrInUse when another process has it.
    pub(super) fn take(name: &str) -> io::Result<Self> {
        UnixDatagram::bind_addr(&UnixAddr::from_abstract_name(name)?).map(Self)
    }

    /// The process that has the name. In the table of sockets the inode is column 6, and column 7 the name, after
    /// an @ where it is no file's.
    pub(super) fn holder(name: &str) -> Option<String> {
        let table = fs::read_to_string("/proc/thread-self/net/unix").ok()?;
        let columns = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let named = columns.filter(|columns| columns.get(7) == Some(&format!("@{name}").as_str()));
        let inodes: Vec<_> = named.map(|columns| columns[6].to_owned()).collect();
        process_with_socket(&inodes)
    }
}

/// Takes the VXLAN port of this network namespace, or says who has it.
///
/// The lock is needed beside the trial bind because SO_REUSEPORT, which several workers need, lets a second
/// program of the same user bind silently.
pub(super) fn lock(addresses: &[IpAddr], port: u16) -> Result<NamespaceLock, DeviceError> {
    let name = format!("windlass-vxlan-{port}");
    let lock = NamespaceLock::take(&name).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            let holder = addresses.iter().find_map(|address| holder(*address, port));
            let holder = holder.or_else(|| NamespaceLock::holder(&name));
            let holder = holder.unwrap_or_else(|| "another windlass".to_owned());
            DeviceError::PortTaken { port, holder }
        }
        _ => DeviceError::system(format!("locking UDP port {port}"), error),
    })?;
    for address in addresses {
        UdpSocket::bind(SocketAddr::new(*address, port))
            .map_err(|error| bind_error(*address, port, error))?;
    }
    Ok(lock)
}

fn bind_error(address: IpAddr, port: u16, error: io::Error) -> DeviceError {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let holder =
                holder(address, port).unwrap_or_else(|| "a program that could not be found".to_owned());
            DeviceError::PortTaken { port, holder }
        }
        io::ErrorKind::AddrNotAvailable => DeviceError::NoSuchAddress { address },
        _ => DeviceError::system(format!("binding UDP {}", SocketAddr::new(address, port)), error),
    }
}

/// Who has a UDP port: a process by its number and name, else a kernel device.
fn holder(address: IpAddr, port: u16) -> Option<String> {
    let inodes = socket_inodes(address, port);
    if let Some(process) = process_with_socket(&inodes) {
        return Some(process);
    }
    let links = Netlink::open().and_then(|netlink| links::links(&netlink)).unwrap_or_default();
    if let Some(link) = links.iter().find(|link| link.vxlan_port == Some(port)) {
        return Some(format!("the kernel vxlan device {0} (`ip link delete {0}` removes it)", link.name));
    }
    // A socket without a process: the kernel's own, or one of a process this one may not look into.
    (!inodes.is_empty()).then(|| "a device of the kernel, or a process this one may not see".to_owned())
}

/// Inodes of the sockets bound to a port. Of `thread-self`, because a thread may have a namespace of its own.
fn socket_inodes(address: IpAddr, port: u16) -> Vec<String> {
    let tables = if address.is_ipv4() { &["udp", "udp6"][..] } else { &["udp6", "udp"][..] };
    let read =
        |table: &&str| fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
    tables.iter().map(read).flat_map(|table| inodes_of(&table, port, None)).collect()
}

/// Inodes of a socket table's entries with that local port, in that state if one is given. The local address is
/// column 1 as ADDRESS:PORT in hexadecimal, the state column 3, the inode column 9.
pub(super) fn inodes_of(table: &str, port: u16, state: Option<&str>) -> Vec<String> {
    let suffix = format!(":{port:04X}");
    let columns = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let bound = columns.filter(|columns| columns.get(1).is_some_and(|local| local.ends_with(&suffix)));
    let bound = bound.filter(|columns| state.is_none_or(|state| columns.get(3) == Some(&state)));
    bound.filter_map(|columns| columns.get(9).map(|inode| (*inode).to_owned())).collect()
}

/// The process that has one of these sockets.
pub(super) fn process_with_socket(inodes: &[String]) -> Option<String> {
    if inodes.is_empty() {
        return None;
    }
    let sockets: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| has_socket(*id, &sockets)).map(describe).next()
}

fn has_socket(process: u32, sockets: &[String]) -> bool {
    let Ok(descriptors) = fs::read_dir(Path::new("/proc").join(process.to_string()).join("fd")) else {
        return false;
    };
    let mut targets = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.any(|target| target.to_str().is_some_and(|target| sockets.iter().any(|socket| socket == target)))
}

fn describe(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    format!("process {process} ({})", name.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_table_is_read_by_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                      71: 0100007F:12B5 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4242 2 0 0\n\
                      72: 0100007F:12B6 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4343 2 0 0\n";
        assert_eq!(inodes_of(table, 4789, None), ["4242"]);
        assert!(inodes_of(table, 1, None).is_empty());
    }
}
