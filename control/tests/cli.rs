//! The built binary with bad input: what it says, and how it exits. Nothing here needs root, since every
//! mistake is found before anything of the host is touched.

#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/worked-example.yaml");

fn windlass(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WINDLASS_")) {
        command.env_remove(name);
    }
    command.env_remove("NODE_NAME").args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    windlass(&["run"]).args(arguments).output().unwrap()
}

#[track_caller]
fn fails(output: &Output, code: i32, expected: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(expected), "wanted {expected:?} in:\n{text}");
    assert_eq!(output.status.code(), Some(code), "{text}");
}

fn node_a(manifests: &Path) -> Output {
    run(&["--manifests", manifests.to_str().unwrap(), "--node", "node-a", "--underlay-addr", "127.0.0.1"])
}

/// The worked example with one text replaced.
fn edited(from: &str, to: &str) -> tempfile::NamedTempFile {
    let text = std::fs::read_to_string(EXAMPLE).unwrap();
    assert!(text.contains(from), "{from:?} is not in the example");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text.replacen(from, to, 1)).unwrap();
    file
}

#[test]
fn version_and_help_are_printed() {
    let output = windlass(&["--version"]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        concat!("windlass ", env!("CARGO_PKG_VERSION"))
    );
    let output = windlass(&["run", "--help"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in windlass_control::config::settings::NAMES {
        let variable = windlass_control::config::settings::variable(name);
        let line = text.lines().find(|line| line.contains(&format!("--{name} ")));
        assert!(
            line.is_some_and(|line| line.contains(&format!("[env: {variable}]"))),
            "--{name} in:\n{text}"
        );
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    fails(&windlass(&[]).output().unwrap(), 2, "Usage: windlass");
    fails(&windlass(&["fly"]).output().unwrap(), 2, "unrecognized subcommand");
    fails(&run(&["--vnni", "1"]), 2, "unexpected argument '--vnni'");
    let both = run(&["--kubeconfig", "/nonexistent", "--manifests", "a.yaml"]);
    fails(&both, 2, "--kubeconfig and --manifests are both given");
    fails(&run(&["--kubeconfig", "/nonexistent"]), 2, "cannot use the kubeconfig /nonexistent");
    fails(&run(&["--node", "a"]), 2, "--manifests is missing; give files or folders");
    fails(
        &run(&["--vni", "16777216"]),
        2,
        "--vni: \"16777216\" is not valid: give a number from 0 to 16777215",
    );
    fails(&run(&["--config", "/nowhere.yaml"]), 2, "cannot read the configuration file /nowhere.yaml");
}

#[test]
fn a_bad_environment_variable_is_named_and_a_flag_wins_over_it() {
    let output = windlass(&["run"]).env("WINDLASS_WORKERS", "many").output().unwrap();
    fails(&output, 2, "WINDLASS_WORKERS: \"many\" is not valid: give a number from 1 to 256");
    let output = windlass(&["run", "--workers", "2"]).env("WINDLASS_WORKERS", "many").output().unwrap();
    fails(&output, 2, "--manifests is missing");
}

#[test]
fn an_unknown_key_of_the_file_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "metrics_addr: off\n").unwrap();
    fails(
        &run(&["--config", file.path().to_str().unwrap()]),
        2,
        "unknown key \"metrics_addr\"; the keys are",
    );
}

#[test]
fn manifests_that_cannot_be_read_are_named() {
    fails(&node_a(Path::new("/nowhere")), 2, "cannot read /nowhere");
    let broken = edited("kind: Node\n", "kind: [Node\n");
    let name = broken.path().to_str().unwrap().to_owned();
    fails(&node_a(broken.path()), 2, &format!("{name}:"));
    fails(&node_a(broken.path()), 2, "not readable as YAML or JSON");
    std::fs::write(broken.path(), ": : :\n").unwrap();
    let expected = format!(
        "{name}:1: not readable as YAML or JSON: null is not allowed here at line 1, column 1; correct the \
         file: `kubectl apply --dry-run=client -f {name}` tells more"
    );
    fails(&node_a(broken.path()), 2, &expected);
}

#[test]
fn a_node_that_is_not_there_is_named_with_those_that_are() {
    let output = run(&["--manifests", EXAMPLE, "--node", "node-z"]);
    fails(&output, 2, "node \"node-z\" is not in the cluster, which has node-a, node-b");
    let output = windlass(&["run", "--manifests", EXAMPLE]).env("NODE_NAME", "From-Env").output().unwrap();
    fails(&output, 2, "node \"from-env\" is not in the cluster");
}

#[test]
fn what_the_cluster_lacks_is_named_with_the_remedy() {
    let no_cidr = edited("spec:\n  podCIDR: 10.244.0.0/24\n  podCIDRs:\n  - 10.244.0.0/24\n", "spec: {}\n");
    fails(&node_a(no_cidr.path()), 2, "--allocate-node-cidrs");
    let no_vtep = edited(
        "flannel.alpha.coreos.com/backend-data: '{\"VNI\":4096,\"VtepMAC\":\"ce",
        "x: '{\"VNI\":4096,\"VtepMAC\":\"ce",
    );
    fails(&node_a(no_vtep.path()), 2, "annotation flannel.alpha.coreos.com/backend-data is missing");
    let overlap = edited("  - 10.96.0.0/12\n", "  - 10.240.0.0/12\n");
    fails(&node_a(overlap.path()), 2, "cluster CIDR 10.244.0.0/16 overlaps service CIDR 10.240.0.0/12");
    let vni = edited("\"VNI\": 4096,\n        \"Port\"", "\"VNI\": -1,\n        \"Port\"");
    fails(&node_a(vni.path()), 2, "Backend.VNI -1 is no number up to 16777215");
}

#[test]
fn an_underlay_address_of_another_host_is_refused() {
    let output = run(&["--manifests", EXAMPLE, "--node", "node-a", "--underlay-addr", "192.0.2.1"]);
    fails(&output, 2, "--underlay-addr 192.0.2.1 is on no interface of this host");
}

#[test]
fn a_busy_metrics_port_is_named_and_nothing_is_left_behind() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let socket = match cfg!(windows) {
        true => r"\\.\pipe\windlass-test-busy".into(),
        false => folder.path().join("admin.sock"),
    };
    let node = ["--manifests", EXAMPLE, "--node", "node-a", "--underlay-addr", "127.0.0.1"];
    let mut command = windlass(&["run"]);
    command.args(node).args(["--metrics", &addr, "--admin-socket", socket.to_str().unwrap()]);
    let output = command.output().unwrap();
    fails(&output, 1, &format!("cannot listen on {addr} for metrics"));
    fails(&output, 1, "underlay address 127.0.0.1 (--underlay-addr)");
    assert!(!socket.exists());
}

#[test]
fn a_malformed_object_is_named_while_the_rest_goes_on() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let broken = edited("  - port: 80\n", "  - port: eighty\n");
    let node = ["--node", "node-a", "--underlay-addr", "127.0.0.1", "--metrics", &addr];
    let mut command = windlass(&["run", "--manifests", broken.path().to_str().unwrap()]);
    let output = command.args(node).args(["--log-format", "json"]).output().unwrap();
    fails(&output, 1, "Service default/web: spec.ports[0].port: invalid type");
    fails(&output, 1, "cannot listen on");
    let text = String::from_utf8_lossy(&output.stderr);
    let first = text.lines().next().unwrap();
    assert!(first.starts_with('{') && first.contains("\"level\":\"WARN\""), "{first}");
}
