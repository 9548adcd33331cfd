//! `windlass check` as a built binary: what it prints, and how it exits. Nothing here needs root.

#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::process::{Command, Output};

use serde_json::Value;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/worked-example.yaml");

fn check(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WINDLASS_")) {
        command.env_remove(name);
    }
    command.env_remove("NODE_NAME").arg("check").args(arguments).output().unwrap()
}

/// The findings of one check, as JSON.
fn found(output: &Output, name: &str) -> Vec<Value> {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap().clone();
    findings.into_iter().filter(|finding| finding["check"] == name).collect()
}

#[test]
fn wrong_usage_exits_with_2_and_findings_with_1() {
    assert_eq!(check(&["--vni", "16777216"]).status.code(), Some(2));
    assert_eq!(check(&["--output", "xml"]).status.code(), Some(2));
    let output = check(&["--ignore", "everything"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("--ignore: \"everything\" is not valid: give a check that can be ignored"),
        "{said}"
    );
    assert!(said.contains("forward-policy"), "{said}");
    assert_eq!(check(&[]).status.code(), Some(1));
}

#[test]
fn without_manifests_or_node_the_host_is_looked_at_nevertheless() {
    for (arguments, check_name, word) in [
        (&["--node", "a"][..], "manifests", "--manifests is missing"),
        (&["--manifests", "/nowhere"], "manifests", "cannot read /nowhere"),
        (&["--manifests", EXAMPLE, "--node", "node-z"], "node", "which has node-a, node-b"),
    ] {
        let output = check(&[arguments, &["-o", "json"]].concat());
        let findings = found(&output, check_name);
        assert_eq!(findings.len(), 1, "{arguments:?}");
        assert_eq!(findings[0]["severity"], "error");
        assert!(findings[0]["seen"].as_str().unwrap().contains(word), "{}", findings[0]);
        assert!(!findings[0]["remedy"].as_str().unwrap().is_empty());
        assert_eq!(found(&output, "vxlan-port")[0]["severity"], "unseen");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn a_table_names_the_check_what_was_seen_why_and_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let arguments =
        ["--manifests", EXAMPLE, "--node", "node-a", "--underlay-addr", "127.0.0.1", "--metrics", &addr];
    let output = check(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for word in ["metrics-port", "cannot listen on", "why: ", "do:  ", "windlass run would refuse"] {
        assert!(text.contains(word), "{word:?} is not in\n{text}");
    }
    assert!(!text.contains("--ignore"), "nothing serves metrics there: {text}");

    let json = check(&[&arguments[..], &["--output", "json"]].concat());
    let finding = &found(&json, "metrics-port")[0];
    assert_eq!((&finding["severity"], &finding["ignored"]), (&"error".into(), &false.into()));
    let seen = finding["seen"].as_str().unwrap();
    // Who listens is not looked at on Windows.
    assert!(cfg!(windows) || seen.contains("windlass-control") || seen.contains("process"), "{finding}");
}

#[test]
fn a_trouble_of_many_nodes_is_shown_a_few_times_and_counted() {
    let text = std::fs::read_to_string(EXAMPLE).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let node = |number: usize| {
        format!("---\napiVersion: v1\nkind: Node\nmetadata:\n  name: bare-{number}\nspec: {{}}\n")
    };
    let nodes: String = (0..9).map(node).collect();
    std::fs::write(file.path(), text + "\n" + &nodes).unwrap();
    let path = file.path().to_str().unwrap();
    let arguments =
        ["--manifests", path, "--node", "node-a", "--underlay-addr", "127.0.0.1", "--metrics", "off"];
    let text = String::from_utf8_lossy(&check(&arguments).stdout).into_owned();
    assert!(text.contains("bare-4") && !text.contains("bare-5"), "{text}");
    assert!(text.contains("and 4 more of this kind"), "{text}");
    assert_eq!(found(&check(&[&arguments[..], &["-o", "json"]].concat()), "objects").len(), 9);
}
