//! The pool of sockets datagrams are sent from: one source port each, shared by all workers so that a flow has
//! the same source port whichever worker sends it (A5).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use socket2::Socket;

use super::socket;
use crate::device::config::{DeviceError, UdpConfig};
use crate::device::dynamic_ports::{self, PORTS};

/// The bound sockets.
#[derive(Debug)]
pub(super) struct SourcePorts {
    sockets: Vec<Socket>,
    ports: Vec<u16>,
}

impl SourcePorts {
    /// Binds as many sockets as configured, or as many as there are free ports, at least one.
    pub(super) fn bind(config: &UdpConfig) -> Result<Arc<Self>, DeviceError> {
        let wanted = config.source_ports.clamp(1, PORTS);
        let mut pool = Self { sockets: Vec::with_capacity(wanted), ports: Vec::with_capacity(wanted) };
        let mut candidates = dynamic_ports::candidates(config.seed);
        while pool.sockets.len() < wanted {
            let Some(port) = candidates.next() else { break };
            if port != config.port {
                pool.try_bind(config, port)?;
            }
        }
        match pool.sockets.is_empty() {
            true => Err(DeviceError::NoSourcePort { address: config.underlay }),
            false => Ok(Arc::new(pool)),
        }
    }

    fn try_bind(&mut self, config: &UdpConfig, port: u16) -> Result<(), DeviceError> {
        match bind_one(config.underlay, port, config.socket_buffer_len) {
            Ok(socket) => {
                self.sockets.push(socket);
                self.ports.push(port);
                Ok(())
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EADDRINUSE) => Ok(()),
                Some(libc::EADDRNOTAVAIL) => Err(DeviceError::NoSuchAddress { address: config.underlay }),
                _ => {
                    let action =
                        format!("opening a UDP socket on {}", SocketAddr::new(config.underlay, port));
                    Err(DeviceError::system(action, error))
                }
            },
        }
    }

    /// The socket for a datagram's source port number.
    pub(super) fn socket(&self, source_port: u16) -> &Socket {
        &self.sockets[self.index(source_port)]
    }

    /// The port of the socket for a datagram's source port number.
    pub(super) fn port(&self, source_port: u16) -> u16 {
        self.ports[self.index(source_port)]
    }

    /// Which socket a source port number means: it counts modulo the pool's size.
    pub(super) fn index(&self, source_port: u16) -> usize {
        usize::from(source_port) % self.sockets.len()
    }

    /// The ports, in the order of the sockets.
    pub(super) fn ports(&self) -> &[u16] {
        &self.ports
    }
}

fn bind_one(underlay: IpAddr, port: u16, buffer_len: usize) -> io::Result<Socket> {
    let socket = socket::sending(underlay, buffer_len)?;
    socket.bind(&SocketAddr::new(underlay, port).into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::device::config::DeviceConfig;

    #[test]
    fn a5_a_source_port_that_is_taken_is_skipped() {
        let mut config = DeviceConfig::new("unused", 1450, "127.0.0.1".parse().unwrap(), 4789);
        config.source_ports = 4;
        let config = config.udp().next().unwrap();
        let first = SourcePorts::bind(&config).unwrap();
        let second = SourcePorts::bind(&config).unwrap();
        let ports: HashSet<&u16> = first.ports().iter().chain(second.ports()).collect();
        assert_eq!(ports.len(), 8);
        assert_eq!(first.index(5), 1);
    }
}
