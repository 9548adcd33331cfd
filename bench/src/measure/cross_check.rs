//! Bulk traffic by iperf3 and right after by our own tool, so that one can be held against the other.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;
use windlass_tests::process::run;

use super::udp::{Flood, Sender};
use super::{tcp, udp};
use crate::figures::{Figures, Span};

/// The port of the `iperf3 -s` beside the server.
pub const PORT: u16 = 5201;

/// Payload bytes of the datagrams.
const DATAGRAM_LEN: usize = 1400;

/// What both tools send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// One TCP stream from the client.
    Tcp,
    /// One TCP stream from the server.
    TcpReverse,
    /// An unpaced flood of 1,400 B datagrams from the client.
    Udp,
}

impl Checked {
    fn iperf3_flags(self) -> Vec<String> {
        match self {
            Self::Tcp => Vec::new(),
            Self::TcpReverse => vec!["--reverse".to_owned()],
            Self::Udp => ["--udp", "--bitrate", "0", "--length"]
                .map(str::to_owned)
                .into_iter()
                .chain([DATAGRAM_LEN.to_string()])
                .collect(),
        }
    }

    fn by_our_tool(self, server: SocketAddr, span: Span) -> Result<Figures> {
        match self {
            Self::Tcp => tcp::measure(server, 1, false, span),
            Self::TcpReverse => tcp::measure(server, 1, true, span),
            Self::Udp => {
                let flood = Flood { flows: 1, sizes: &[DATAGRAM_LEN], sender: Sender::Mmsg };
                udp::measure(server, flood, span)
            }
        }
    }
}

/// Gbit/s received by both, and the one in shares of the other. iperf3 counts whole seconds: as many as the span has, and one
/// at least.
///
/// # Errors
/// When iperf3 fails or says something else than its JSON, or our own tool fails.
pub fn measure(server: SocketAddr, checked: Checked, span: Span) -> Result<Figures> {
    let seconds = span.duration.as_secs().max(1).to_string();
    let mut iperf3 = Command::new("iperf3");
    iperf3.args([
        "--json",
        "--client",
        &server.ip().to_string(),
        "--port",
        &PORT.to_string(),
        "--time",
        &seconds,
    ]);
    iperf3.args(checked.iperf3_flags());
    let said: Value = serde_json::from_str(&run(&mut iperf3)?).context("iperf3's JSON")?;
    let bits = said["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3's sum_received")?;
    let own = checked.by_our_tool(server, span)?.get("gbit").copied().unwrap_or_default();
    let figures = [("iperf3_gbit", bits / 1e9), ("own_gbit", own), ("agreement", bits / 1e9 / own.max(1e-9))];
    Ok(figures.map(|(key, value)| (key.to_owned(), value)).into())
}
