//! L2 segments over real TAP devices: two Windlass nodes and a node with the kernel's vxlan devices in bridges.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use windlass_tests::binary;
use windlass_tests::netns::{Netns, scratch_folder};
use windlass_tests::process::{Guarded, run, wait_until};
use windlass_tests::traffic::PORT;

use crate::{TCP_BYTES, traffic};

/// Long enough for a machine under load.
const PATIENCE: Duration = Duration::from_secs(60);

/// Underlay addresses of the three nodes; the last is the kernel's.
const UNDERLAYS: [&str; 3] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];

/// VNI and name: blue has static entries, red learns. Both have the same MACs and addresses.
const SEGMENTS: [(u32, &str); 2] = [(100, "blue"), (200, "red")];

const MANIFESTS: &str = r#"
apiVersion: windlass.dev/v1alpha1
kind: Segment
metadata: {name: blue}
spec:
  vni: 100
  vteps: [192.0.2.1, 192.0.2.2, 192.0.2.3]
  stations:
  - {mac: "02:00:00:00:00:01", ips: [10.0.0.1, "fd00::1"], vtep: 192.0.2.1}
  - {mac: "02:00:00:00:00:02", ips: [10.0.0.2, "fd00::2"], vtep: 192.0.2.2}
  - {mac: "02:00:00:00:00:03", ips: [10.0.0.3, "fd00::3"], vtep: 192.0.2.3}
---
apiVersion: windlass.dev/v1alpha1
kind: Segment
metadata: {name: red}
spec:
  vni: 200
  vteps: [192.0.2.1, 192.0.2.2, 192.0.2.3]
  learning: {stationsPerVtep: 4, seconds: 10}
"#;

/// Three nodes on a wire, two segments through them, and a station of each segment behind each node.
struct Stand {
    _wire: Netns,
    nodes: Vec<Netns>,
    /// By segment, then by node.
    stations: Vec<Vec<Netns>>,
    runs: Vec<Guarded>,
    folder: TempDir,
}

impl Stand {
    fn new(flags: &[&str]) -> Result<Self> {
        let wire = Netns::new("wire")?;
        wire.ip("link add br0 type bridge mcast_snooping 0")?;
        wire.ip("link set br0 up")?;
        let mut nodes = Vec::new();
        for (number, underlay) in (1..).zip(UNDERLAYS) {
            let node = Netns::new("node")?;
            // The bridges themselves are to say nothing: only stations are counted.
            node.sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
            wire.ip(&format!("link add p{number} type veth peer name eth0 netns {}", node.name()))?;
            wire.ip(&format!("link set p{number} master br0 up"))?;
            node.ip(&format!("addr add {underlay}/24 dev eth0"))?;
            node.ip("link set eth0 up")?;
            nodes.push(node);
        }
        let folder = scratch_folder("segments")?;
        fs::write(folder.path().join("segments.yaml"), MANIFESTS)?;
        let mut stand = Self { _wire: wire, nodes, stations: Vec::new(), runs: Vec::new(), folder };
        for number in 0..2 {
            stand.run(number, flags)?;
        }
        stand.kernel_node()?;
        for (vni, _) in SEGMENTS {
            let stations = (0..3).map(|node| stand.station(vni, node)).collect::<Result<_>>()?;
            stand.stations.push(stations);
        }
        Ok(stand)
    }

    /// Starts Windlass on a node, and waits for its devices.
    fn run(&mut self, number: usize, flags: &[&str]) -> Result<()> {
        let log = fs::File::create(self.folder.path().join(format!("log{number}")))?;
        let mut command = self.nodes[number].command(binary::windlass()?);
        command.args(["run", "--device-kind", "tap", "--metrics", "off", "--manifests"]);
        command.arg(self.folder.path().join("segments.yaml")).arg("--admin-socket").arg(self.socket(number));
        command.arg("--state-dir").arg(self.folder.path().join(format!("state{number}"))).args(flags);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.runs.push(Guarded::spawn(&mut command)?);
        let is_up = wait_until("the segments' devices and the admin socket", PATIENCE, || {
            let links = self.nodes[number].ip("-o link")?;
            let are_up = SEGMENTS
                .iter()
                .all(|(vni, _)| links.contains(&format!(" seg{vni}: <BROADCAST,MULTICAST,UP")));
            Ok(are_up && self.ask(number, &["show", "segments"]).is_ok())
        });
        is_up.with_context(|| {
            fs::read_to_string(self.folder.path().join(format!("log{number}"))).unwrap_or_default()
        })
    }

