//! Cluster DNS: a real server in a pod behind the VIP 10.96.0.10.

use std::net::Ipv4Addr;
use std::process::Stdio;

use anyhow::Result;
use windlass_tests::netns::on_path;
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::{Objects, ServiceSpec};
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::{Pod, Pods};
use windlass_tests::process::{Guarded, wait_until};
use windlass_tests::topology::{FAMILIES, Family, Topology};
use windlass_tests::traffic::{Transport, ping};

use crate::services::WEB;
use crate::traffic;

const KUBE_DNS: ServiceSpec =
    ServiceSpec { name: "kube-dns", vip: Ipv4Addr::new(10, 96, 0, 10), port: 53, backend_port: 53 };
const NAME: &str = "web.default.svc.cluster.local";

#[test]
fn dns_is_answered_through_its_vip_by_udp_and_tcp() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    if !on_path("dnsmasq") {
        windlass_tests::skipped("`dnsmasq` is not installed (.ci/install installs what the tests use)");
        return Ok(());
    }
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 2)?, Pods::with_pods(stock, 1)?);
    let (client, near, far) = (near.pod(0)?, near.pod(1)?, far.pod(0)?);
    let backends: Vec<_> = FAMILIES
        .into_iter()
        .flat_map(|family| [(near.ip(family), ours.spec.name), (far.ip(family), stock.spec.name)])
        .collect();
    let objects = Objects::cluster(&topology.specs()).with_service(&KUBE_DNS, &backends);
    let _servers = [serve_dns(near)?, serve_dns(far)?];
    let node = WindlassNode::start(ours, &objects, &[])?;
    let answer_by = |transport| {
        FAMILIES.into_iter().try_for_each(|family| {
            for from in [&client.netns, &ours.netns] {
                ping(from, far.ip(family))?;
                for _ in 0..8 {
                    let answer = traffic.dns(from, KUBE_DNS.vip(family), NAME, transport)?;
                    assert_eq!(answer, WEB.vip(Family::V4));
                }
            }
            Ok::<_, anyhow::Error>(())
        })
    };
    answer_by(Transport::Udp)?;
    answer_by(Transport::Tcp)?;
    node.stop()
}

/// Runs dnsmasq in that pod, with one name to answer for.
fn serve_dns(pod: &Pod) -> Result<Guarded> {
    let mut command = pod.netns.command("dnsmasq");
    command
        .args(["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root"])
        .args(["--pid-file=", "--bind-interfaces", "--except-interface=lo", "--log-facility=-"])
        .arg(format!("--listen-address={},{}", pod.address, pod.address_v6))
        .arg(format!("--address=/{NAME}/{}", WEB.vip))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let server = Guarded::spawn(&mut command)?;
    let traffic = traffic();
    wait_until("dnsmasq to answer in its own pod", std::time::Duration::from_secs(20), || {
        Ok(traffic.dns(&pod.netns, pod.ip(Family::V6), NAME, Transport::Tcp).is_ok())
    })?;
    Ok(server)
}
