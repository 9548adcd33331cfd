//! Health as kube-proxy serves it, and its metrics (kubernetes pkg/proxy/healthcheck, pkg/proxy/metrics).

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::Objects;
use windlass_tests::process::{run, wait_until};
use windlass_tests::topology::{NodeSpec, Topology};

use crate::services::WEB;

const LIMIT: Duration = Duration::from_secs(30);

/// The answer to one question over HTTP, asked on the node itself.
fn ask(node: &WindlassNode<'_>, port: u16, path: &str) -> Result<String> {
    let script = format!(
        r"exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /{path} HTTP/1.0\r\n\r\n' >&3; timeout 2 cat <&3; true"
    );
    run(node.host().netns.command("bash").args(["-c", &script]))
}

fn health(node: &WindlassNode<'_>, path: &str) -> Result<String> {
    ask(node, 10256, path)
}

fn body(answer: &str) -> Result<&str> {
    Ok(answer.split_once("\r\n\r\n").context("no body")?.1)
}

fn is_status(answer: &str, status: u16) -> bool {
    answer.lines().next().is_some_and(|line| line.contains(&format!(" {status} ")))
}

#[test]
fn load_balancers_are_told_of_a_node_that_leaves_and_the_kubelet_is_not() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let server = topology.serve_api(&Objects::cluster(&topology.specs()))?;
    let node = WindlassNode::join(topology.host(0)?, &server, &[])?;
    wait_until("health to be served", LIMIT, || Ok(is_status(&health(&node, "healthz")?, 200)))?;
    let answer = health(&node, "healthz")?;
    ensure!(body(&answer)?.starts_with(r#"{"lastUpdated":""#), "{answer}");
    ensure!(body(&answer)?.ends_with(r#","nodeEligible":true}"#), "{answer}");
    let object: Value = serde_json::from_str(body(&answer)?)?;
    ensure!(object["lastUpdated"] == object["currentTime"], "{answer}");
    let answer = health(&node, "livez")?;
    ensure!(is_status(&answer, 200) && !answer.contains("nodeEligible"), "{answer}");
    ensure!(is_status(&health(&node, "readyz")?, 200));

    let taint = json!({ "spec": { "taints": [
        { "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule", "value": "1" },
    ] } });
    server.patch("nodes", "", NodeSpec::first().name, &taint)?;
    wait_until("the node to be ineligible", LIMIT, || Ok(is_status(&health(&node, "healthz")?, 503)))?;
    ensure!(health(&node, "healthz")?.contains(r#""nodeEligible":false"#));
    ensure!(is_status(&health(&node, "livez")?, 200) && is_status(&health(&node, "readyz")?, 200));
    node.stop()
}

#[test]
fn programming_latency_and_the_age_of_watches_are_measured() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let stock = topology.host(1)?;
    let server = topology.serve_api(&Objects::cluster(&topology.specs()))?;
    let node = WindlassNode::join(topology.host(0)?, &server, &[])?;
    let backends = [(std::net::IpAddr::from([10, 244, 2, 7]), stock.spec.name)];
    for object in Objects::default().with_service(&WEB, &backends).iter() {
        let mut object = object.clone();
        if object["kind"] == "EndpointSlice" && object["addressType"] == "IPv4" {
            let now = run(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%S.%NZ"]))?;
            object["metadata"]["annotations"] =
                json!({ "endpoints.kubernetes.io/last-change-trigger-time": now.trim() });
        }
        server.apply(object)?;
    }
    let mut metrics = String::new();
    let missing = wait_until("every figure to be served", LIMIT, || {
        metrics = ask(&node, 10249, "metrics").unwrap_or_default();
        Ok(FIGURES.iter().all(|figure| metrics.lines().any(|line| line.starts_with(figure))))
    });
    missing.with_context(|| metrics.clone())?;
    node.stop()
}

const FIGURES: [&str; 8] = [
    "kubeproxy_network_programming_duration_seconds_count 1",
    "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"+Inf\"} ",
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds ",
    "kubeproxy_sync_proxy_rules_service_changes_total 1",
    "kubeproxy_sync_proxy_rules_endpoint_changes_total 2",
    "windlass_watch_staleness_seconds{kind=\"nodes\"} ",
    "windlass_watch_staleness_seconds{kind=\"endpointslices\"} ",
    "windlass_watch_staleness_seconds{kind=\"kube-flannel/configmaps\"} ",
];