    /// The third node: a vxlan device for each segment, flooding to both others, as a port of a learning bridge.
    fn kernel_node(&self) -> Result<()> {
        let node = &self.nodes[2];
        for (vni, _) in SEGMENTS {
            node.ip(&format!("link add vx{vni} type vxlan id {vni} local 192.0.2.3 dstport 4789"))?;
            bridge(node, vni, &format!("vx{vni}"))?;
            for other in &UNDERLAYS[..2] {
                node.exec(&format!("bridge fdb append 00:00:00:00:00:00 dev vx{vni} dst {other}"))?;
            }
        }
        Ok(())
    }

    fn station(&self, vni: u32, node: usize) -> Result<Netns> {
        let (host, number) = (&self.nodes[node], node + 1);
        if node < 2 {
            bridge(host, vni, &format!("seg{vni}"))?;
        }
        let station = Netns::new("station")?;
        let name = station.name();
        host.ip(&format!(
            "link add v{vni} type veth peer name eth0 address 02:00:00:00:00:0{number} netns {name}"
        ))?;
        host.ip(&format!("link set v{vni} master br{vni} up"))?;
        station.ip("link set eth0 mtu 1450 up")?;
        station.ip(&format!("addr add 10.0.0.{number}/24 dev eth0"))?;
        station.ip(&format!("addr add fd00::{number}/64 dev eth0 nodad"))?;
        Ok(station)
    }

    fn socket(&self, number: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("admin{number}.sock"))
    }

    fn ask(&self, number: usize, question: &[&str]) -> Result<String> {
        let mut command = std::process::Command::new(binary::windlass()?);
        run(command.args(question).arg("--admin-socket").arg(self.socket(number)))
    }

    /// A metric without labels.
    fn counted(&self, number: usize, counter: &str) -> Result<u64> {
        let all = self.ask(number, &["show", "counters"])?;
        let line = all.lines().find(|line| line.split_whitespace().next() == Some(counter));
        let value = line.and_then(|line| line.split_whitespace().last()).context("no such counter")?;
        Ok(value.parse()?)
    }

    fn assert_balanced(&self) -> Result<()> {
        for number in 0..2 {
            let limit = Duration::from_secs(20);
            wait_until("received + generated = sent + dropped", limit, || {
                Ok(self.counted(number, "windlass_unaccounted_packets")? == 0)
            })?;
        }
        Ok(())
    }

    fn stop(mut self) -> Result<()> {
        for mut process in self.runs.drain(..) {
            process.signal("TERM")?;
            ensure!(process.wait(PATIENCE)? == 0, "an orderly end");
        }
        for (node, (vni, _)) in self.nodes[..2].iter().zip(SEGMENTS) {
            ensure!(node.ip(&format!("link show seg{vni}")).is_err(), "the devices go with their program");
        }
        Ok(())
    }
}

fn bridge(node: &Netns, vni: u32, port: &str) -> Result<()> {
    node.ip(&format!("link add br{vni} type bridge mcast_snooping 0"))?;
    node.ip(&format!("link set {port} master br{vni} up"))?;
    node.ip(&format!("link set br{vni} up")).map(drop)
}

fn ping(from: &Netns, to: &str) -> Result<()> {
    // The first packets may go while bridges and neighbors are still being made.
    wait_until(&format!("an answer of {to}"), PATIENCE, || {
        Ok(from.exec(&format!("ping -q -c 1 -W 2 {to}")).is_ok())
    })
}

