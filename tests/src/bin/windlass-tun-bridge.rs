//! The Linux side of the stand-in for wintun.dll: moves packets between a real TUN device, which it makes, and UDP on
//! loopback. `windlass-tun-bridge DEVICE MTU PORT` prints `ready` and runs until it is killed.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use windlass_dataplane::device::{self, DeviceConfig, Offloads, TunnelGsoMode, WorkerIo};
use windlass_dataplane::packet::{Datagram, DatagramBatch, PacketBatch};

/// Packets moved at a time.
const BATCH: usize = 64;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, mtu, port] = words.as_slice() else { bail!("usage: windlass-tun-bridge DEVICE MTU PORT") };
    let mut config = DeviceConfig::new(name, mtu.parse()?, Ipv4Addr::LOCALHOST.into(), port.parse()?);
    config.source_ports = 1;
    // Wintun knows neither superpackets nor partial checksums.
    config.offloads =
        Offloads { device: false, udp_send: false, udp_receive: false, tunnel_gso: TunnelGsoMode::Off };
    let mut workers = device::open(&config)?.workers;
    println!("ready");
    bridge(workers.pop().context("one worker was asked for")?)
}

fn bridge(mut io: WorkerIo) -> Result<()> {
    let (mut packets, mut datagrams) = (PacketBatch::new(BATCH, 0), DatagramBatch::new(BATCH, 0));
    let mut stand_in: Option<SocketAddr> = None;
    loop {
        let from_tun = io.overlay.recv_batch(&mut packets)?;
        if let Some(remote) = stand_in {
            let datagram = |packet: &_| Datagram { packet: *packet, remote, tos: 0, source_port: 0 };
            let out: Vec<Datagram> = packets.packets.iter().map(datagram).collect();
            io.underlay.send_batch(&packets.pool, &out);
        }
        let from_stand_in = io.underlay.recv_batch(&mut datagrams)?;
        // Its first datagram is empty and says where it is.
        stand_in = datagrams.datagrams.last().map(|datagram| datagram.remote).or(stand_in);
        let received = datagrams.datagrams.iter().map(|datagram| datagram.packet);
        let out: Vec<_> = received.filter(|packet| packet.len() > 0).collect();
        io.overlay.send_batch(&datagrams.pool, &out);
        if from_tun + from_stand_in == 0 {
            io.wait.wait(None)?;
        }
    }
}
