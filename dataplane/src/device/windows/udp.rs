//! VXLAN over UDP: a receiving socket and a pool of source ports.
//!
//! Where Windows has USO, datagrams that follow each other to one peer from one source port with one TOS leave as one
//! message; where it has URO, what one peer has sent arrives as one. Neither copies anything, nor does a packet that a
//! ring lends: its headers and its content are two pieces of the message.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::Socket;
use windows_sys::Win32::Networking::WinSock::{
    WSABUF, WSAEADDRINUSE, WSAEADDRNOTAVAIL, WSAECONNRESET, WSAEINVAL, WSAEMSGSIZE, WSAENETRESET, WSAENOBUFS,
    WSAENOPROTOOPT, WSAEOPNOTSUPP,
};

use super::control::{Control, TosLane};
use super::message::{self, Receiver};
use super::socket;
use crate::device::config::{DeviceError, Offloads, UdpConfig};
use crate::device::dynamic_ports::{self, PORTS};
use crate::device::segments::{ENCAPSULATION_LEN, Superpacket, complete_checksum};
use crate::device::{SendReport, UnderlaySocket};
use crate::packet::{Checksum, Datagram, DatagramBatch, MAX_PACKET_LEN, PacketPool};

/// Most datagrams of one message with USO.
const MAX_SEGMENTS: usize = 512;

/// Most bytes of one message: 65,535 less an IPv4 and a UDP header.
const MAX_MESSAGE_LEN: usize = 65_507;

/// The sockets of the worker.
pub(super) struct UdpPool {
    receiver: Socket,
    receive: Receiver,
    senders: Vec<Socket>,
    ports: Vec<u16>,
    lanes: Lanes,
    /// Where what cannot be sent as it is gets finished.
    payload: Box<[u8]>,
    /// Pieces of the message being sent.
    pieces: Vec<WSABUF>,
}

// SAFETY: the pointers in `pieces` are used only within `send_run`, which writes them.
unsafe impl Send for UdpPool {}

/// What the system was found to do, and by which way.
#[derive(Clone, Copy, Debug)]
struct Lanes {
    sent_tos: TosLane,
    received_tos: TosLane,
    cuts_sent: bool,
    joins_received: bool,
}

impl UdpPool {
    /// Binds the VXLAN port and as many source ports as are free, at least one.
    pub(super) fn open(config: &UdpConfig, offloads: Offloads) -> Result<Self, DeviceError> {
        let receiver = socket::bind(config, config.port).map_err(|error| receiver_error(config, error))?;
        let failed = |error| DeviceError::system("asking for WSARecvMsg", error);
        let receive = Receiver::of(&receiver).map_err(failed)?;
        let wanted = config.source_ports.clamp(1, PORTS);
        let (mut senders, mut ports) = (Vec::with_capacity(wanted), Vec::with_capacity(wanted));
        for port in dynamic_ports::candidates(config.seed) {
            if senders.len() == wanted {
                break;
            }
            if let Ok(socket) = socket::bind(config, port) {
                senders.push(socket);
                ports.push(port);
            }
        }
        let Some(sender) = senders.first() else {
            return Err(DeviceError::NoSourcePort { address: config.underlay });
        };
        let lanes = Lanes {
            sent_tos: socket::sent_tos(),
            received_tos: socket::receive_tos(&receiver, config.underlay.is_ipv4()),
            cuts_sent: offloads.udp_send && socket::cuts_sent(sender),
            joins_received: offloads.udp_receive && socket::join_received(&receiver),
        };
        let payload = vec![0; MAX_PACKET_LEN].into_boxed_slice();
        let pieces = Vec::with_capacity(2 * MAX_SEGMENTS);
        Ok(Self { receiver, receive, senders, ports, lanes, payload, pieces })
    }

    /// The socket to wait for.
    pub(super) fn receiver(&self) -> &Socket {
        &self.receiver
    }

