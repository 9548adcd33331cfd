//! A real DNS server in a pod, as kube-dns is one.

use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Result;

use crate::netns::on_path;
use crate::objects::ServiceSpec;
use crate::pod::Pod;
use crate::process::{Guarded, wait_until};
use crate::topology::Family;
use crate::traffic::{Traffic, Transport};

/// The cluster's DNS service.
pub const KUBE_DNS: ServiceSpec =
    ServiceSpec { name: "kube-dns", vip: Ipv4Addr::new(10, 96, 0, 10), port: 53, backend_port: 53 };

/// A name to ask for.
pub const NAME: &str = "web.default.svc.cluster.local";

/// Why no DNS server can run here, if none can.
#[must_use]
pub fn missing_ability() -> Option<String> {
    let why = "`dnsmasq` is not installed (.ci/install installs what the tests use)";
    (!on_path("dnsmasq")).then(|| why.to_owned())
}

/// Runs dnsmasq in that pod, with one name and its address to answer with, and waits until it answers there.
///
/// # Errors
/// When it does not start.
pub fn serve_dns(pod: &Pod, traffic: &Traffic, (name, address): (&str, Ipv4Addr)) -> Result<Guarded> {
    let mut command = pod.netns.command("dnsmasq");
    command
        .args(["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root"])
        .args(["--pid-file=", "--bind-interfaces", "--except-interface=lo", "--log-facility=-"])
        .arg(format!("--listen-address={},{}", pod.address, pod.address_v6))
        .arg(format!("--address=/{name}/{address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let server = Guarded::spawn(&mut command)?;
    wait_until("dnsmasq to answer in its own pod", Duration::from_secs(20), || {
        Ok(traffic.dns(&pod.netns, pod.ip(Family::V6), name, Transport::Tcp).is_ok())
    })?;
    Ok(server)
}
