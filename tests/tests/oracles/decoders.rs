//! etherparse, tshark and scapy read what the engine emits as it was meant (A14).

use std::path::Path;
use std::process::Command;

use etherparse::PacketBuilder;
use windlass_dataplane::engine::Settings;
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::{
    EngineNode, MAC_A, MAC_A6, MAC_B, MAC_B6, Sent, VNI, addr, flow, worked_example,
};
use windlass_tests::packets::{Tcp, opened, ping, tcp, udp, verified_flow, with_tos};
use windlass_tests::{netns, process, skipped};

/// One datagram of the engine, and what a decoder should see in it.
struct Emitted {
    sent: Sent,
    /// Inner source, destination, protocol and ports.
    inner: (String, String, u8, u16, u16),
}

fn emitted() -> Vec<Emitted> {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    let [pod, pod6] = ["10.244.0.14:40000", "[fd00:10:244::14]:40000"];
    let ends = [
        (pod, "10.244.2.15:80", "10.244.2.15:80"),
        (pod, "10.96.0.21:80", "10.244.2.15:8080"),
        (pod6, "[fd00:10:244:2::15]:80", "[fd00:10:244:2::15]:80"),
        (pod6, "[fd00:10:96::21]:80", "[fd00:10:244:2::15]:8080"),
    ];
    let mut all = Vec::new();
    for (src, dst, seen_dst) in ends {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            let (asked, seen) = (flow(protocol, src, dst), flow(protocol, src, seen_dst));
            for payload in [&b""[..], b"x", &[0xff; 1_000]] {
                let packet = match protocol {
                    Protocol::TCP => tcp(&asked, Tcp::Syn, payload),
                    _ => udp(&asked, payload),
                };
                let outcome = node.encap(&with_tos(packet, 0x2a));
                let ports = (seen.src_port, seen.dst_port);
                let inner = (seen.src.to_string(), seen.dst.to_string(), protocol.0, ports.0, ports.1);
                // The IPv6 service has no UDP port.
                all.extend(outcome.datagrams.into_iter().map(|sent| Emitted { sent, inner: inner.clone() }));
            }
        }
    }
    let echo = ping(addr("10.244.0.14"), addr("10.244.2.15"), 7);
    let inner = ("10.244.0.14".to_owned(), "10.244.2.15".to_owned(), 1, 0, 0);
    all.extend(node.encap(&echo).datagrams.into_iter().map(|sent| Emitted { sent, inner: inner.clone() }));
    assert!(all.len() > 20);
    all
}

impl Emitted {
    fn macs(&self) -> [&'static str; 2] {
        if self.inner.0.contains(':') { [MAC_B6, MAC_A6] } else { [MAC_B, MAC_A] }
    }

    /// The datagram as it would stand on the wire.
    fn frame(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([192, 168, 1, 40], [192, 168, 1, 51], 64)
            .udp(49_152 + self.sent.source_port % 16, self.sent.remote.port())
            .write(&mut frame, &self.sent.payload)
            .unwrap();
        frame
    }
}

/// Writes a capture (pcap, LINKTYPE_ETHERNET).
fn write_capture(to: &Path, emitted: &[Emitted]) {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for frame in emitted.iter().map(Emitted::frame) {
        file.extend(words(&[0, 0, frame.len() as u32, frame.len() as u32]));
        file.extend(frame);
    }
    std::fs::write(to, file).unwrap();
}

#[test]
fn a14_etherparse_reads_what_the_engine_emits_as_it_was_meant() {
    for emitted in emitted() {
        let opened = opened(&emitted.sent.payload);
        assert_eq!(opened.header, [8, 0, 0, 0, 0, (VNI >> 8) as u8, VNI as u8, 0]);
        assert_eq!([opened.dst.to_string(), opened.src.to_string()], emitted.macs());
        let (src, dst, protocol, src_port, dst_port) = emitted.inner;
        if protocol != 1 {
            let flow = verified_flow(&opened.inner);
            let read =
                (flow.src.to_string(), flow.dst.to_string(), flow.protocol.0, flow.src_port, flow.dst_port);
            assert_eq!(read, (src, dst, protocol, src_port, dst_port));
        }
    }
}

#[test]
fn a14_tshark_reads_what_the_engine_emits_as_it_was_meant() {
    if !netns::on_path("tshark") {
        return skipped("`tshark` is not installed (Debian: tshark)");
    }
    let folder = netns::scratch_folder("tshark").unwrap();
    let (file, emitted) = (folder.path().join("emitted.pcap"), emitted());
    write_capture(&file, &emitted);
    let tshark = |words: &[&str]| {
        let mut command = Command::new("tshark");
        let checks = ["ip", "udp", "tcp"].map(|protocol| format!("{protocol}.check_checksum:TRUE"));
        command.args(["-n", "-r"]).arg(&file).args(checks.iter().flat_map(|check| ["-o", check]));
        process::run(command.args(words)).unwrap()
    };
    let fields = [
        "vxlan.vni",
        "eth.dst",
        "eth.src",
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
        "tcp.dstport",
        "udp.dstport",
    ];
    let wanted = fields.iter().flat_map(|field| ["-e", field]);
    let read = tshark(&["-T", "fields", "-E", "occurrence=l"].into_iter().chain(wanted).collect::<Vec<_>>());
    let expected = emitted.iter().map(|emitted| {
        let ([dst_mac, src_mac], (src, dst, protocol, _, dst_port)) = (emitted.macs(), &emitted.inner);
        let outer = ("192.168.1.40", "192.168.1.51");
        let v6 = src.contains(':');
        let (v4, v6) = if v6 { (outer, (&**src, &**dst)) } else { ((&**src, &**dst), ("", "")) };
        let tcp = if *protocol == 6 { dst_port.to_string() } else { String::new() };
        let udp = if *protocol == 17 { *dst_port } else { 4_789 };
        format!("{VNI}\t{dst_mac}\t{src_mac}\t{}\t{}\t{}\t{}\t{tcp}\t{udp}", v4.0, v4.1, v6.0, v6.1)
    });
    assert_eq!(read.lines().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    let wrong =
        "_ws.malformed or ip.checksum.status == 0 or udp.checksum.status == 0 or tcp.checksum.status == 0";
    assert_eq!(tshark(&["-Y", wrong]), "");
}

#[test]
fn a14_scapy_reads_what_the_engine_emits_as_it_was_meant() {
    if process::run(Command::new("python3").args(["-c", "import scapy.all"])).is_err() {
        return skipped("scapy is not installed (pip install scapy)");
    }
    let folder = netns::scratch_folder("scapy").unwrap();
    let (file, emitted) = (folder.path().join("emitted.pcap"), emitted());
    write_capture(&file, &emitted);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/scapy_decode.py");
    let read = process::run(Command::new("python3").arg(script).arg(&file)).unwrap();
    let expected = emitted.iter().map(|emitted| {
        let ([dst_mac, src_mac], (src, dst, protocol, src_port, dst_port)) = (emitted.macs(), &emitted.inner);
        format!("8 {VNI} {dst_mac} {src_mac} {src} {dst} {protocol} {src_port} {dst_port} right")
    });
    assert_eq!(read.lines().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}
