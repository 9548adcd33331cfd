//! Bulk TCP by iperf3 and right after by our own tool, so that one can be held against the other.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;
use windlass_tests::process::run;

use super::{Figures, Span, tcp};

/// The port of the `iperf3 -s` beside the server.
pub const PORT: u16 = 5201;

/// Gbit/s by both, and the one in shares of the other. iperf3 counts whole seconds: as many as the span has, and one
/// at least.
///
/// # Errors
/// When iperf3 fails or says something else than its JSON, or our own tool fails.
pub fn measure(server: SocketAddr, span: Span) -> Result<Figures> {
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
    let said: Value = serde_json::from_str(&run(&mut iperf3)?).context("iperf3's JSON")?;
    let bits = said["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3's sum_received")?;
    let own = tcp::measure(server, 1, false, span)?.get("gbit").copied().unwrap_or_default();
    let figures = [("iperf3_gbit", bits / 1e9), ("own_gbit", own), ("agreement", bits / 1e9 / own.max(1e-9))];
    Ok(figures.map(|(key, value)| (key.to_owned(), value)).into())
}