/// Counts the broadcast ARP requests that a node sends to others: from the UDP header on, the inner frame begins after 16
/// bytes and its EtherType stands after 28.
fn count_arp_on_the_wire(node: &Netns) -> Result<()> {
    let rules = "add table inet arps; add chain inet arps out { type filter hook output priority 0; }; add rule inet \
                 arps out udp dport 4789 @th,128,48 0xffffffffffff @th,224,16 0x0806 counter";
    run(node.command("nft").arg(rules)).map(drop)
}

fn arps_on_the_wire(node: &Netns) -> Result<u64> {
    let shown = node.exec("nft list chain inet arps out")?;
    let (_, counted) = shown.split_once("counter packets ").context("a counter")?;
    Ok(counted.split_whitespace().next().context("packets")?.parse()?)
}

#[test]
fn a9_a11_stations_of_windlass_and_of_a_kernel_bridge_reach_each_other_in_two_segments() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let (stand, traffic) = (Stand::new(&[])?, traffic());
    for stations in &stand.stations {
        for (from, station) in stations.iter().enumerate() {
            for to in (1..=3).filter(|to| *to != from + 1) {
                ping(station, &format!("10.0.0.{to}"))?;
                ping(station, &format!("fd00::{to}"))?;
            }
            station.exec("ping -q -c 1 -W 5 -s 1422 -M do 10.0.0.1")?;
        }
    }
    // TCP with contents compared: superpackets from TAP to TAP, and to and from the kernel's vxlan.
    for stations in &stand.stations {
        for (client, server, addr) in [(0, 1, "10.0.0.2"), (0, 2, "fd00::3"), (2, 1, "10.0.0.2")] {
            let _server = traffic.serve(&stations[server], addr.parse()?, PORT)?;
            traffic.exchange(&stations[client], addr.parse()?, PORT, TCP_BYTES)?;
        }
    }
    // Broadcast and multicast: both other stations answer.
    let (asker, others) = (&stand.stations[1][0], &stand.stations[1][1..]);
    for other in others {
        other.sysctl("net.ipv4.icmp_echo_ignore_broadcasts", "0")?;
    }
    for (target, answers) in [
        ("-b 10.0.0.255", ["from 10.0.0.2", "from 10.0.0.3"]),
        ("-I eth0 ff02::1", ["from fe80::ff:fe00:2", "from fe80::ff:fe00:3"]),
    ] {
        let mut heard = String::new();
        wait_until("answers of both others", PATIENCE, || {
            heard += &asker.exec(&format!("ping -c 3 -i 0.3 -W 2 {target}")).unwrap_or_default();
            Ok(answers.iter().all(|answer| heard.contains(answer)))
        })?;
    }
    stand.assert_balanced()?;
    stand.stop()
}

#[test]
fn a8_segments_with_the_same_macs_and_addresses_never_hear_each_other() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let stand = Stand::new(&["--workers", "2"])?;
    ping(&stand.stations[0][0], "10.0.0.2")?;
    ping(&stand.stations[1][0], "10.0.0.2")?;
    // On red nobody has that address; on blue somebody has.
    stand.stations[0][1].ip("addr add 10.0.0.77/24 dev eth0")?;
    ping(&stand.stations[0][0], "10.0.0.77")?;
    ensure!(stand.stations[1][0].exec("ping -q -c 2 -W 1 10.0.0.77").is_err(), "red heard blue");
    stand.assert_balanced()?;
    stand.stop()
}

#[test]
fn arp_and_nd_of_known_stations_do_not_cross_the_wire() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let stand = Stand::new(&[])?;
    count_arp_on_the_wire(&stand.nodes[0])?;
    let (blue, red) = (&stand.stations[0][0], &stand.stations[1][0]);
    for addr in ["10.0.0.2", "10.0.0.3", "fd00::2", "fd00::3"] {
        ping(blue, addr)?;
    }
    assert_eq!(arps_on_the_wire(&stand.nodes[0])?, 0, "all of them were answered by the first node");
    ensure!(stand.counted(0, "windlass_neighbors_answered_total")? >= 4, "by ARP and ND");
    ping(red, "10.0.0.2")?;
    ensure!(arps_on_the_wire(&stand.nodes[0])? >= 2, "red has no entries: its questions go to both others");
    stand.assert_balanced()?;
    stand.stop()
}

