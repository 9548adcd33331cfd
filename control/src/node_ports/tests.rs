//! Relays on loopback; through the overlay see tests/tests/windows.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::*;

const LOOPBACKS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// However busy the machine is.
const LIMIT: Duration = Duration::from_secs(60);

fn port(protocol: Protocol, listen: SocketAddr, relay_to: SocketAddr) -> NodePort {
    NodePort { service: "default/web:http".to_owned(), protocol, listen, relay_to }
}

/// An address that nobody listens on.
fn free(protocol: Protocol, addr: IpAddr) -> SocketAddr {
    match protocol {
        Protocol::TCP => TcpListener::bind((addr, 0)).unwrap().local_addr().unwrap(),
        _ => UdpSocket::bind((addr, 0)).unwrap().local_addr().unwrap(),
    }
}

/// A backend that sends `name` and everything it is sent back, once its client has ended, connection after connection.
fn tcp_backend(addr: IpAddr, name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((addr, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let (mut stream, mut said) = (stream.unwrap(), name.as_bytes().to_vec());
                let _ = stream.read_to_end(&mut said);
                let _ = stream.write_all(&said);
            });
        }
    });
    at
}

/// A backend that sends `name` and the datagram back.
fn udp_backend(addr: IpAddr, name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind((addr, 0)).unwrap();
    let at = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, client)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&[name.as_bytes(), &buffer[..len]].concat(), client);
        }
    });
    at
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn udp_client(to: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind((to.ip(), 0)).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client.connect(to).unwrap();
    client
}

fn finish(mut stream: TcpStream) -> Vec<u8> {
    stream.shutdown(Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    heard
}

fn exchange(client: &UdpSocket, said: &[u8]) -> Vec<u8> {
    client.send(said).unwrap();
    let mut buffer = [0; 2048];
    let len = client.recv(&mut buffer).unwrap();
    buffer[..len].to_vec()
}

#[test]
fn tcp_is_relayed_whole_in_both_directions_and_ends_by_halves() {
    let mut relays = NodePortRelays::start().unwrap();
    for addr in LOOPBACKS {
        let listen = free(Protocol::TCP, addr);
        let wanted = [port(Protocol::TCP, listen, tcp_backend(addr, "web: "))];
        assert_eq!(relays.follow(&wanted), [""; 0]);
        let said: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
        let mut client = connect(listen);
        client.write_all(&said).unwrap();
        assert!(finish(client) == [b"web: ".to_vec(), said].concat());
    }
}

#[test]
fn a_backend_that_cannot_be_had_resets_the_client() {
    let mut relays = NodePortRelays::start().unwrap();
    let listen = free(Protocol::TCP, LOOPBACKS[0]);
    relays.follow(&[port(Protocol::TCP, listen, free(Protocol::TCP, LOOPBACKS[0]))]);
    let error = connect(listen).read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn each_udp_client_gets_its_own_replies_from_the_node_port() {
    let mut relays = NodePortRelays::start().unwrap();
    for addr in LOOPBACKS {
        let listen = free(Protocol::UDP, addr);
        relays.follow(&[port(Protocol::UDP, listen, udp_backend(addr, "dns: "))]);
        let clients: Vec<_> = (0..20).map(|_| udp_client(listen)).collect();
        for round in 0..3 {
            for (number, client) in clients.iter().enumerate() {
                let said = format!("{number} {round}");
                assert_eq!(exchange(client, said.as_bytes()), format!("dns: {said}").as_bytes());
            }
        }
    }
}

#[test]
fn relays_follow_what_is_wanted_and_connections_live_on() {
    let mut relays = NodePortRelays::start().unwrap();
    let addr = LOOPBACKS[0];
    let (tcp, udp) = (free(Protocol::TCP, addr), free(Protocol::UDP, addr));
    let old = [
        port(Protocol::TCP, tcp, tcp_backend(addr, "old ")),
        port(Protocol::UDP, udp, udp_backend(addr, "old ")),
    ];
    let new = [
        port(Protocol::TCP, tcp, tcp_backend(addr, "new ")),
        port(Protocol::UDP, udp, udp_backend(addr, "new ")),
    ];
    assert_eq!(relays.follow(&old), [""; 0]);
    let client = udp_client(udp);
    assert_eq!(exchange(&client, b"datagram"), b"old datagram");
    let mut lives_on = connect(tcp);
    lives_on.write_all(b"stream").unwrap();
    // Relayed by the time that the next one has been.
    assert_eq!(finish(connect(tcp)), b"old ");
    follow_until_done(&mut relays, &new);
    assert_eq!(finish(connect(tcp)), b"new ");
    assert_eq!(exchange(&client, b"datagram"), b"new datagram");
    assert_eq!(finish(lives_on), b"old stream");
    relays.follow(&[]);
    assert_eq!(relays.count(), 0);
    until("nobody listens any more", || TcpStream::connect(tcp).is_err());
}

#[test]
fn a_port_that_is_taken_is_named_and_had_when_it_is_free() {
    let mut relays = NodePortRelays::start().unwrap();
    let holder = TcpListener::bind((LOOPBACKS[0], 0)).unwrap();
    let listen = holder.local_addr().unwrap();
    let wanted = [port(Protocol::TCP, listen, tcp_backend(LOOPBACKS[0], ""))];
    let refused = relays.follow(&wanted);
    assert!(refused[0].starts_with(&format!("Service default/web:http: cannot listen on tcp {listen}")));
    drop(holder);
    follow_until_done(&mut relays, &wanted);
    assert_eq!(finish(connect(listen)), b"");
}

#[test]
fn connections_beyond_the_bound_wait_for_their_turn() {
    let mut relays = NodePortRelays::start().unwrap();
    relays.connections = Arc::new(Semaphore::new(2));
    let listen = free(Protocol::TCP, LOOPBACKS[0]);
    relays.follow(&[port(Protocol::TCP, listen, tcp_backend(LOOPBACKS[0], "web"))]);
    let mut clients: Vec<_> = (0..4).map(|_| connect(listen)).collect();
    while !clients.is_empty() {
        assert_eq!(finish(clients.remove(0)), b"web");
    }
}

/// A socket that has been let go is closed a little later, by the relays' own thread.
fn follow_until_done(relays: &mut NodePortRelays, wanted: &[NodePort]) {
    until("every port is listened on", || relays.follow(wanted).is_empty());
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut looks = (0..6_000).map(|_| thread::sleep(Duration::from_millis(10)));
    assert!(is_so() || looks.any(|()| is_so()), "{what}");
}
