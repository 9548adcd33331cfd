//! A TUN device with one queue per worker, and superpackets in both directions.
//!
//! The queues are opened here and not by the crate `tun`: it has no multi-queue mode, its I/O allocates per
//! packet, and it cannot set IPv6 addresses, so nothing of it would be left.
//! Sources: Documentation/networking/tuntap.rst, drivers/net/tun.c.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use libc::{c_int, c_short, c_ulong};

use super::patience::{Patience, says_full};
use super::{BATCH_LEN, joined, leftover, sys, virtio};
use crate::device::config::DeviceError;
use crate::device::segments::{Superpacket, segment_count};
use crate::device::{OverlayDevice, SendReport};
use crate::offload::coalesce::{Coalescer, Group};
use crate::packet::{MAX_PACKET_LEN, PacketBatch, PacketBuf, PacketPool};

/// Longest interface name, in bytes (IFNAMSIZ less its final zero).
pub(super) const MAX_NAME_LEN: usize = libc::IFNAMSIZ - 1;

pub(super) const TUN_F_CSUM: u32 = 0x01;
pub(super) const TUN_F_TSO4: u32 = 0x02;
pub(super) const TUN_F_TSO6: u32 = 0x04;
pub(super) const TUN_F_USO4: u32 = 0x20;
pub(super) const TUN_F_USO6: u32 = 0x40;

/// What a TUN device is created with.
#[derive(Clone, Debug)]
pub struct TunConfig {
    /// Interface name, 1 to 15 bytes.
    pub name: String,
    /// How many queues, at least 1.
    pub queues: usize,
    /// MTU, in bytes.
    pub mtu: u16,
    /// Whether superpackets are asked for and written; without it every packet is of wire size.
    pub superpackets: bool,
    /// Whether the device may come to outlive its queues.
    pub persist: bool,
}

/// Which superpackets the kernel takes and gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunOffload {
    /// TCP and UDP superpackets (Linux 6.2 and later).
    TcpAndUdp,
    /// TCP superpackets.
    Tcp,
    /// None.
    Off,
}

impl fmt::Display for TunOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TcpAndUdp => "TSO4, TSO6, USO4 and USO6 on",
            Self::Tcp => "TSO4 and TSO6 on; USO4 and USO6 off: the kernel is older than Linux 6.2",
            Self::Off => "none",
        })
    }
}

/// One queue of a TUN device. The device vanishes with its last queue, unless it is kept.
#[derive(Debug)]
pub struct Tun {
    file: File,
    offload: TunOffload,
    /// Finds what can be written as one superpacket.
    coalescer: Option<Coalescer>,
    /// Where a refused superpacket is split.
    segment: Box<[u8]>,
    /// How many packets the next batch asks for.
    wanted: usize,
    /// Of the batch being sent.
    patience: Patience,
}

impl Tun {
    /// Creates the device, down and without addresses, and opens its queues. One that a run has left standing is
    /// gone on with, as it is.
    ///
    /// # Errors
    /// Without the driver or the privilege, or when the name is bad or taken.
    pub fn create(config: &TunConfig) -> Result<Vec<Tun>, DeviceError> {
        let count = config.queues.max(1);
        let left = leftover::is_left(&config.name);
        // A device is of one queue or of several for ever: the next run may want another number.
        let several = if count > 1 || config.persist || left { libc::IFF_MULTI_QUEUE } else { 0 };
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several;
        let mut queues = Vec::with_capacity(count);
        // The first queue must make the device: without TUN_EXCL it would attach to someone's persistent one.
        let exclusive = if left { 0 } else { libc::IFF_TUN_EXCL };
        let first = open_queue(config, flags | exclusive)?;
        if left && !config.persist {
            leftover::release(&config.name, &first.file)
                .map_err(|error| DeviceError::system(format!("taking {} over", config.name), error))?;
        }
        queues.push(first);
        for _ in 1..count {
            queues.push(open_queue(config, flags)?);
        }
        set_mtu(config)?;
        Ok(queues)
    }

    /// Which superpackets the kernel agreed to.
    pub fn offload(&self) -> TunOffload {
        self.offload
    }

