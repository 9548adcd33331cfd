//! Traffic between namespaces: ping, and `windlass-traffic` as server and client of TCP, UDP and DNS.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::netns::Netns;
use crate::process::{Guarded, run, wait_until};

/// The port that [`Traffic::serve`]'s servers are given by most tests.
pub const PORT: u16 = 8080;

/// Payload sizes of UDP: small, at the pods' MTU, and such as the sender has to fragment.
pub const UDP_SIZES: [usize; 7] = [1, 18, 512, 1400, 2900, 8000, 60_000];

/// Payload sizes of UDP that no path here fragments.
pub const UDP_WHOLE_SIZES: [usize; 4] = [1, 18, 512, 1370];

/// What a server saw of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The server's own address: which backend answered.
    pub server: SocketAddr,
    /// The client's address as the server saw it, after any translation.
    pub client: SocketAddr,
}

/// A transport of DNS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP.
    Udp,
    /// TCP, with the length prefix of RFC 1035 section 4.2.2.
    Tcp,
}

/// Runs `windlass-traffic` inside namespaces.
#[derive(Clone, Debug)]
pub struct Traffic {
    program: PathBuf,
}

impl Traffic {
    /// Uses that `windlass-traffic`: an integration test names it by `env!("CARGO_BIN_EXE_windlass-traffic")`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }

    /// Serves TCP and UDP on one address until the server is dropped.
    ///
    /// # Errors
    /// When it cannot bind there.
    pub fn serve(&self, at: &Netns, address: IpAddr, port: u16) -> Result<Guarded> {
        Guarded::spawn_ready(self.command(at, "serve").arg(SocketAddr::new(address, port).to_string()))
            .with_context(|| format!("a server on {address} port {port} in {}", at.name()))
    }

    /// Sends `bytes` over TCP and as many back, both at once, and compares the content at both ends.
    ///
    /// # Errors
    /// When the connection fails, stalls, or either content differs.
    pub fn tcp(&self, from: &Netns, to: IpAddr, port: u16, bytes: usize) -> Result<Seen> {
        let to = SocketAddr::new(to, port);
        let said = run(self.command(from, "tcp").arg(to.to_string()).arg(bytes.to_string()));
        parse_seen(&said.with_context(|| format!("TCP {} -> {to}, {bytes} bytes", from.name()))?)
    }

    /// Gives bytes back over TCP on one address until the server is dropped.
    ///
    /// # Errors
    /// When it cannot bind there.
    pub fn echo(&self, at: &Netns, address: IpAddr, port: u16) -> Result<Guarded> {
        Guarded::spawn_ready(self.command(at, "echo").arg(SocketAddr::new(address, port).to_string()))
            .with_context(|| format!("an echo server on {address} port {port} in {}", at.name()))
    }

    /// Opens so many connections to an echo server. Once `file` exists, each is tried again, and the exit code is 0
    /// when all of them still work.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub fn hold(&self, from: &Netns, to: SocketAddr, count: usize, file: &Path) -> Result<Guarded> {
        let (to, count) = (to.to_string(), count.to_string());
        Guarded::spawn_ready(self.command(from, "hold").args([&to, &count]).arg(file))
            .with_context(|| format!("{count} connections {} -> {to}", from.name()))
    }

    /// Sends one datagram of each size and expects each back, byte for byte.
    ///
    /// # Errors
    /// When one does not come back in several attempts.
    pub fn udp(&self, from: &Netns, to: IpAddr, port: u16, sizes: &[usize]) -> Result<Seen> {
        let to = SocketAddr::new(to, port);
        let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
        let said = run(self.command(from, "udp").arg(to.to_string()).args(&sizes));
        parse_seen(&said.with_context(|| format!("UDP {} -> {to}, sizes {sizes:?}", from.name()))?)
    }

    /// TCP of `bytes` both ways and UDP of [`UDP_SIZES`], from one namespace to one server; gives what TCP's end saw.
    ///
    /// # Errors
    /// As [`Traffic::tcp`] and [`Traffic::udp`].
    pub fn exchange(&self, from: &Netns, to: IpAddr, port: u16, bytes: usize) -> Result<Seen> {
        self.udp(from, to, port, &UDP_SIZES)?;
        self.tcp(from, to, port, bytes)
    }

    /// Expects TCP and UDP to that address to be refused within a second, as ECONNREFUSED.
    ///
    /// # Errors
    /// When either is answered, stays silent, or fails otherwise.
    pub fn refused(&self, from: &Netns, to: IpAddr, port: u16) -> Result<()> {
        let to = SocketAddr::new(to, port).to_string();
        for transport in ["tcp-refused", "udp-refused"] {
            run(self.command(from, transport).arg(&to))
                .with_context(|| format!("{transport} {} -> {to}", from.name()))?;
        }
        Ok(())
    }

    /// Asks a DNS server for the A record of `name`.
    ///
    /// # Errors
    /// When there is no answer or no such record.
    pub fn dns(&self, from: &Netns, server: IpAddr, name: &str, transport: Transport) -> Result<IpAddr> {
        let how = match transport {
            Transport::Udp => "dns-udp",
            Transport::Tcp => "dns-tcp",
        };
        let server = SocketAddr::new(server, 53);
        let said = run(self.command(from, how).arg(server.to_string()).arg(name))
            .with_context(|| format!("{how} {} -> {server} {name}", from.name()))?;
        said.trim().parse().with_context(|| format!("an address in {said:?}"))
    }

    fn command(&self, at: &Netns, what: &str) -> Command {
        let mut command = at.command(&self.program);
        command.arg(what);
        command
    }
}

