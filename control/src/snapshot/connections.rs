//! The connections of a node, and its clients' stays with backends.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use windlass_dataplane::lb::conntrack::{Conntrack, SavedAffinity, SavedConnection};
use windlass_dataplane::lb::tcp_state::TcpState;
use windlass_dataplane::tables::ForwardingTables;
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol, Vip};

use super::SnapshotError;
use super::file::{self, Format};
use crate::registration::Owner;
use crate::system::HostMoment;

/// Version 1: a line with the moment, as JSON, then records, each a tag and fields of fixed order.
const FORMAT: Format = Format { name: "connections.snapshot", version: 1, is_durable: false };

const CONNECTION: u8 = 0;
const AFFINITY: u8 = 1;

/// Connections as they were at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Translated flows.
    pub connections: Vec<SavedConnection>,
    /// Clients' stays.
    pub affinities: Vec<SavedAffinity>,
    /// How long ago that was.
    pub away: Duration,
}

/// How many connections go on in a new table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Those that do.
    pub connections: usize,
    /// Those that had timed out or have no backend any more.
    pub forgotten: usize,
}

impl Connections {
    /// All connections of a table.
    pub fn of(table: &Conntrack, now: Instant) -> Self {
        let mut connections = Vec::with_capacity(table.len());
        table.visit(|connection| {
            connections.push(connection.saved(now));
            true
        });
        Self { connections, affinities: table.saved_affinities(now), away: Duration::ZERO }
    }

    /// Tells one set of connections from another, whatever their timers say.
    pub fn fingerprint(&self) -> u64 {
        let still = |saved: &SavedConnection| {
            let mut bytes = Vec::new();
            put_connection(&mut bytes, &SavedConnection { idle: Duration::ZERO, ..*saved });
            file::checksum(&bytes)
        };
        let stay = |saved: &SavedAffinity| {
            let mut bytes = Vec::new();
            put_affinity(&mut bytes, &SavedAffinity { remaining: Duration::ZERO, ..*saved });
            file::checksum(&bytes)
        };
        // A table has no order.
        let all = self.connections.iter().map(still).chain(self.affinities.iter().map(stay));
        all.fold(0, u64::wrapping_add)
    }

    /// Keeps them in `folder` as `owner`'s.
    ///
    /// # Errors
    /// When they cannot be written; what was there stays.
    pub fn write(&self, folder: &Path, owner: &Owner, at: &HostMoment) -> Result<(), SnapshotError> {
        let unwritable = |source| SnapshotError::Unwritable { file: FORMAT.path(folder), source };
        let mut bytes = serde_json::to_vec(at).map_err(|error| unwritable(error.into()))?;
        bytes.push(b'\n');
        self.connections.iter().for_each(|saved| put_connection(&mut bytes, saved));
        self.affinities.iter().for_each(|saved| put_affinity(&mut bytes, saved));
        FORMAT.write(folder, owner, &bytes)
    }

    /// What `owner` kept in `folder`; `None` when nothing was kept.
    ///
    /// # Errors
    /// When what was kept is damaged, of another node, or from before the host was started.
    pub fn read(folder: &Path, owner: &Owner, now: &HostMoment) -> Result<Option<Self>, SnapshotError> {
        let Some((whose, content)) = FORMAT.read(folder)? else { return Ok(None) };
        let file = FORMAT.path(folder);
        if whose != *owner {
            return Err(SnapshotError::Foreign { file });
        }
        let damaged =
            || SnapshotError::Damaged { file: file.clone(), what: "a record is cut off".to_owned() };
        let (moment, records) = file::split_line(&content).ok_or_else(damaged)?;
        let at: HostMoment = serde_json::from_slice(moment).map_err(|_| damaged())?;
        let away = now.since(&at).ok_or_else(|| SnapshotError::BeforeBoot { file: file.clone() })?;
        let mut found = Self { away, ..Self::default() };
        let mut records = Records(records);
        while !records.0.is_empty() {
            records.take(&mut found).ok_or_else(damaged)?;
        }
        Ok(Some(found))
    }