    /// The queue once more: the device stays for as long as that lives.
    pub(super) fn queue(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Writes one packet, as it is or, where the kernel refuses a superpacket (G11), as its segments.
    fn send(&mut self, bytes: &[u8], packet: &PacketBuf, report: &mut SendReport) {
        let segments = segment_count(bytes, packet);
        let written = match virtio::encode(bytes, packet.segment_len, packet.checksum) {
            Some(header) => write(&self.file, &mut self.patience, &header, bytes),
            None => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        match written {
            Ok(()) => {
                report.sent += segments;
                report.sent_bytes += bytes.len() as u64;
            }
            Err(error) if packet.segment_len != 0 && superpacket_refused(&error) => {
                self.send_segments(bytes, packet.segment_len, segments, report);
            }
            Err(error) => count_failure(&error, segments, report),
        }
    }

    /// Writes packets that belong together as one, or, where the kernel refuses that, one by one.
    fn send_group(
        &mut self,
        pool: &PacketPool,
        packets: &[PacketBuf],
        coalescer: &Coalescer,
        group: &Group,
        report: &mut SendReport,
    ) {
        if group.len() > 1 {
            match joined::write(&self.file, &mut self.patience, pool, packets, coalescer, group) {
                Some(Ok(len)) => {
                    report.sent += group.len() as u64;
                    report.sent_bytes += len as u64;
                    return;
                }
                Some(Err(error)) if !superpacket_refused(&error) => {
                    return count_failure(&error, group.len() as u64, report);
                }
                Some(Err(_)) | None => {}
            }
        }
        for member in coalescer.members(group) {
            self.send(pool.bytes(&packets[member]), &packets[member], report);
        }
    }

    fn send_segments(&mut self, bytes: &[u8], segment_len: u16, segments: u64, report: &mut SendReport) {
        let Some(superpacket) = Superpacket::parse(bytes, 0, segment_len) else {
            report.refused += segments;
            return;
        };
        for index in 0..superpacket.count() {
            let Some(len) = superpacket.write(index, &mut self.segment) else {
                report.refused += 1;
                continue;
            };
            let segment = &self.segment[..len];
            match write(&self.file, &mut self.patience, &[0; virtio::HEADER_LEN], segment) {
                Ok(()) => {
                    report.sent += 1;
                    report.sent_bytes += len as u64;
                }
                Err(error) => count_failure(&error, 1, report),
            }
        }
    }
}

impl AsRawFd for Tun {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl OverlayDevice for Tun {
    fn recv_batch(&mut self, batch: &mut PacketBatch) -> io::Result<usize> {
        batch.clear();
        let wanted = self.wanted.min(batch.pool.receive_slabs());
        let mut received_len = 0;
        while batch.packets.len() < wanted && received_len < BATCH_LEN {
            let index = batch.packets.len();
            let area = batch.pool.receive_area(index);
            let len = match sys::read(self.file.as_raw_fd(), area) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // What was read before the device broke is still good; the next call reports it.
                Err(_) if index > 0 => break,
                Err(error) => return Err(error),
            };
            received_len += len;
            let decoded = area.first_chunk::<{ virtio::HEADER_LEN }>().and_then(virtio::decode);
            let (Some((segment_len, checksum)), true) = (decoded, len > virtio::HEADER_LEN) else {
                // An empty packet, for the engine to count as malformed.
                batch.packets.push(batch.pool.received(index, virtio::HEADER_LEN, 0));
                continue;
            };
            let mut packet = batch.pool.received(index, virtio::HEADER_LEN, len - virtio::HEADER_LEN);
            packet.segment_len = segment_len;
            packet.checksum = checksum;
            batch.packets.push(packet);
        }
        let count = batch.packets.len();
        // A batch that was cut short costs a read in vain, a full one may have left something.
        self.wanted = if count == wanted { 2 * wanted } else { count.max(1) };
        Ok(count)
    }

    fn send_batch(&mut self, pool: &PacketPool, packets: &[PacketBuf]) -> SendReport {
        let mut report = SendReport::default();
        self.patience = Patience::default();
        let coalescer = if packets.len() > 1 { self.coalescer.take() } else { None };
        match coalescer {
            Some(mut coalescer) => {
                coalescer.join(pool, packets);
                for group in coalescer.groups() {
                    self.send_group(pool, packets, &coalescer, group, &mut report);
                }
                self.coalescer = Some(coalescer);
            }
            None => {
                for packet in packets {
                    self.send(pool.bytes(packet), packet, &mut report);
                }
            }
        }
        report
    }
}

/// Writes a packet or frame behind its virtio header.
pub(super) fn write(
    file: &File,
    patience: &mut Patience,
    header: &[u8; virtio::HEADER_LEN],
    bytes: &[u8],
) -> io::Result<()> {
    patience.retry(file, || sys::write_two(file.as_raw_fd(), header, bytes)).map(drop)
}

pub(super) fn superpacket_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
}

pub(super) fn count_failure(error: &io::Error, segments: u64, report: &mut SendReport) {
    match error.raw_os_error() {
        Some(error) if says_full(error) => report.queue_full += segments,
        Some(libc::EMSGSIZE) => report.too_long += segments,
        _ => report.refused += segments,
    }
}

fn open_queue(config: &TunConfig, flags: c_int) -> Result<Tun, DeviceError> {
    let (file, offload) = attach(&config.name, flags, config.superpackets)?;
    let coalescer = match offload {
        TunOffload::TcpAndUdp => Some(Coalescer::new(true)),
        TunOffload::Tcp => Some(Coalescer::new(false)),
        TunOffload::Off => None,
    };
    Ok(Tun {
        file,
        offload,
        coalescer,
        segment: vec![0; MAX_PACKET_LEN].into_boxed_slice(),
        wanted: usize::MAX,
        patience: Patience::default(),
    })
}

/// A queue of a device that is made with `flags`, or has been, and the superpackets that the kernel agrees to.
pub(super) fn attach(
    name: &str,
    flags: c_int,
    superpackets: bool,
) -> Result<(File, TunOffload), DeviceError> {
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_flags = flags as c_short;
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
    let file = opened.map_err(open_error)?;
    let argument = (&raw mut request) as c_ulong;
    sys::ioctl(&file, libc::TUNSETIFF, argument).map_err(|error| create_error(name, error))?;
    let offload = if superpackets { enable_offload(&file) } else { TunOffload::Off };
    Ok((file, offload))
}

fn set_mtu(config: &TunConfig) -> Result<(), DeviceError> {
    let failed =
        |error| DeviceError::system(format!("setting the MTU of {} to {}", config.name, config.mtu), error);
    let mut request = interface_request(&config.name)?;
    request.ifr_ifru.ifru_mtu = c_int::from(config.mtu);
    let socket =
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let argument = (&raw mut request) as c_ulong;
    sys::ioctl(&socket.map_err(failed)?, libc::SIOCSIFMTU as c_ulong, argument).map_err(failed)
}

/// An interface request that names an interface.
pub(super) fn interface_request(name: &str) -> Result<libc::ifreq, DeviceError> {
    if !is_interface_name(name) {
        return Err(DeviceError::BadName { name: name.to_owned(), max: MAX_NAME_LEN });
    }
    let mut request = sys::empty_ifreq();
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Whether the kernel takes the name and the programs it is passed to cannot misread it.
pub(super) fn is_interface_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(good) && name != "." && name != ".."
}

/// The mask is one for all queues: setting it on each agrees.
fn enable_offload(file: &File) -> TunOffload {
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    let tries = [(tcp | TUN_F_USO4 | TUN_F_USO6, TunOffload::TcpAndUdp), (tcp, TunOffload::Tcp)];
    let accepted = |mask: u32| sys::ioctl(file, libc::TUNSETOFFLOAD, c_ulong::from(mask)).is_ok();
    tries.into_iter().find(|(mask, _)| accepted(*mask)).map_or(TunOffload::Off, |(_, offload)| offload)
}

fn open_error(error: io::Error) -> DeviceError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => DeviceError::NoTunDriver,
        _ => DeviceError::system("opening /dev/net/tun", error),
    }
}

/// Why TUNSETIFF has failed.
pub(super) fn create_error(name: &str, error: io::Error) -> DeviceError {
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => DeviceError::NameTaken { name: name.to_owned() },
        // The kernel says EINVAL for an interface of another kind, or a TUN of other flags.
        Some(libc::EINVAL) => DeviceError::NameTaken { name: name.to_owned() },
        _ => DeviceError::system(format!("creating the device {name}"), error),
    }
}