/// Pings until one answer comes, for a minute at most: the first packets of a fresh topology wait for ARP and ND.
///
/// # Errors
/// When no answer came.
pub fn ping(from: &Netns, to: IpAddr) -> Result<()> {
    ping_until_answered(from, to, 56)
}

/// Pings that must all be answered, none lost, with payloads up to what needs inner fragments.
///
/// Each size is first tried until it is answered: an IPv6 sender learns its path MTU by losing packets.
///
/// # Errors
/// When one answer is missing.
pub fn ping_sizes(from: &Netns, to: IpAddr) -> Result<()> {
    for size in PING_SIZES {
        ping_until_answered(from, to, size)?;
        for _ in 0..3 {
            // One at a time: after an answer ping waits for further ones only twice as long as that took.
            from.exec(&format!("ping -n -c 1 -W 10 -s {size} {to}"))?;
        }
    }
    Ok(())
}

/// As [`ping_sizes`], but each of three pings a size is tried again until it is answered: wine's sockets lose some.
///
/// # Errors
/// When one is not answered in a minute.
pub fn ping_sizes_again(from: &Netns, to: IpAddr) -> Result<()> {
    for size in PING_SIZES {
        for _ in 0..3 {
            ping_until_answered(from, to, size)?;
        }
    }
    Ok(())
}

/// Pings fifty times a second, so many times, and expects every answer but those still under way at the end.
///
/// # Errors
/// Names the answers that are missing.
pub fn lossless_pings(from: &Netns, to: IpAddr, count: usize) -> Result<()> {
    let said = from.exec(&format!("ping -n -i 0.02 -c {count} -W 2 {to}"))?;
    let missing: Vec<usize> = (1..=count.saturating_sub(PINGS_UNDER_WAY))
        .filter(|number| !said.contains(&format!("icmp_seq={number} ")))
        .collect();
    ensure!(missing.is_empty(), "no answer to pings {missing:?} of {count}, {} -> {to}", from.name());
    Ok(())
}

/// What is sent in a tenth of a second.
const PINGS_UNDER_WAY: usize = 5;
/// Payload sizes of pings: none, the usual, near the MTU, and such as need inner fragments.
const PING_SIZES: [usize; 4] = [0, 56, 1372, 4000];

fn ping_until_answered(from: &Netns, to: IpAddr, size: usize) -> Result<()> {
    let once = format!("ping -n -c 1 -W 1 -s {size} {to}");
    wait_until(&format!("ping -s {size} {} -> {to}", from.name()), Duration::from_secs(60), || {
        Ok(from.exec(&once).is_ok())
    })
}

fn parse_seen(said: &str) -> Result<Seen> {
    let mut words = said.split_whitespace();
    let mut address = || words.next().and_then(|word| word.parse().ok());
    let (server, client) = address().zip(address()).with_context(|| format!("two addresses in {said:?}"))?;
    Ok(Seen { server, client })
}
