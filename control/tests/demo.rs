//! `windlass demo`, the built binary, as anybody runs it: without root.

#![allow(clippy::expect_used, clippy::panic)]

use std::process::{Command, Output};

use serde_json::Value;

fn demo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_windlass"))
        .arg("demo")
        .args(arguments)
        .output()
        .expect("windlass starts")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn demo_carries_everything_and_says_so_in_json() {
    let output = demo(&["--duration", "1s", "--json"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).expect("one JSON object and nothing else");

    assert_eq!(report["passed"], true);
    assert_eq!(report["failures"], Value::Array(Vec::new()));
    assert!(number(&report["tcp"]["bytes"]) > 0);
    assert!(number(&report["ping_us"]) > 0 && number(&report["refused_us"]) > 0);
    assert_eq!(report["udp"]["questions"], report["udp"]["answers"]);

    for (service, count) in [(0, &report["tcp"]["connections"]), (1, &report["udp"]["answers"])] {
        let backends = report["services"][service]["backends"].as_array().expect("backends");
        let nodes: Vec<_> = backends.iter().map(|backend| backend["node"].as_str().unwrap_or("")).collect();
        assert_eq!(nodes, ["node-a", "node-b"]);
        assert!(
            backends.iter().all(|backend| number(&backend["requests"]) > 0),
            "both take part: {backends:?}"
        );
        let served: u64 = backends.iter().map(|backend| number(&backend["requests"])).sum();
        assert!(served >= number(count), "{served} served, {count} well");
    }
    assert_eq!(report["services"][2]["backends"], Value::Array(Vec::new()));

    for node in report["nodes"].as_array().expect("nodes") {
        let of = |name: &str| number(&node[name]);
        assert_eq!(of("received") + of("generated"), of("sent") + of("dropped"), "{node}");
        assert_eq!(node["sums_agree"], true);
        assert!(number(&node["underlay"]["received"]) > 0, "traffic crossed the underlay: {node}");
        assert!(of("flow_cache_hits") > 0);
    }
}

#[test]
fn demo_shows_its_nodes_vips_and_tables() {
    let output = demo(&["--duration", "100ms"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in
        ["node-a", "node-b", "10.96.0.10:53", "10.106.228.152:80", "no_endpoint", "Everything arrived"]
    {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}

#[test]
fn demos_run_beside_each_other() {
    let runs: Vec<_> =
        (0..2).map(|_| std::thread::spawn(|| demo(&["--duration", "300ms", "--json"]))).collect();
    for run in runs {
        let output = run.join().expect("no panic");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn demo_refuses_a_duration_without_a_unit() {
    let output = demo(&["--duration", "5"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("like 500ms, 5s or 1m"));
    assert!(output.stdout.is_empty());
}
