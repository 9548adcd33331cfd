//! The server of every measure, on one port: a VIP then needs one port too. It answers by the [`protocol`].
//!
//! [`protocol`]: crate::protocol

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::figures::Span;
use crate::measure::tcp;
use crate::protocol::{HEAD_LEN, REQUEST_LEN, Wish};

mod datagrams;

use datagrams::Counter;

const THREADS: usize = 32;

/// Serves for ever; prints `ready` once it listens.
///
/// # Errors
/// When it cannot bind, or accepts no more.
pub fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("TCP {address}"))?;
    let datagrams = UdpSocket::bind(address).with_context(|| format!("UDP {address}"))?;
    let counter = Arc::new(Counter::default());
    let counting = Arc::clone(&counter);
    thread::spawn(move || {
        if let Err(error) = datagrams::serve(&datagrams, &counting) {
            eprintln!("serve, datagrams: {error:#}");
        }
    });
    let listener = Arc::new(listener);
    let accepting: Vec<_> = (0..THREADS)
        .map(|_| {
            let (listener, counter) = (Arc::clone(&listener), Arc::clone(&counter));
            thread::spawn(move || accept(&listener, &counter))
        })
        .collect();
    println!("ready");
    for thread in accepting {
        if !matches!(thread.join(), Ok(Ok(()))) {
            bail!("a thread accepts no more");
        }
    }
    Ok(())
}

fn accept(listener: &TcpListener, counter: &Counter) -> Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        // A client that goes away early has ended its measure; the next one is not concerned.
        let _ = answer(stream, counter);
    }
}

fn answer(mut stream: TcpStream, counter: &Counter) -> Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut head = [0; HEAD_LEN];
    stream.read_exact(&mut head)?;
    let (wish, span) = Wish::parse(head)?;
    match wish {
        Wish::Sink => {
            let counted = tcp::receive(&mut stream, span)?;
            stream.write_all(&counted.to_bytes())?;
        }
        Wish::Source => tcp::send_for(&mut stream, span.whole())?,
        // One may stay open for long, and many at a time.
        Wish::Echo => drop(thread::spawn(move || echo(&mut stream))),
        Wish::Connect => stream.write_all(b"!")?,
        Wish::Watch => watch(&mut stream, counter, span)?,
    }
    Ok(())
}

fn echo(stream: &mut TcpStream) -> Result<()> {
    let mut request = [0; REQUEST_LEN];
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(&request)?;
    }
    Ok(())
}

/// Answers with the datagrams and bytes of the span, the span's true length, and all datagrams until they cease.
fn watch(stream: &mut TcpStream, counter: &Counter, span: Span) -> Result<()> {
    let at_first = counter.read();
    stream.write_all(b"!")?;
    let patience = Instant::now() + Duration::from_secs(2);
    while counter.read().packets == at_first.packets && Instant::now() < patience {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(span.warm_up);
    let (before, begun) = (counter.read(), Instant::now());
    thread::sleep(span.duration);
    let after = counter.read();
    let took = u64::try_from(begun.elapsed().as_nanos())?;
    let all = counter.read_at_rest().packets - at_first.packets;
    for number in [after.packets - before.packets, after.bytes - before.bytes, took, all] {
        stream.write_all(&number.to_be_bytes())?;
    }
    Ok(())
}