    /// The source ports.
    pub(super) fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// What was found to work, for the log.
    pub(super) fn facts(&self) -> String {
        let on = |yes| if yes { "on" } else { "off" };
        let tos = |lane| match lane {
            TosLane::Whole => "DSCP and ECN",
            TosLane::Ecn => "ECN",
            TosLane::Off => "nothing",
        };
        let Lanes { sent_tos, received_tos, cuts_sent, joins_received } = self.lanes;
        format!(
            "{} source ports, USO {}, URO {}, outer TOS: {} sent, {} received",
            self.ports.len(),
            on(cuts_sent),
            on(joins_received),
            tos(sent_tos),
            tos(received_tos),
        )
    }

    fn send_one(&mut self, pool: &PacketPool, datagram: &Datagram, report: &mut SendReport) {
        let packet = &datagram.packet;
        if packet.segment_len == 0 && packet.checksum == Checksum::Complete {
            return self.send(pool.pieces(packet), datagram, report);
        }
        // In one piece: what a ring lends is an ordinary packet with a whole checksum.
        let bytes = pool.bytes(packet);
        // Taken out, so that it can be borrowed beside `self`.
        let mut payload = std::mem::take(&mut self.payload);
        if packet.segment_len != 0 {
            self.send_segments(bytes, datagram, &mut payload, report);
        } else if let Checksum::Partial { start, offset } = packet.checksum {
            let payload = &mut payload[..bytes.len()];
            payload.copy_from_slice(bytes);
            match payload.get_mut(ENCAPSULATION_LEN..).is_some_and(|ip| complete_checksum(ip, start, offset))
            {
                true => self.send([&[], payload], datagram, report),
                false => report.refused += 1,
            }
        }
        self.payload = payload;
    }

    fn send_segments(&mut self, bytes: &[u8], datagram: &Datagram, out: &mut [u8], report: &mut SendReport) {
        let Some(superpacket) = Superpacket::parse(bytes, ENCAPSULATION_LEN, datagram.packet.segment_len)
        else {
            report.refused += 1;
            return;
        };
        for index in 0..superpacket.count() {
            match superpacket.write(index, out) {
                Some(len) => self.send([&[], &out[..len]], datagram, report),
                None => report.refused += 1,
            }
        }
    }

    fn send(&mut self, pieces: [&[u8]; 2], datagram: &Datagram, report: &mut SendReport) {
        self.pieces.clear();
        self.pieces.extend(message::pieces(pieces));
        // SAFETY: the pieces live during the call.
        match unsafe { self.send_pieces(datagram, None) } {
            Ok(()) => {
                report.sent += 1;
                report.sent_bytes += pieces.map(<[u8]>::len).iter().sum::<usize>() as u64;
            }
            Err(error) => count_refusal(&error, 1, report),
        }
    }

    /// Sends datagrams that belong together as one message.
    fn send_run(&mut self, pool: &PacketPool, run: &[Datagram], report: &mut SendReport) {
        let [first, _, ..] = run else {
            return run.iter().for_each(|datagram| self.send_one(pool, datagram, report));
        };
        self.pieces.clear();
        self.pieces.extend(run.iter().flat_map(|datagram| message::pieces(pool.pieces(&datagram.packet))));
        let segment_len = first.packet.len() as u16;
        // SAFETY: the pieces are packets of `pool`, which nobody changes during the call.
        match unsafe { self.send_pieces(first, Some(segment_len)) } {
            Ok(()) => {
                report.sent += run.len() as u64;
                report.sent_bytes += run.iter().map(|datagram| datagram.packet.len() as u64).sum::<u64>();
            }
            Err(error) if is_queue_full(&error) => report.queue_full += run.len() as u64,
            Err(error) => {
                // G11: one of them may be too long for the path, or the network card refuses: singly each finds out.
                if is_refused_option(&error) {
                    tracing::warn!(%error, "USO is refused; datagrams are sent singly from here on");
                    self.lanes.cuts_sent = false;
                }
                run.iter().for_each(|datagram| self.send_one(pool, datagram, report));
            }
        }
    }

