//! UDP sockets as VXLAN wants them, bound.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use super::sys;
use crate::device::config::{DeviceError, UdpConfig};

/// Binds the socket datagrams are received on.
///
/// It is never connected, because kernel peers hash their source ports, and never has SO_REUSEADDR, which would
/// let a second program bind silently.
pub(super) fn receiving(config: &UdpConfig, shared: bool) -> Result<Socket, DeviceError> {
    let address = SocketAddr::new(config.underlay, config.port);
    let failed = |error| DeviceError::system(format!("opening a UDP socket on {address}"), error);
    let socket = unbound(config.underlay).map_err(failed)?;
    if shared {
        socket.set_reuse_port(true).map_err(failed)?;
    }
    // A smaller buffer than asked for only loses bursts.
    let (forced, len) = (libc::SO_RCVBUFFORCE, config.socket_buffer_len);
    let _ = force_buffer(&socket, forced, len).or_else(|_| socket.set_recv_buffer_size(len));
    if config.underlay.is_ipv4() {
        sys::set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1).map_err(failed)?;
    } else {
        sys::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1).map_err(failed)?;
    }
    socket.bind(&address.into()).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => DeviceError::NoSuchAddress { address: config.underlay },
        _ => failed(error),
    })?;
    Ok(socket)
}

/// Opens a socket datagrams are sent from, without binding it.
///
/// IP_PMTUDISC_PROBE sets DF, never fragments (RFC 7348 section 4.3) and leaves the path MTU to the engine. The
/// outer checksum is on because nothing turns it off.
pub(super) fn sending(underlay: IpAddr, buffer_len: usize) -> io::Result<Socket> {
    let socket = unbound(underlay)?;
    let _ = force_buffer(&socket, libc::SO_SNDBUFFORCE, buffer_len)
        .or_else(|_| socket.set_send_buffer_size(buffer_len));
    sys::refuse_input(&socket)?;
    let (level, discover, errors) = if underlay.is_ipv4() {
        (libc::IPPROTO_IP, (libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE), libc::IP_RECVERR)
    } else {
        (libc::IPPROTO_IPV6, (libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE), libc::IPV6_RECVERR)
    };
    sys::set_option(&socket, level, discover.0, discover.1)?;
    sys::set_option(&socket, level, errors, 1)?;
    Ok(socket)
}

/// Asks for datagrams of one sender joined to one message, with their size beside it (udp(7), UDP_GRO).
pub(super) fn join_received(socket: &Socket) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Whether the kernel knows [`join_received`], asked of a socket that receives nothing.
pub(super) fn can_join_received(socket: &Socket) -> bool {
    sys::set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 0).is_ok()
}

/// Whether the kernel cuts messages into datagrams (udp(7), UDP_SEGMENT). Whether the device on the way can take them
/// shows with the first one.
pub(super) fn joins_sent(socket: &Socket) -> bool {
    sys::set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// A socket that has no address as yet.
pub(super) fn unbound(underlay: IpAddr) -> io::Result<Socket> {
    let domain = if underlay.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if underlay.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Past the limits of net.core.{r,w}mem_max, which needs privilege.
fn force_buffer(socket: &Socket, option: libc::c_int, len: usize) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_SOCKET, option, libc::c_int::try_from(len).unwrap_or(libc::c_int::MAX))
}
