//! Bulk TCP: what one side receives within the span, over all connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::figures::{Figures, Span};
use crate::protocol::Wish;

const CHUNK_LEN: usize = 128 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that came within a span, and the span's true length in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    bytes: u64,
    nanos: u64,
}

impl Counted {
    /// Both numbers, in network order.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        ((u128::from(self.bytes) << 64) | u128::from(self.nanos)).to_be_bytes()
    }

    #[allow(clippy::cast_possible_truncation)]
    fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_be_bytes(bytes);
        Self { bytes: (both >> 64) as u64, nanos: both as u64 }
    }

    /// Bits per nanosecond are Gbit/s.
    #[allow(clippy::cast_precision_loss)]
    fn gbit(self) -> f64 {
        self.bytes as f64 * 8.0 / self.nanos.max(1) as f64
    }
}

/// Gbit/s over `streams` connections.
///
/// # Errors
/// When a connection fails or stalls for 10 s.
pub fn measure(server: SocketAddr, streams: usize, reverse: bool, span: Span) -> Result<Figures> {
    let wish = if reverse { Wish::Source } else { Wish::Sink };
    // All connections stand before the first byte flows.
    let streams: Vec<TcpStream> = (0..streams).map(|_| open(server)).collect::<Result<_>>()?;
    let running: Vec<_> =
        streams.into_iter().map(|stream| thread::spawn(move || run(stream, wish, span))).collect();
    let mut gbit = 0.0;
    for stream in running {
        gbit += stream.join().map_err(|_| anyhow!("a stream's thread panicked"))??.gbit();
    }
    Ok([("gbit".to_owned(), gbit)].into())
}

fn run(mut stream: TcpStream, wish: Wish, span: Span) -> Result<Counted> {
    stream.write_all(&wish.head(span)?)?;
    if wish == Wish::Source {
        return receive(&mut stream, span);
    }
    send_for(&mut stream, span.whole())?;
    stream.shutdown(Shutdown::Write)?;
    let mut counted = [0; 16];
    stream.read_exact(&mut counted).context("the server's count")?;
    Ok(Counted::from_bytes(counted))
}

/// A connection that does not wait for ever.
///
/// # Errors
/// When it cannot be made within 10 s.
pub fn open(server: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, PATIENCE).with_context(|| format!("TCP to {server}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends zeros for that long.
///
/// # Errors
/// When the connection fails; a receiver that has heard enough and closed is none.
pub fn send_for(stream: &mut TcpStream, time: Duration) -> Result<()> {
    let chunk = vec![0; CHUNK_LEN];
    let end = Instant::now() + time;
    while Instant::now() < end {
        match stream.write_all(&chunk) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => break,
            Err(error) => return Err(error).context("sending"),
        }
    }
    Ok(())
}

/// Receives to the end, and counts what comes within the span, which begins with the first byte.
///
/// # Errors
/// When the connection stalls.
pub fn receive(stream: &mut TcpStream, span: Span) -> Result<Counted> {
    let mut chunk = vec![0; CHUNK_LEN];
    let mut begun = None;
    let mut counted = Counted::default();
    loop {
        let len = stream.read(&mut chunk).context("receiving")?;
        if len == 0 {
            return Ok(counted);
        }
        let since = begun.get_or_insert_with(Instant::now).elapsed();
        if since >= span.warm_up && since < span.warm_up + span.duration {
            counted.bytes += u64::try_from(len)?;
            counted.nanos = u64::try_from(span.duration.as_nanos())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Counted;

    #[test]
    fn a_count_survives_the_wire() {
        let counted = Counted { bytes: 1 << 40, nanos: 1_000_000_007 };
        assert_eq!(Counted::from_bytes(counted.to_bytes()), counted);
    }

    #[test]
    fn a_gigabyte_in_a_second_is_eight_gigabits() {
        let counted = Counted { bytes: 1_000_000_000, nanos: 1_000_000_000 };
        assert!((counted.gbit() - 8.0).abs() < 1e-9);
    }
}