    /// Lets them go on in a table that `workers` share, as far as they have not timed out and `tables` still have
    /// their backends (F6).
    pub fn restore(&self, table: &Conntrack, tables: &ForwardingTables, workers: usize) -> Restored {
        let mut restored = Restored::default();
        for (number, saved) in self.connections.iter().enumerate() {
            let worker = number % workers.max(1);
            let is_stranded = tables.strands(&saved.connection(Instant::ZERO));
            match !is_stranded && table.restore(saved, self.away, Instant::ZERO, worker) {
                true => restored.connections += 1,
                false => restored.forgotten += 1,
            }
        }
        for (number, saved) in self.affinities.iter().enumerate() {
            table.restore_affinity(saved, self.away, Instant::ZERO, number % workers.max(1));
        }
        restored
    }
}

fn put_connection(to: &mut Vec<u8>, saved: &SavedConnection) {
    to.push(CONNECTION);
    put_flow(to, &saved.original);
    put_flow(to, &saved.reply);
    to.extend([saved.tcp_state as u8, u8::from(saved.is_replied)]);
    put_seconds(to, saved.idle);
}

fn put_affinity(to: &mut Vec<u8>, saved: &SavedAffinity) {
    to.push(AFFINITY);
    put_addr(to, saved.client);
    put_addr(to, saved.vip.addr);
    to.extend(saved.vip.port.to_be_bytes());
    to.push(saved.vip.protocol.0);
    put_addr(to, saved.backend.ip());
    to.extend(saved.backend.port().to_be_bytes());
    put_seconds(to, saved.remaining);
}

fn put_flow(to: &mut Vec<u8>, flow: &FlowKey) {
    put_addr(to, flow.src);
    put_addr(to, flow.dst);
    to.push(flow.protocol.0);
    to.extend(flow.src_port.to_be_bytes());
    to.extend(flow.dst_port.to_be_bytes());
}

fn put_addr(to: &mut Vec<u8>, addr: IpAddr) {
    match addr {
        IpAddr::V4(addr) => {
            to.push(4);
            to.extend(addr.octets());
        }
        IpAddr::V6(addr) => {
            to.push(6);
            to.extend(addr.octets());
        }
    }
}

fn put_seconds(to: &mut Vec<u8>, duration: Duration) {
    to.extend(u32::try_from(duration.as_secs()).unwrap_or(u32::MAX).to_be_bytes());
}

/// Records that are yet to be read; each of its functions gives `None` where they are cut off or senseless.
struct Records<'a>(&'a [u8]);

impl Records<'_> {
    fn take(&mut self, into: &mut Connections) -> Option<()> {
        match self.byte()? {
            CONNECTION => into.connections.push(SavedConnection {
                original: self.flow()?,
                reply: self.flow()?,
                tcp_state: TcpState::from_u8(self.byte()?),
                is_replied: self.byte()? != 0,
                idle: self.seconds()?,
            }),
            AFFINITY => into.affinities.push(SavedAffinity {
                client: self.addr()?,
                vip: Vip { addr: self.addr()?, port: self.port()?, protocol: Protocol(self.byte()?) },
                backend: SocketAddr::new(self.addr()?, self.port()?),
                remaining: self.seconds()?,
            }),
            _ => return None,
        }
        Some(())
    }

    fn flow(&mut self) -> Option<FlowKey> {
        Some(FlowKey {
            src: self.addr()?,
            dst: self.addr()?,
            protocol: Protocol(self.byte()?),
            src_port: self.port()?,
            dst_port: self.port()?,
        })
    }

    fn addr(&mut self) -> Option<IpAddr> {
        match self.byte()? {
            4 => self.bytes::<4>().map(IpAddr::from),
            6 => self.bytes::<16>().map(IpAddr::from),
            _ => None,
        }
    }

    fn port(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn seconds(&mut self) -> Option<Duration> {
        self.bytes().map(|bytes| Duration::from_secs(u32::from_be_bytes(bytes).into()))
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }
}
