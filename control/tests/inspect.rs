//! `windlass tables`, `trace`, `show`, `completions` and `man` as people run them. Nothing here needs root.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/worked-example.yaml");

fn windlass(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WINDLASS_")) {
        command.env_remove(name);
    }
    command.env_remove("NODE_NAME").args(arguments).output().unwrap()
}

fn offline(arguments: &[&str]) -> Output {
    windlass(&[arguments, &["--manifests", EXAMPLE, "--node", "node-a"]].concat())
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[track_caller]
fn ends(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}{}", out(output), err(output));
}

const TABLES: &str = "\
LOCAL
node         node-a
underlay     192.168.1.40 (InternalIP of the Node)
VNI, port    4096, 4789
VTEP MAC     ce:7a:e5:af:6a:e9
addresses    192.168.1.40, 10.244.0.0
pods here    10.244.0.0/24
all pods     10.244.0.0/16
services     10.96.0.0/12
source VIP   169.254.77.1, fd77:6e64:6c61:7373::1
overlay MTU  1450

FDB
NODE    VNI   MAC                VTEP               MAY SEND FROM  PATH MTU
node-b  4096  00:15:5d:3c:3e:3c  192.168.1.51:4789  10.244.2.0/24  -

NEIGHBORS
GATEWAY     VNI   MAC                NODE
10.244.2.0  4096  00:15:5d:3c:3e:3c  node-b

ROUTES
PREFIX           GATEWAY     TO
0.0.0.0/0        -           the host, as outside the overlay
10.244.0.0/24    -           pods of this node
10.244.0.0/32    -           this node itself
10.244.2.0/24    10.244.2.0  VTEP of node-b
192.168.1.40/32  -           this node itself
::/0             -           the host, as outside the overlay

SERVICES
SERVICE                       VIP                    BACKEND            STATE  NODE    NOTE
default/empty:80              tcp 10.106.0.99:80     -                  none   -       no endpoint in any EndpointSlice: refuses every packet
default/kubernetes:https      tcp 10.96.0.1:443      192.168.1.40:6443  ready  -
default/web:80                tcp 10.106.228.152:80  10.244.0.14:8080   ready  node-a
                                                     10.244.2.7:8080    ready  node-b
kube-system/kube-dns:dns      udp 10.96.0.10:53      10.244.0.2:53      ready  node-a
                                                     10.244.2.2:53      ready  node-b
kube-system/kube-dns:dns-tcp  tcp 10.96.0.10:53      10.244.0.2:53      ready  node-a
                                                     10.244.2.2:53      ready  node-b
";

#[test]
fn tables_are_printed_on_a_machine_that_is_not_the_node() {
    let output = offline(&["tables"]);
    ends(&output, 0);
    assert_eq!(out(&output), TABLES);
    assert!(err(&output).contains("this host has no underlay address of node node-a"), "{}", err(&output));
}

#[test]
fn tables_are_filtered_and_written_as_json_and_yaml() {
    let json = offline(&["tables", "services", "--service", "web", "-o", "json"]);
    let value: serde_json::Value = serde_json::from_str(&out(&json)).unwrap();
    assert_eq!(value.as_array().unwrap().len(), 1);
    assert_eq!(value[0]["backends"][1]["addr"], "10.244.2.7:8080");
    assert_eq!(value[0]["backends"][1]["state"], "ready");
    let yaml = out(&offline(&["tables", "services", "--service", "web", "-o", "yaml"]));
    let again: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(again, value, "{yaml}");
    let by_addr = out(&offline(&["tables", "routes", "--addr", "10.244.2.7"]));
    assert_eq!(by_addr.lines().count(), 2, "{by_addr}");
    assert!(out(&offline(&["tables", "fdb", "--addr", "203.0.113.1"])).contains("no FDB entry"));
    let whole = out(&offline(&["tables", "-o", "json"]));
    let whole: serde_json::Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(whole["local"]["vni"], 4096);
}

#[test]
fn a_filter_that_matches_nothing_is_named_and_one_that_does_not_apply_is_refused() {
    let none = out(&offline(&["tables", "services", "--service", "nope"]));
    assert_eq!(none, "no service matches --service nope\n");
    for (arguments, expected) in [
        (
            &["show", "fdb", "--state", "established"][..],
            "--state does not apply to fdb, only to connections",
        ),
        (&["show", "counters", "--service", "web"], "only to services, connections; leave it out"),
        (&["tables", "fdb", "--service", "web"], "--service does not apply to fdb"),
        (&["tables", "local", "--addr", "10.0.0.1"], "--addr does not apply to local"),
    ] {
        let output = windlass(arguments);
        ends(&output, 2);
        assert!(err(&output).contains(expected), "{arguments:?}: {}", err(&output));
    }
}

#[test]
fn tables_want_manifests_and_a_node() {
    let output = windlass(&["tables"]);
    ends(&output, 2);
    assert!(err(&output).contains("--manifests is missing; give files"), "{}", err(&output));
    let output = windlass(&["tables", "--manifests", EXAMPLE, "--node", "node-z"]);
    ends(&output, 2);
    assert!(err(&output).contains("which has node-a, node-b"), "{}", err(&output));
}

const TRACE: &str = "\
PACKET  tcp 10.244.0.14:40000 > 10.96.0.1:443 flags syn len 40
  comes from a pod or the host, through the device
   1. service      default/kubernetes:https at tcp 10.96.0.1:443: 1 ready, 0 draining
   2. backend      192.168.1.40:6443, the only one, on this node
   3. route        192.168.1.40/32 -> the host: this node, or outside the overlay
   4. translation  becomes tcp 169.254.77.1:40000 > 192.168.1.40:6443; the source becomes the source VIP, so that the answer comes back here
  SENT: into the device, for the host to deliver or to route
  why: what the host does with it is the host's: its firewall and routes decide

