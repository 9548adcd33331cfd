//! A capture of a running node, as its admin socket is asked for it: a question every so often, each of which goes on
//! with the capture and takes away what was kept since the one before.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant as SystemInstant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use windlass_dataplane::tap::{Filter, Kept, Outer, Side, Take, Tap, Wanted};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::protocol::Protocol;

use super::outer::{self, FIRST_SOURCE_PORT};
use super::write::Direction;
use crate::node::NodeSettings;

/// A capture that is not asked for so long ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the workers of a node can be watched.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Where they put their copies.
    pub tap: Arc<Tap>,
    /// When their clock stood at zero.
    pub origin: SystemInstant,
}

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Question {
    /// Tells captures apart: the same number in all questions of one.
    pub owner: u64,
    /// Packets of the overlay device.
    pub inner: bool,
    /// Datagrams of the underlay.
    pub outer: bool,
    /// Only what is dropped.
    pub drops: bool,
    /// Bytes kept of a packet.
    pub snap_len: u32,
    /// See [`filter`].
    pub filter: String,
    /// Whether this is the last question.
    pub last: bool,
}

/// What was captured since the question before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The packets, in the order in which each worker saw them.
    pub packets: Vec<Packet>,
    /// How many were not kept.
    pub lost: u64,
}

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// Whether it is a datagram of the underlay.
    pub outer: bool,
    /// Which way it went.
    pub direction: Direction,
    /// Nanoseconds since 1970.
    pub at: u64,
    /// The name of the reason for which it was dropped.
    pub dropped: Option<String>,
    /// How long it was, from the IP header on.
    pub original_len: u32,
    /// What was kept of it, as hexadecimal digits.
    pub hex: String,
}

/// Answers a question about a node.
///
/// # Errors
/// When the filter cannot be understood, or another capture is under way.
pub fn answer(watched: &Watched, settings: &NodeSettings, question: &Question) -> Result<Answer, String> {
    if settings.is_bridge() && question.inner {
        let device = settings.segments.first().map_or("seg100", |segment| segment.name.as_str());
        return Err(format!(
            "frames of segments are not captured, only their datagrams; give --outer, or use tcpdump -i {device}"
        ));
    }
    let wanted = Wanted {
        overlay: question.inner,
        underlay: question.outer,
        only_drops: question.drops,
        snap_len: question.snap_len as usize,
        filter: filter(&question.filter)?,
    };
    let now = Instant::since_origin(watched.origin);
    let take = match question.last {
        true => watched.tap.end(question.owner),
        false => watched
            .tap
            .take(question.owner, wanted, now, now + PATIENCE)
            .map_err(|error| error.to_string())?,
    };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let began_at = since_1970.saturating_sub(watched.origin.elapsed());
    Ok(of(&take, settings, began_at))
}

fn of(take: &Take, settings: &NodeSettings, began_at: Duration) -> Answer {
    let packets = take.packets().map(|(kept, bytes)| packet(kept, bytes, settings, began_at));
    Answer { packets: packets.collect(), lost: take.lost }
}

fn packet(kept: &Kept, bytes: &[u8], settings: &NodeSettings, began_at: Duration) -> Packet {
    let (ip, header_len) = match &kept.outer {
        None => (bytes.to_vec(), 0),
        Some(outer) => {
            let ip = with_headers(outer, kept.received, bytes, settings);
            let header_len = ip.len() - bytes.len();
            (ip, header_len)
        }
    };
    Packet {
        outer: kept.side == Side::Underlay,
        direction: if kept.received { Direction::Inbound } else { Direction::Outbound },
        at: u64::try_from((began_at + Duration::from_nanos(kept.at.as_nanos())).as_nanos())
            .unwrap_or(u64::MAX),
        dropped: kept.dropped.map(|reason| reason.name().to_owned()),
        original_len: kept.original_len + header_len as u32,
        hex: hex(&ip),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A datagram with the outer headers that the socket has taken off, or has yet to put on.
fn with_headers(outer: &Outer, received: bool, payload: &[u8], settings: &NodeSettings) -> Vec<u8> {
    let own = settings.underlay.iter().find(|own| own.addr.is_ipv4() == outer.remote.is_ipv4());
    let addr = own.map_or(outer.remote.ip(), |own| own.addr);
    match received {
        true => outer::datagram(outer.remote, SocketAddr::new(addr, settings.port), outer.tos, payload),
        false => {
            let source = SocketAddr::new(addr, FIRST_SOURCE_PORT | outer.source_port);
            outer::datagram(source, outer.remote, outer.tos, payload)
        }
    }
}

/// What a filter looks like, for messages.
const GRAMMAR: &str = "write [tcp|udp|icmp|icmpv6] [host ADDR] [port N]";

/// Reads a filter of the inner packets: `tcp host 10.244.0.14 port 80`, each part at most once, all of which must hold.
///
/// # Errors
/// With the word that is not understood.
pub fn filter(text: &str) -> Result<Filter, String> {
    let mut filter = Filter::default();
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("filter: {word:?} wants a value; {GRAMMAR}"));
        match word {
            "tcp" => filter.protocol = Some(Protocol::TCP),
            "udp" => filter.protocol = Some(Protocol::UDP),
            "icmp" => filter.protocol = Some(Protocol::ICMP),
            "icmpv6" => filter.protocol = Some(Protocol::ICMPV6),
            "host" => {
                let text = value()?;
                let addr: IpAddr =
                    text.parse().map_err(|_| format!("filter: {text:?} is no IP address; {GRAMMAR}"))?;
                filter.addr = Some(addr);
            }
            "port" => {
                let text = value()?;
                let port = text.parse().map_err(|_| format!("filter: {text:?} is no port; {GRAMMAR}"))?;
                filter.port = Some(port);
            }
            other => return Err(format!("filter: {other:?} is not understood; {GRAMMAR}")),
        }
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_and_what_is_wrong_is_said() {
        let expected = Filter {
            protocol: Some(Protocol::TCP),
            addr: Some(IpAddr::from([10, 244, 0, 14])),
            port: Some(80),
        };
        assert_eq!(filter("tcp host 10.244.0.14 port 80"), Ok(expected));
        assert_eq!(filter("  "), Ok(Filter::default()));
        for (text, part) in [
            ("sctp", "\"sctp\" is not understood"),
            ("host", "\"host\" wants a value"),
            ("port http", "\"http\" is no port"),
            ("host 10.0.0.300", "\"10.0.0.300\" is no IP address"),
        ] {
            assert!(filter(text).unwrap_err().contains(part), "{text}");
        }
    }
}
