//! A server and clients that compare every byte, for use inside a network namespace.
//!
//! `serve ADDR` echoes UDP and exchanges patterns over TCP; `tcp ADDR BYTES` and `udp ADDR SIZE...` are its clients;
//! `echo ADDR` gives bytes back for as long as a client likes; `hold ADDR COUNT FILE` has so many connections to it,
//! waits for the file, and tells how many of them still work; `tcp-refused`, `udp-refused ADDR` expect ECONNREFUSED at once; `dns-udp`, `dns-tcp ADDR NAME` print an A record.
//! Nothing waits longer than a few seconds; exit code 1 says that it did not go well, and stderr why.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", address] => serve(address.parse()?),
        ["tcp", address, bytes] => tcp(address.parse()?, bytes.parse()?),
        ["echo", address] => echo(address.parse()?),
        ["hold", address, count, file] => hold(address.parse()?, count.parse()?, Path::new(file)),
        ["udp", address, sizes @ ..] => udp(address.parse()?, sizes),
        ["tcp-refused", address] => tcp_refused(address.parse()?),
        ["udp-refused", address] => udp_refused(address.parse()?),
        ["dns-udp", address, name] => dns(address.parse()?, name, dns_by_udp),
        ["dns-tcp", address, name] => dns(address.parse()?, name, dns_by_tcp),
        _ => bail!(
            "usage: windlass-traffic serve|tcp|udp|echo|hold|tcp-refused|udp-refused|dns-udp|dns-tcp ADDR ..."
        ),
    }
}

fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    let datagrams = UdpSocket::bind(address)?;
    thread::spawn(move || echo_datagrams(&datagrams));
    println!("ready");
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || {
            if let Err(error) = exchange_as_server(stream) {
                eprintln!("serve: {error:#}");
            }
        });
    }
    Ok(())
}

fn echo_datagrams(socket: &UdpSocket) -> Result<()> {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        // An ICMP error about an earlier answer surfaces here; it says nothing about this socket.
        let Ok((len, client)) = socket.recv_from(&mut buffer) else { continue };
        let _ = match &buffer[..len] {
            WHO => socket.send_to(format!("{} {client}", socket.local_addr()?).as_bytes(), client),
            payload => socket.send_to(payload, client),
        };
    }
}

/// Greets with both addresses, then reads the client's pattern while sending its own, then says how it went.
fn exchange_as_server(mut stream: TcpStream) -> Result<()> {
    limit(&stream)?;
    let greeting = format!("{:<GREETING_LEN$}", format!("{} {}", stream.local_addr()?, stream.peer_addr()?));
    stream.write_all(greeting.as_bytes())?;
    let mut len = [0; 8];
    stream.read_exact(&mut len)?;
    let len = usize::try_from(u64::from_be_bytes(len))?;
    let writer = send_in_background(&stream, SERVER_SEED, len)?;
    let compared = compare(&mut stream, CLIENT_SEED, len);
    join(writer)?;
    stream.write_all(if compared.is_ok() { GOOD } else { BAD })?;
    compared
}

/// Gives every byte back, with no limit of time.
fn echo(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("ready");
    for stream in listener.incoming() {
        let mut stream = stream?;
        thread::spawn(move || -> Result<()> {
            let mut byte = [0];
            loop {
                stream.read_exact(&mut byte)?;
                stream.write_all(&byte)?;
            }
        });
    }
    Ok(())
}

/// Opens connections, and expects every one to work once more after `file` has appeared.
fn hold(address: SocketAddr, count: usize, file: &Path) -> Result<()> {
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).context("connect")?;
        limit(&stream)?;
        one_byte(&mut stream).context("first byte")?;
        streams.push(stream);
    }
    println!("ready");
    while !file.exists() {
        thread::sleep(Duration::from_millis(20));
    }
    let working = streams.iter_mut().filter_map(|stream| one_byte(stream).ok()).count();
    ensure!(working == count, "{working} of {count} connections work");
    Ok(())
}