    /// Sends `self.pieces`; a TOS that the system refuses is left out from then on.
    ///
    /// # Safety
    /// The pieces live and stay unchanged during the call.
    unsafe fn send_pieces(&mut self, datagram: &Datagram, segment_len: Option<u16>) -> io::Result<()> {
        let sender = &self.senders[usize::from(datagram.source_port) % self.senders.len()];
        loop {
            let mut control = Control::new();
            control.push_tos(datagram.tos, datagram.remote.is_ipv4(), self.lanes.sent_tos);
            let has_tos = !control.bytes_mut().is_empty();
            if let Some(segment_len) = segment_len {
                control.push_segment_len(segment_len);
            }
            // SAFETY: the caller vouches for the pieces.
            match unsafe { message::send(sender, &mut self.pieces, datagram.remote, &mut control) } {
                Err(error) if has_tos && segment_len.is_none() && is_refused_option(&error) => {
                    self.lanes.sent_tos = match self.lanes.sent_tos {
                        TosLane::Whole => TosLane::Ecn,
                        TosLane::Ecn | TosLane::Off => TosLane::Off,
                    };
                    tracing::warn!(%error, "an outer TOS is refused; {:?} from here on", self.lanes.sent_tos);
                }
                result => return result,
            }
        }
    }
}

impl UnderlaySocket for UdpPool {
    fn recv_batch(&mut self, batch: &mut DatagramBatch) -> io::Result<usize> {
        batch.clear();
        while batch.datagrams.len() < batch.pool.receive_slabs() {
            let index = batch.datagrams.len();
            match self.receive.receive(&self.receiver, batch.pool.receive_area(index)) {
                Ok(received) => {
                    let Some(remote) = received.remote else { continue };
                    let mut packet = batch.pool.received(index, 0, received.len);
                    packet.segment_len = received.segment_len;
                    batch.datagrams.push(Datagram { packet, remote, tos: received.tos, source_port: 0 });
                }
                Err(error) if tells_of_a_peer(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || index > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(batch.datagrams.len())
    }

    fn send_batch(&mut self, pool: &PacketPool, datagrams: &[Datagram]) -> SendReport {
        let mut report = SendReport::default();
        let mut rest = datagrams;
        while !rest.is_empty() {
            let len = if self.lanes.cuts_sent { run_len(rest) } else { 1 };
            let (run, behind) = rest.split_at(len);
            self.send_run(pool, run, &mut report);
            rest = behind;
        }
        report
    }
}

/// How many datagrams from the first on can leave as one message: same way, same length but for a shorter last one.
fn run_len(datagrams: &[Datagram]) -> usize {
    let is_ready = |datagram: &Datagram| {
        datagram.packet.segment_len == 0 && datagram.packet.checksum == Checksum::Complete
    };
    let Some(first) = datagrams.first().filter(|first| is_ready(first)) else { return 1 };
    let segment_len = first.packet.len();
    let mut total = segment_len;
    let mut count = 1;
    for next in &datagrams[1..] {
        let goes_along =
            (next.remote, next.source_port, next.tos) == (first.remote, first.source_port, first.tos);
        let len = next.packet.len();
        total += len;
        let fits = len <= segment_len && total <= MAX_MESSAGE_LEN && count < MAX_SEGMENTS;
        if !(goes_along && fits && is_ready(next)) {
            break;
        }
        count += 1;
        if len < segment_len {
            break;
        }
    }
    count
}

fn count_refusal(error: &io::Error, segments: u64, report: &mut SendReport) {
    match error.raw_os_error() {
        _ if is_queue_full(error) => report.queue_full += segments,
        Some(WSAEMSGSIZE) => report.too_long += segments,
        _ => report.refused += segments,
    }
}

fn is_queue_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(WSAENOBUFS)
}

fn is_refused_option(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(WSAEINVAL | WSAENOPROTOOPT | WSAEOPNOTSUPP))
}

/// An ICMP error about an earlier datagram (port unreachable, TTL exceeded).
fn tells_of_a_peer(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(WSAECONNRESET | WSAENETRESET))
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

#[cfg(test)]
mod tests;
