//! New TCP connections: made, asked one byte over, and closed by the server, so that its side waits in TIME_WAIT
//! and the client's ports are free at once.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use super::tcp;
use crate::figures::{Figures, Span};
use crate::protocol::Wish;

/// Connections per second by that many clients at once, each making one after the other.
///
/// # Errors
/// When one fails.
#[allow(clippy::cast_precision_loss)]
pub fn measure(server: SocketAddr, clients: usize, span: Span) -> Result<Figures> {
    let running: Vec<_> = (0..clients).map(|_| thread::spawn(move || connect_for(server, span))).collect();
    let mut made = 0;
    for client in running {
        made += client.join().map_err(|_| anyhow!("a client's thread panicked"))??;
    }
    Ok([("per_s".to_owned(), made as f64 / span.duration.as_secs_f64())].into())
}

fn connect_for(server: SocketAddr, span: Span) -> Result<u64> {
    let begun = Instant::now();
    let head = Wish::Connect.head(span)?;
    let mut made = 0;
    loop {
        let mut stream = tcp::open(server)?;
        stream.write_all(&head)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).context("the answer and the end")?;
        let since = begun.elapsed();
        if since >= span.warm_up + span.duration {
            return Ok(made);
        }
        made += u64::from(since >= span.warm_up);
    }
}
