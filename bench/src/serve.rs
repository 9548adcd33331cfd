//! The server of every measure, on one port: a VIP then needs one port too.
//!
//! A TCP connection begins with one byte that says what is wanted ([`Wish`]) and two numbers, the span to count
//! in. A datagram that begins with [`ECHO`] is sent back, any other is counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::measure::{Span, tcp};

mod datagrams;

use datagrams::Counter;

/// What a TCP client wants, as the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Count what I send, and tell me.
    Sink,
    /// Send to me.
    Source,
    /// Send back what I send.
    Echo,
    /// Answer with one byte and close.
    Connect,
    /// Count the datagrams that come, and tell me.
    Watch,
}

const WISHES: [(Wish, u8); 5] = [
    (Wish::Sink, b'S'),
    (Wish::Source, b'R'),
    (Wish::Echo, b'E'),
    (Wish::Connect, b'C'),
    (Wish::Watch, b'W'),
];

/// First byte of a datagram that is to be sent back.
pub const ECHO: u8 = b'E';
/// First byte of a datagram that is to be counted.
pub const COUNTED: u8 = b'D';
/// Length of a request and of its answer.
pub const REQUEST_LEN: usize = 64;

const THREADS: usize = 32;
const HEAD_LEN: usize = 9;

impl Wish {
    /// The opening of a connection: the wish and the span.
    ///
    /// # Errors
    /// When the span is longer than 49 days.
    pub fn head(self, span: Span) -> Result<[u8; HEAD_LEN]> {
        let code = WISHES.iter().find(|(wish, _)| *wish == self).map_or(0, |(_, code)| *code);
        let mut head = [code; HEAD_LEN];
        head[1..5].copy_from_slice(&u32::try_from(span.warm_up.as_millis())?.to_be_bytes());
        head[5..].copy_from_slice(&u32::try_from(span.duration.as_millis())?.to_be_bytes());
        Ok(head)
    }

    fn parse([code, a, b, c, d, e, f, g, h]: [u8; HEAD_LEN]) -> Result<(Self, Span)> {
        let millis = |bytes| Duration::from_millis(u32::from_be_bytes(bytes).into());
        let wish = WISHES.iter().find(|(_, known)| *known == code).map(|(wish, _)| *wish);
        let span = Span { warm_up: millis([a, b, c, d]), duration: millis([e, f, g, h]) };
        Ok((wish.with_context(|| format!("no wish {code}"))?, span))
    }
}

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
        Wish::Echo => echo(&mut stream)?,
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
