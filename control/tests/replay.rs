//! `windlass replay` as people run it. Nothing here needs root.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use windlass_control::capture::packets;
use windlass_control::capture::write::{Direction, PcapngWriter, Record};
use windlass_dataplane::wire::checksum::checksum;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/worked-example.yaml");

/// UDP from a pod of node a to 10.244.2.15, and to 10.244.9.9, which no node has.
fn to(dst: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 244, 0, 14];
    packet.extend(dst);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend([0x9c, 0x40, 0, 53, 0, 8, 0, 0]);
    packet
}

fn write(path: &Path, captured: &[Vec<u8>]) {
    let mut writer = PcapngWriter::new(std::fs::File::create(path).unwrap(), &["windlass0"]).unwrap();
    for (bytes, second) in captured.iter().zip(1_760_000_000..) {
        let at = Duration::from_secs(second);
        let original_len = bytes.len() as u32;
        let direction = Direction::Inbound;
        writer.packet(&Record { interface: 0, at, bytes, original_len, direction, comment: "" }).unwrap();
    }
    writer.finish().unwrap();
}

fn replay(file: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WINDLASS_")) {
        command.env_remove(name);
    }
    command.env_remove("NODE_NAME").arg("replay").arg(file).args(more);
    command.args(["--manifests", EXAMPLE, "--node", "node-a"]).output().unwrap()
}

#[test]
fn a_replay_tells_each_verdict_and_fails_for_a_drop_that_is_not_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("in.pcapng"), folder.path().join("out.pcapng"));
    write(&file, &[to([10, 244, 2, 15]), to([10, 244, 9, 9])]);
    let output = replay(&file, &["--out", out.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for expected in [
        "    1    0.000000 udp 10.244.0.14:40000 > 10.244.2.15:53 len 28\n      SENT\n      to VTEP 192.168.1.51: udp",
        "    2    1.000000 udp 10.244.0.14:40000 > 10.244.9.9:53 len 28\n      DROPPED no_route\n",
        "\n2 packets: 1 sent, 1 dropped\n2 received + 0 generated = 1 sent + 1 dropped\n       1 no_route\n",
    ] {
        assert!(text.contains(expected), "{expected}\nin\n{text}");
    }
    let written = std::fs::read(&out).unwrap();
    let comments: Vec<_> = packets(&written, 9).unwrap().iter().map(|captured| captured.comment).collect();
    assert_eq!(comments, [Some("sent"), None, Some("dropped: no_route")]);

    assert_eq!(replay(&file, &["--allow", "no_route"]).status.code(), Some(0));
    write(&file, &[to([10, 244, 2, 15])]);
    assert_eq!(replay(&file, &[]).status.code(), Some(0));
    let json = replay(&file, &["-o", "json"]).stdout;
    assert!(String::from_utf8(json).unwrap().contains("\"verdict\": \"sent\""));
}

#[test]
fn a_file_that_is_no_capture_is_named() {
    let output = replay(Path::new(EXAMPLE), &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("worked-example.yaml") && said.contains("neither a pcap nor a pcapng"), "{said}");
}

/// What tshark says of each packet of a file, one line each; `None`, said as `SKIPPED: ...`, where there is no tshark.
fn tshark(file: &Path, arguments: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    let vxlan =
        ["-d", "udp.port==4789,vxlan", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"];
    let output =
        command.arg("-r").arg(file).args(vxlan).args(["-o", "tcp.check_checksum:TRUE"]).args(arguments);
    match output.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
        }
        Err(why) => {
            eprintln!("SKIPPED: tshark as a decoder: {why} (Debian: tshark)");
            None
        }
    }
}

#[test]
fn a14_tshark_reads_what_windlass_writes_as_it_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("in.pcapng"), folder.path().join("out.pcapng"));
    write(&file, &[to([10, 244, 2, 15]), to([10, 244, 9, 9]), to([10, 96, 0, 10])]);
    replay(&file, &["--out", out.to_str().unwrap()]);
    let fields =
        ["-T", "fields", "-e", "vxlan.vni", "-e", "ip.dst", "-e", "udp.dstport", "-e", "frame.comment"];
    let Some(lines) = tshark(&out, &fields) else { return };
    let expected = [
        "\t10.244.2.15\t53\tsent",
        "4096\t192.168.1.51,10.244.2.15\t4789,53\t",
        "\t10.244.9.9\t53\tdropped: no_route",
        "\t10.96.0.10\t53\tsent",
    ];
    assert_eq!(lines[..4], expected);
    assert_eq!(lines.len(), 5, "the VIP's packet goes to a backend: {lines:?}");
    let wrong =
        "_ws.malformed or ip.checksum.status == 0 or udp.checksum.status == 0 or tcp.checksum.status == 0";
    assert_eq!(tshark(&out, &["-Y", wrong]), Some(Vec::new()));
}