fn one_byte(stream: &mut TcpStream) -> Result<()> {
    let mut back = [0];
    stream.write_all(&[7])?;
    stream.read_exact(&mut back)?;
    Ok(())
}

fn tcp(address: SocketAddr, len: usize) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).context("connect")?;
    limit(&stream)?;
    let mut greeting = vec![0; GREETING_LEN];
    stream.read_exact(&mut greeting).context("greeting")?;
    stream.write_all(&u64::try_from(len)?.to_be_bytes())?;
    let writer = send_in_background(&stream, CLIENT_SEED, len)?;
    compare(&mut stream, SERVER_SEED, len).context("from the server")?;
    join(writer).context("to the server")?;
    let mut verdict = [0; GOOD.len()];
    stream.read_exact(&mut verdict).context("the server's verdict")?;
    ensure!(verdict == GOOD, "the server got another content");
    stream.shutdown(Shutdown::Both)?;
    println!("{}", String::from_utf8_lossy(&greeting).trim());
    Ok(())
}

fn udp(address: SocketAddr, sizes: &[&str]) -> Result<()> {
    let socket = connected(address)?;
    for size in sizes {
        let size: usize = size.parse()?;
        let mut payload = vec![0; size];
        Pattern(CLIENT_SEED ^ u64::try_from(size)?).fill(&mut payload);
        let answer = ask(&socket, &payload, |answer| answer.len() == size);
        let answer = answer.with_context(|| format!("a datagram of {size} bytes"))?;
        ensure!(answer == payload, "a datagram of {size} bytes came back with another content");
    }
    let who = ask(&socket, WHO, |answer| answer.contains(&b' '))?;
    println!("{}", String::from_utf8_lossy(&who));
    Ok(())
}

/// Sends again and again for a while, since UDP may lose; answers to an earlier attempt are passed over.
fn ask(socket: &UdpSocket, question: &[u8], belongs: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let mut failed = anyhow!("no attempt");
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        socket.send(question).context("send")?;
        loop {
            match socket.recv(&mut buffer) {
                Ok(len) if belongs(&buffer[..len]) => return Ok(buffer[..len].to_vec()),
                Ok(_) => {}
                Err(error) => {
                    failed = anyhow!(error).context("no answer");
                    thread::sleep(PAUSE);
                    break;
                }
            }
        }
    }
    Err(failed)
}

fn tcp_refused(address: SocketAddr) -> Result<()> {
    let begun = Instant::now();
    let Err(error) = TcpStream::connect_timeout(&address, PATIENCE) else { bail!("{address} accepted") };
    refused_at_once(&error, begun)
}

fn udp_refused(address: SocketAddr) -> Result<()> {
    let socket = connected(address)?;
    let begun = Instant::now();
    loop {
        let Err(error) = socket.send(WHO).and_then(|_| socket.recv(&mut [0; 64])) else {
            bail!("{address} answered")
        };
        // The datagram, or the refusal, may have been lost.
        if error.kind() != ErrorKind::WouldBlock || begun.elapsed() > PATIENCE {
            return refused_at_once(&error, begun);
        }
    }
}

/// A time-out would be another kind of error, and comes after [`PATIENCE`].
fn refused_at_once(error: &std::io::Error, begun: Instant) -> Result<()> {
    let took = begun.elapsed();
    ensure!(error.kind() == ErrorKind::ConnectionRefused, "not refused but {error} after {took:?}");
    Ok(())
}

fn dns(server: SocketAddr, name: &str, by: fn(SocketAddr, &[u8]) -> Result<Vec<u8>>) -> Result<()> {
    let answer = by(server, &query(name)?)?;
    println!("{}", first_address(&answer).with_context(|| format!("no A record in {answer:02x?}"))?);
    Ok(())
}

fn dns_by_udp(server: SocketAddr, query: &[u8]) -> Result<Vec<u8>> {
    ask(&connected(server)?, query, |answer| answer.starts_with(&DNS_ID))
}

