//! The highest rate at which no more than [`LOSS_GOAL`] is lost: RFC 2544 section 26.1 by binary search, with a goal
//! above 0, since a shared machine now and then loses a packet for reasons of its own.

use std::net::SocketAddr;

use anyhow::Result;

use super::udp::{Flood, Sender, watched};
use crate::figures::{Figures, Span};

/// Percent of the packets that may be lost.
pub const LOSS_GOAL: f64 = 0.1;
/// Trials after the unpaced one: the result is exact to 1/128 of what comes through an overload.
pub const TRIALS: usize = 7;

/// Searches between nothing and what an unpaced flood brings through. Each trial lasts the whole span.
///
/// # Errors
/// As [`watched`].
pub fn measure(server: SocketAddr, sizes: &'static [usize], span: Span) -> Result<Figures> {
    let flood = Flood { flows: 1, sizes, sender: Sender::Mmsg };
    let overload = watched(server, span, || flood.send(server, span, None))?;
    let rate = search(overload.kpps * 1e3, |rate| {
        let arrived = watched(server, span, || flood.send(server, span, Some(rate)))?;
        Ok(arrived.loss <= LOSS_GOAL)
    })?;
    Ok([("kpps".to_owned(), rate / 1e3), ("overload_kpps".to_owned(), overload.kpps)].into())
}

/// The highest rate that was tried and `holds`; 0 when none does.
fn search(limit: f64, mut holds: impl FnMut(f64) -> Result<bool>) -> Result<f64> {
    let (mut low, mut high) = (0.0, limit);
    for _ in 0..TRIALS {
        let middle = f64::midpoint(low, high);
        if holds(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_search_ends_below_the_rate_that_loses() -> anyhow::Result<()> {
        let rate = super::search(1280.0, |rate| Ok(rate < 400.0))?;
        assert!((390.0..400.0).contains(&rate), "{rate}");
        assert!(super::search(1280.0, |_| Ok(false))? < 1e-9);
        Ok(())
    }
}
