//! Connections as rows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use windlass_dataplane::lb::conntrack::{Connection, FlowDirection};
use windlass_dataplane::lb::tcp_state::TcpState;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};

use super::Inspection;

/// The most connections one answer holds.
pub const MAX_ROWS: usize = 10_000;

/// Which connections are wanted. What is absent is not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// The client's, the VIP's or the backend's address.
    pub addr: Option<IpAddr>,
    /// Part of the service's name.
    pub service: Option<String>,
    /// The state's name.
    pub state: Option<String>,
}

/// One translated flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionRow {
    /// Client to VIP.
    pub original: String,
    /// The service, while it exists.
    pub service: Option<String>,
    /// The backend.
    pub backend: String,
    /// As the backend sees it.
    pub translated: String,
    /// `opening`, `established`, ... for TCP; `unreplied` or `replied` for UDP.
    pub state: String,
    /// Seconds since its first packet.
    pub age_seconds: u32,
    /// Seconds since its last packet.
    pub idle_seconds: u32,
    /// Seconds until it is forgotten, unless a packet comes.
    pub expires_seconds: u32,
}

/// Connections, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// In the whole table.
    pub total: usize,
    /// Those that the filter wants, at most [`MAX_ROWS`], by original flow.
    pub rows: Vec<ConnectionRow>,
    /// Whether more match.
    pub truncated: bool,
}

impl Connections {
    /// Those of a node that `filter` wants.
    pub fn of(inspection: &Inspection, filter: &Filter) -> Self {
        let mut found = Self { total: inspection.connections.len(), ..Self::default() };
        let mut wanted: Vec<(FlowKey, ConnectionRow)> = Vec::new();
        inspection.connections.visit(|connection| {
            let row = row(inspection, connection);
            if filter.wants(connection, &row) {
                found.truncated = wanted.len() == MAX_ROWS;
                if !found.truncated {
                    wanted.push((connection.original, row));
                }
            }
            !found.truncated
        });
        wanted.sort_by_key(|(original, _)| *original);
        // One that moved while the table was walked may have been seen twice.
        wanted.dedup_by_key(|(original, _)| *original);
        found.rows = wanted.into_iter().map(|(_, row)| row).collect();
        found
    }
}

impl Filter {
    fn wants(&self, connection: &Connection, row: &ConnectionRow) -> bool {
        let has_addr = |addr: &IpAddr| {
            [connection.original.src, connection.original.dst, connection.reply.src].contains(addr)
        };
        let named = |part: &String| row.service.as_ref().is_some_and(|name| name.contains(part.as_str()));
        self.addr.as_ref().is_none_or(has_addr)
            && self.service.as_ref().is_none_or(named)
            && self.state.as_ref().is_none_or(|state| row.state.eq_ignore_ascii_case(state))
    }
}

fn row(inspection: &Inspection, connection: &Connection) -> ConnectionRow {
    let now = inspection.now.tick();
    let service = inspection.tables.services().lookup(connection.vip);
    ConnectionRow {
        original: connection.original.to_string(),
        service: service.map(|service| service.name.clone()),
        backend: connection.backend().to_string(),
        translated: connection.translated(FlowDirection::Original).to_string(),
        state: class(connection).1.to_owned(),
        age_seconds: now.saturating_sub(connection.opened_tick()),
        idle_seconds: now.saturating_sub(connection.last_seen_tick()),
        expires_seconds: connection.expires_tick().saturating_sub(now),
    }
}

/// Every protocol and state that [`class`] may name.
pub const CLASSES: [(&str, &str); 9] = [
    ("tcp", "opening"),
    ("tcp", "replied"),
    ("tcp", "established"),
    ("tcp", "original-closed"),
    ("tcp", "reply-closed"),
    ("tcp", "closed"),
    ("tcp", "reset"),
    ("udp", "unreplied"),
    ("udp", "replied"),
];

/// The names of all states, for `--state`.
pub fn state_names() -> BTreeSet<&'static str> {
    CLASSES.into_iter().map(|(_, state)| state).collect()
}

/// A connection's protocol and state by their names.
pub fn class(connection: &Connection) -> (&'static str, &'static str) {
    if connection.original.protocol == Protocol::TCP {
        ("tcp", tcp_name(connection.tcp_state()))
    } else {
        ("udp", if connection.is_replied() { "replied" } else { "unreplied" })
    }
}

fn tcp_name(state: TcpState) -> &'static str {
    match state {
        TcpState::Opening => "opening",
        TcpState::Replied => "replied",
        TcpState::Established => "established",
        TcpState::OriginalClosed => "original-closed",
        TcpState::ReplyClosed => "reply-closed",
        TcpState::Closed => "closed",
        TcpState::Reset => "reset",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tcp_state_has_a_name_among_the_classes() {
        use TcpState::{Closed, Established, Opening, OriginalClosed, Replied, ReplyClosed, Reset};
        for state in [Opening, Replied, Established, OriginalClosed, ReplyClosed, Closed, Reset] {
            assert!(CLASSES.contains(&("tcp", tcp_name(state))), "{state:?}");
        }
        assert_eq!(state_names().len(), 8);
    }
}
