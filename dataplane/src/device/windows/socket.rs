//! UDP sockets as this program wants them, and what the system can do with them.
#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::windows::io::AsRawSocket;

use socket2::{Domain, Protocol, Socket, Type};
use windows_sys::Win32::Networking::WinSock::{
    IP_DONTFRAGMENT, IP_RECVECN, IP_RECVTOS, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, IPV6_DONTFRAG,
    IPV6_RECVECN, IPV6_RECVTCLASS, IPV6_TCLASS, SO_EXCLUSIVEADDRUSE, SOL_SOCKET, UDP_RECV_MAX_COALESCED_SIZE,
    UDP_SEND_MSG_SIZE, setsockopt,
};

use super::control::TosLane;
use crate::device::config::UdpConfig;
use crate::packet::MAX_PACKET_LEN;

/// A non-blocking socket bound to that port, which never fragments.
pub(super) fn bind(config: &UdpConfig, port: u16) -> io::Result<Socket> {
    let ipv4 = config.underlay.is_ipv4();
    let domain = if ipv4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    set_option(&socket, SOL_SOCKET, SO_EXCLUSIVEADDRUSE, 1)?;
    if ipv4 {
        set_option(&socket, IPPROTO_IP, IP_DONTFRAGMENT, 1)?;
    } else {
        socket.set_only_v6(true)?;
        set_option(&socket, IPPROTO_IPV6, IPV6_DONTFRAG, 1)?;
    }
    let _ = socket.set_recv_buffer_size(config.socket_buffer_len);
    let _ = socket.set_send_buffer_size(config.socket_buffer_len);
    socket.bind(&SocketAddr::new(config.underlay, port).into())?;
    Ok(socket)
}

/// Asks for the outer TOS of received datagrams; says how much of it will be told.
pub(super) fn receive_tos(socket: &Socket, ipv4: bool) -> TosLane {
    let (level, whole, ecn) = if ipv4 {
        (IPPROTO_IP, IP_RECVTOS, IP_RECVECN)
    } else {
        (IPPROTO_IPV6, IPV6_RECVTCLASS, IPV6_RECVECN)
    };
    if set_option(socket, level, whole, 1).is_ok() {
        TosLane::Whole
    } else if set_option(socket, level, ecn, 1).is_ok() {
        TosLane::Ecn
    } else {
        TosLane::Off
    }
}

/// How much of the TOS byte sent datagrams can be given one by one: asked of IPv6, as IPv4 fails silently.
pub(super) fn sent_tos() -> TosLane {
    let takes_class = || {
        let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind(&SocketAddr::from((Ipv6Addr::LOCALHOST, 0)).into())?;
        // 4: ECN is not for programs to set on a whole socket.
        set_option(&socket, IPPROTO_IPV6, IPV6_TCLASS, 4)
    };
    if takes_class().is_ok() { TosLane::Whole } else { TosLane::Ecn }
}

/// Whether Windows cuts one message into many datagrams (USO, since Windows 10 2004).
pub(super) fn cuts_sent(socket: &Socket) -> bool {
    set_option(socket, IPPROTO_UDP, UDP_SEND_MSG_SIZE, 0).is_ok()
}

/// Makes Windows join datagrams of one sender to one message (URO, since Windows 11 24H2); whether it will.
pub(super) fn join_received(socket: &Socket) -> bool {
    let longest = u32::from(u16::MAX).min(MAX_PACKET_LEN as u32);
    set_option(socket, IPPROTO_UDP, UDP_RECV_MAX_COALESCED_SIZE, longest).is_ok()
}

fn set_option(socket: &Socket, level: i32, name: i32, value: u32) -> io::Result<()> {
    let bytes = value.to_ne_bytes();
    // SAFETY: an open socket, and four bytes that live during the call.
    match unsafe {
        setsockopt(socket.as_raw_socket() as usize, level, name, bytes.as_ptr(), bytes.len() as i32)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