fn dns_by_tcp(server: SocketAddr, query: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE).context("connect")?;
    limit(&stream)?;
    stream.write_all(&u16::try_from(query.len())?.to_be_bytes())?;
    stream.write_all(query)?;
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(len))];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// A recursive query for one A record (RFC 1035 section 4.1).
fn query(name: &str) -> Result<Vec<u8>> {
    let mut query = DNS_ID.to_vec();
    query.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        query.push(u8::try_from(label.len())?);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    Ok(query)
}

/// The address of the first A record; our own queries hold one question, and its name is not compressed.
fn first_address(answer: &[u8]) -> Option<IpAddr> {
    let count = u16::from_be_bytes([*answer.get(6)?, *answer.get(7)?]);
    let mut at = DNS_HEADER_LEN + answer.get(DNS_HEADER_LEN..)?.iter().position(|byte| *byte == 0)? + 5;
    for _ in 0..count {
        // dnsmasq and every common server answer with a two-byte pointer as the name.
        let record = answer.get(at..at + DNS_RECORD_LEN)?;
        let len = usize::from(u16::from_be_bytes([record[10], record[11]]));
        let value = answer.get(at + DNS_RECORD_LEN..at + DNS_RECORD_LEN + len)?;
        if record[2..4] == [0, 1] {
            return Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into());
        }
        at += DNS_RECORD_LEN + len;
    }
    None
}

fn connected(address: SocketAddr) -> Result<UdpSocket> {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(700)))?;
    Ok(socket)
}

fn limit(stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(())
}

type Sending = thread::JoinHandle<Result<()>>;

fn send_in_background(stream: &TcpStream, seed: u64, len: usize) -> Result<Sending> {
    let mut stream = stream.try_clone()?;
    Ok(thread::spawn(move || {
        let mut pattern = Pattern(seed);
        let mut chunk = vec![0; CHUNK_LEN];
        let mut left = len;
        while left > 0 {
            let part = &mut chunk[..left.min(CHUNK_LEN)];
            pattern.fill(part);
            stream.write_all(part).with_context(|| format!("{left} of {len} bytes not sent"))?;
            left -= part.len();
        }
        Ok(())
    }))
}

fn join(sending: Sending) -> Result<()> {
    sending.join().map_err(|_| anyhow!("the sending thread panicked"))?
}

fn compare(stream: &mut TcpStream, seed: u64, len: usize) -> Result<()> {
    let mut pattern = Pattern(seed);
    let (mut got, mut wanted) = (vec![0; CHUNK_LEN], vec![0; CHUNK_LEN]);
    let mut left = len;
    while left > 0 {
        let part = left.min(CHUNK_LEN);
        stream.read_exact(&mut got[..part]).with_context(|| format!("{left} of {len} bytes missing"))?;
        pattern.fill(&mut wanted[..part]);
        ensure!(got[..part] == wanted[..part], "content differs within {part} bytes of byte {}", len - left);
        left -= part;
    }
    Ok(())
}

/// A reproducible stream of bytes (xorshift64); chunks are multiples of 8, so its split does not show.
struct Pattern(u64);

impl Pattern {
    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_be_bytes()[..word.len()]);
        }
    }
}

/// Longer than wine's sockets have been seen to stall.
const PATIENCE: Duration = Duration::from_secs(40);
/// A refusal comes at once, and the server may be about to listen.
const PAUSE: Duration = Duration::from_millis(100);
const CHUNK_LEN: usize = 64 * 1024;
const GREETING_LEN: usize = 128;
const SERVER_SEED: u64 = 0x5eed_0000_0000_0001;
const CLIENT_SEED: u64 = 0x5eed_0000_0000_0002;
const WHO: &[u8] = b"who";
const GOOD: &[u8] = b"good";
const BAD: &[u8] = b"bad!";
const DNS_ID: [u8; 2] = [0x57, 0x4c];
const DNS_HEADER_LEN: usize = 12;
const DNS_RECORD_LEN: usize = 12;