REPLY  tcp 192.168.1.40:6443 > 169.254.77.1:40000 flags syn|ack len 40
  comes from a pod or the host, through the device
   1. connection   known: tcp 10.244.0.14:40000 > 10.96.0.1:443, answered by tcp 192.168.1.40:6443 > 169.254.77.1:40000; the packet goes in its reply direction
   2. route        10.244.0.0/24 -> a pod of this node
   3. translation  becomes tcp 10.96.0.1:443 > 10.244.0.14:40000; a reply: the VIP is its source again
  SENT: into the device, for a pod of this node
";

#[test]
fn a_trace_tells_both_ways_and_exits_with_0() {
    let output = offline(&["trace", "tcp 10.244.0.14:40000 > 10.96.0.1:443"]);
    ends(&output, 0);
    assert_eq!(out(&output), TRACE);
    let words = offline(&["trace", "tcp", "10.244.0.14:40000", ">", "10.96.0.1:443"]);
    assert_eq!(out(&words), TRACE);
}

#[test]
fn a_trace_of_a_dead_vip_says_why_and_exits_with_1() {
    let output = offline(&["trace", "tcp 10.244.0.14:40000 > 10.106.0.99:80"]);
    ends(&output, 1);
    let text = out(&output);
    assert!(
        text.contains("REJECTED no_endpoint: The service has no endpoint. The sender gets a TCP RST."),
        "{text}"
    );
    assert!(text.contains("why: Service default/empty has no endpoint for port 80"), "{text}");
    let json = out(&offline(&["trace", "udp 10.244.0.14:1 > 10.96.9.9:53", "-o", "json"]));
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&value["forward"]["end"], &value["forward"]["reason"]),
        (&"dropped".into(), &"no_such_service".into())
    );
}

#[test]
fn a_trace_reads_hex_and_captures_and_a_packet_from_the_underlay() {
    let ip = "4500001c00004000401100000af402070af4000e0005005000080000";
    let output = offline(&["trace", "--hex", ip, "--decap", "--from", "192.168.1.51"]);
    ends(&output, 0);
    assert!(out(&output).starts_with("PACKET  udp 10.244.2.7:5 > 10.244.0.14:80 len 28"), "{}", out(&output));

    let bytes: Vec<u8> = ip
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let header =
        [0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 65535, 101, 0, 0, 28, 28].map(u32::to_be_bytes).concat();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [header, bytes].concat()).unwrap();
    let name = file.path().to_str().unwrap();
    let captured = offline(&["trace", "--pcap", &format!("{name}:1"), "--decap", "--from", "192.168.1.51"]);
    assert_eq!(out(&captured), out(&output));
    let beyond = offline(&["trace", "--pcap", &format!("{name}:2")]);
    ends(&beyond, 1);
    assert!(err(&beyond).contains("it has 1 packets, and number 2 is asked for"), "{}", err(&beyond));
}

#[test]
fn a_wrong_trace_exits_with_2_and_says_how_to_write_it() {
    for (arguments, expected) in [
        (&["trace", "tcp 10.0.0.1"][..], "write (tcp|udp|icmp|icmpv6) SRC[:PORT] > DST[:PORT]"),
        (&["trace", "tcp 10.0.0.1 > 10.0.0.2"], "tcp needs a destination port: 10.0.0.2:80"),
        (&["trace", "--hex", "zz"], "not pairs of hexadecimal digits"),
        (&["trace"], "or --hex DIGITS, or --pcap FILE[:N]"),
        (&["trace", "--pcap", "f:0"], "--pcap f:0: packets are counted from 1; give f:1"),
        (&["trace", "udp 10.0.0.1 > 10.0.0.2:5", "--decap"], "--decap needs --from"),
        (&["trace", "udp 10.0.0.1 > 10.0.0.2:5", "--from", "10.0.0.9"], "--decap"),
    ] {
        let output = offline(arguments);
        ends(&output, 2);
        assert!(err(&output).contains(expected), "{arguments:?}: {}", err(&output));
    }
}

#[test]
fn nobody_on_the_socket_is_told_with_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("a.sock");
    let socket = if cfg!(windows) { r"\\.\pipe\windlass-nobody" } else { socket.to_str().unwrap() };
    let output = windlass(&["show", "drops", "--admin-socket", socket]);
    ends(&output, 1);
    assert!(err(&output).contains(&format!("nothing answers on {socket}")), "{}", err(&output));
    assert!(err(&output).contains("is `windlass run` running on this node?"), "{}", err(&output));
    let output = windlass(&["trace", "udp 10.0.0.1 > 10.0.0.2:5", "--admin-socket", socket]);
    ends(&output, 1);
    assert!(err(&output).contains("to trace without a running node, give --manifests"), "{}", err(&output));
}

#[test]
fn completions_and_the_man_page_know_every_subcommand() {
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let output = windlass(&["completions", shell]);
        ends(&output, 0);
        for word in ["tables", "show", "trace", "admin-socket"] {
            assert!(out(&output).contains(word), "{shell}: {word}");
        }
    }
    let page = out(&windlass(&["man"]));
    for word in ["WINDLASS TRACE", "WINDLASS SHOW", "\\-\\-decap"] {
        assert!(page.contains(word), "{word} in {page}");
    }
}
