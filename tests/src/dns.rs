//! A real DNS server in a pod, as kube-dns is one.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::netns::{Netns, on_path};
use crate::objects::ServiceSpec;
use crate::pod::Pod;
use crate::process::{Guarded, wait_until};
use crate::topology::FAMILIES;
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
    let listen = FAMILIES.map(|family| pod.ip(family));
    serve(&pod.netns, &listen, &[(name.to_owned(), address)], traffic)
}

/// Runs dnsmasq on those addresses, which knows those names, and waits until it answers on the last of them.
///
/// # Errors
/// When it does not start.
pub fn serve(
    at: &Netns,
    listen: &[IpAddr],
    names: &[(String, Ipv4Addr)],
    traffic: &Traffic,
) -> Result<Guarded> {
    let mut command = at.command("dnsmasq");
    command
        .args(["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root"])
        .args(["--pid-file=", "--bind-interfaces", "--except-interface=lo", "--log-facility=-"])
        .args(listen.iter().map(|address| format!("--listen-address={address}")))
        .args(names.iter().map(|(name, address)| format!("--address=/{name}/{address}")))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let server = Guarded::spawn(&mut command)?;
    let (address, (name, _)) = listen.last().zip(names.last()).context("an address and a name to serve")?;
    wait_until("dnsmasq to answer in its own pod", Duration::from_secs(20), || {
        Ok(traffic.dns(at, *address, name, Transport::Tcp).is_ok())
    })?;
    Ok(server)
}
