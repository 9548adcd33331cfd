//! VXLAN over UDP: a receiving socket and a pool of source ports, one call per datagram.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::windows::io::AsRawSocket;

use socket2::{Domain, Protocol, Socket, Type};
use windows_sys::Win32::Networking::WinSock::{
    IP_DONTFRAGMENT, IPPROTO_IP, IPPROTO_IPV6, IPV6_DONTFRAG, SO_EXCLUSIVEADDRUSE, SOL_SOCKET, WSAEADDRINUSE,
    WSAEADDRNOTAVAIL, WSAEMSGSIZE, WSAENOBUFS, setsockopt,
};

use crate::device::config::{DeviceError, UdpConfig};
use crate::device::dynamic_ports::{self, PORTS};
use crate::device::segments::{ENCAPSULATION_LEN, Superpacket, complete_checksum};
use crate::device::{SendReport, UnderlaySocket};
use crate::packet::{Checksum, Datagram, DatagramBatch, MAX_PACKET_LEN, PacketPool};

/// The sockets of the worker.
pub(super) struct UdpPool {
    receiver: Socket,
    senders: Vec<Socket>,
    ports: Vec<u16>,
    /// Where what cannot be sent as it is gets finished.
    payload: Box<[u8]>,
}

impl UdpPool {
    /// Binds the VXLAN port and as many source ports as are free, at least one.
    pub(super) fn open(config: &UdpConfig) -> Result<Self, DeviceError> {
        let receiver = bind(config, config.port).map_err(|error| receiver_error(config, error))?;
        let wanted = config.source_ports.clamp(1, PORTS);
        let (mut senders, mut ports) = (Vec::with_capacity(wanted), Vec::with_capacity(wanted));
        for port in dynamic_ports::candidates(config.seed) {
            if senders.len() == wanted {
                break;
            }
            if let Ok(socket) = bind(config, port) {
                senders.push(socket);
                ports.push(port);
            }
        }
        if senders.is_empty() {
            return Err(DeviceError::NoSourcePort { address: config.underlay });
        }
        Ok(Self { receiver, senders, ports, payload: vec![0; MAX_PACKET_LEN].into_boxed_slice() })
    }

    /// The socket to wait for.
    pub(super) fn receiver(&self) -> &Socket {
        &self.receiver
    }

    /// The source ports.
    pub(super) fn ports(&self) -> &[u16] {
        &self.ports
    }

    fn send_one(&mut self, bytes: &[u8], datagram: &Datagram, report: &mut SendReport) {
        let socket = &self.senders[usize::from(datagram.source_port) % self.senders.len()];
        let packet = &datagram.packet;
        if packet.segment_len != 0 {
            let Some(superpacket) = Superpacket::parse(bytes, ENCAPSULATION_LEN, packet.segment_len) else {
                report.refused += 1;
                return;
            };
            for index in 0..superpacket.count() {
                match superpacket.write(index, &mut self.payload) {
                    Some(len) => send(socket, &self.payload[..len], datagram.remote, report),
                    None => report.refused += 1,
                }
            }
            return;
        }
        let Checksum::Partial { start, offset } = packet.checksum else {
            send(socket, bytes, datagram.remote, report);
            return;
        };
        let payload = &mut self.payload[..bytes.len()];
        payload.copy_from_slice(bytes);
        match payload.get_mut(ENCAPSULATION_LEN..).is_some_and(|ip| complete_checksum(ip, start, offset)) {
            true => send(socket, payload, datagram.remote, report),
            false => report.refused += 1,
        }
    }
}

impl UnderlaySocket for UdpPool {
    fn recv_batch(&mut self, batch: &mut DatagramBatch) -> io::Result<usize> {
        batch.clear();
        while batch.datagrams.len() < batch.pool.receive_slabs() {
            let index = batch.datagrams.len();
            match self.receiver.recv_from(uninitialised(batch.pool.receive_area(index))) {
                Ok((len, from)) => {
                    let Some(remote) = from.as_socket() else { continue };
                    let packet = batch.pool.received(index, 0, len);
                    batch.datagrams.push(Datagram { packet, remote, tos: 0, source_port: 0 });
                }
                // An ICMP error about an earlier datagram.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || index > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(batch.datagrams.len())
    }

    fn send_batch(&mut self, pool: &PacketPool, datagrams: &[Datagram]) -> SendReport {
        let mut report = SendReport::default();
        for datagram in datagrams {
            self.send_one(pool.bytes(&datagram.packet), datagram, &mut report);
        }
        report
    }
}

fn send(socket: &Socket, payload: &[u8], remote: SocketAddr, report: &mut SendReport) {
    match socket.send_to(payload, &remote.into()) {
        Ok(_) => {
            report.sent += 1;
            report.sent_bytes += payload.len() as u64;
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => report.queue_full += 1,
        Err(error) => match error.raw_os_error() {
            Some(WSAENOBUFS) => report.queue_full += 1,
            Some(WSAEMSGSIZE) => report.too_long += 1,
            _ => report.refused += 1,
        },
    }
}

fn bind(config: &UdpConfig, port: u16) -> io::Result<Socket> {
    let ipv4 = config.underlay.is_ipv4();
    let domain = if ipv4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    set_option(&socket, SOL_SOCKET, SO_EXCLUSIVEADDRUSE)?;
    if ipv4 {
        set_option(&socket, IPPROTO_IP, IP_DONTFRAGMENT)?;
    } else {
        socket.set_only_v6(true)?;
        set_option(&socket, IPPROTO_IPV6, IPV6_DONTFRAG)?;
    }
    let _ = socket.set_recv_buffer_size(config.socket_buffer_len);
    let _ = socket.set_send_buffer_size(config.socket_buffer_len);
    socket.bind(&SocketAddr::new(config.underlay, port).into())?;
    Ok(socket)
}

/// Turns an option on.
fn set_option(socket: &Socket, level: i32, name: i32) -> io::Result<()> {
    let on = 1_u32.to_ne_bytes();
    // SAFETY: an open socket, and four bytes that live during the call.
    match unsafe { setsockopt(socket.as_raw_socket() as usize, level, name, on.as_ptr(), on.len() as i32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn receiver_error(config: &UdpConfig, error: io::Error) -> DeviceError {
    let (address, port): (IpAddr, u16) = (config.underlay, config.port);
    match error.raw_os_error() {
        Some(WSAEADDRINUSE) => DeviceError::PortTaken {
            port,
            holder: format!(
                "another program (`netstat -ano -p UDP | findstr :{port}` names it) or an overlay network of HNS"
            ),
        },
        Some(WSAEADDRNOTAVAIL) => DeviceError::NoSuchAddress { address },
        _ => DeviceError::system(format!("binding UDP {}", SocketAddr::new(address, port)), error),
    }
}

/// Initialised bytes, as `recv_from` wants them: it writes to them and reads none.
fn uninitialised(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: both have the same layout, and `recv_from` only writes initialised bytes.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}