#[test]
fn e6_what_red_learns_moves_ages_is_bounded_and_shown_and_blue_learns_nothing() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let stand = Stand::new(&[])?;
    for stations in &stand.stations {
        ping(&stations[0], "10.0.0.3")?;
    }
    let fdb = stand.ask(0, &["show", "fdb"])?;
    let learned = |fdb: &str| fdb.lines().filter(|line| line.contains("learned")).count();
    ensure!(
        fdb.lines()
            .any(|line| line.contains("red") && line.contains("192.0.2.3") && line.contains("learned"))
    );
    ensure!(!fdb.lines().any(|line| line.contains("blue") && line.contains("learned")), "{fdb}");
    // Many made-up sources from behind the kernel's node: four of them are learned, and all are delivered.
    let station = &stand.stations[1][2];
    for number in 10..18 {
        station.ip(&format!("link set eth0 address 02:00:00:00:01:{number}"))?;
        // Nobody answers, but everybody hears it.
        let _ = station.exec("ping -q -c 1 -W 1 -b 10.0.0.255");
    }
    ping(station, "10.0.0.1")?;
    ensure!(stand.counted(0, "windlass_stations_refused_total")? > 0, "more than four were counted");
    let of_third =
        |fdb: &str| fdb.lines().filter(|line| line.contains("192.0.2.3") && line.contains("learned")).count();
    let fdb = stand.ask(0, &["show", "fdb"])?;
    ensure!((1..=4).contains(&of_third(&fdb)), "{fdb}");
    // A station that moves from the third node to the second is followed.
    station.ip("link set eth0 down")?;
    let second = &stand.stations[1][1];
    second.ip("link set eth0 address 02:00:00:00:01:10")?;
    wait_until("the moved station", PATIENCE, || {
        ping(second, "10.0.0.1")?;
        let fdb = stand.ask(0, &["show", "fdb"])?;
        Ok(fdb.lines().any(|line| line.contains("02:00:00:00:01:10") && line.contains("192.0.2.2")))
    })?;
    // Silence is forgotten: 10 s, and at most 64 more until every part has been swept.
    for stations in &stand.stations[1] {
        stations.ip("link set eth0 down")?;
    }
    wait_until("silent stations to be forgotten", Duration::from_secs(180), || {
        Ok(learned(&stand.ask(0, &["show", "fdb"])?) == 0)
    })?;
    stand.assert_balanced()?;
    stand.stop()
}

#[test]
fn e6_stations_of_static_entries_cannot_be_spoofed_and_manifests_are_followed() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let stand = Stand::new(&[])?;
    ping(&stand.stations[0][0], "10.0.0.2")?;
    // The third node's station takes the second's MAC.
    let third = &stand.stations[0][2];
    third.ip("link set eth0 address 02:00:00:00:00:02")?;
    let _ = third.exec("ping -q -c 2 -W 1 10.0.0.1");
    wait_until("spoofed frames to be counted", PATIENCE, || {
        let _ = third.exec("ping -q -c 1 -W 1 10.0.0.1");
        Ok(stand.ask(0, &["show", "drops"])?.contains("source_mac_spoofed"))
    })?;
    ping(&stand.stations[0][0], "10.0.0.2")?;
    // The entry moves with the station when the manifest says so.
    let moved = MANIFESTS.replace(
        "ips: [10.0.0.2, \"fd00::2\"], vtep: 192.0.2.2",
        "ips: [10.0.0.2, \"fd00::2\"], vtep: 192.0.2.3",
    );
    fs::write(stand.folder.path().join("segments.yaml"), moved)?;
    stand.stations[0][1].ip("link set eth0 down")?;
    third.ip("addr add 10.0.0.2/24 dev eth0")?;
    ping(&stand.stations[0][0], "10.0.0.2")?;
    let said =
        stand.ask(0, &["trace", "--packet-vni", "100", "frame 02:00:00:00:00:01 > 02:00:00:00:00:02"])?;
    ensure!(said.contains("SENT") && said.contains("192.0.2.3"), "{said}");
    stand.stop()
}
