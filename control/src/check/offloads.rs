//! What kernel, underlay devices and pods' veths do for many packets at once, what they do not, and why.

use windlass_dataplane::device::survey::{
    KernelOffload, OFFLOADS, Offload, OffloadPlace, OffloadState, SurveyedLink,
};
use windlass_dataplane::device::{Survey, TunnelGsoMode};

use super::{Facts, Finding, Severity, Subject};
use crate::catalog;
use crate::config::Config;

pub(super) fn findings(subject: &Subject<'_>, facts: &Facts) -> Vec<Finding> {
    let host = &facts.host;
    let mut findings: Vec<Finding> = kernel(subject.config, &host.kernel_offloads).into_iter().collect();
    let links = || host.links.iter().flatten();
    findings.extend(links().filter(|link| is_underlay(subject, host, link)).filter_map(underlay));
    let veths: Vec<_> = links().filter(|link| link.kind.as_deref() == Some("veth")).collect();
    let pods: Vec<_> = veths.into_iter().filter(|link| !is_underlay(subject, host, link)).collect();
    findings.extend(pod_veths(subject.config, &pods));
    findings
}

fn kernel(config: &Config, offloads: &[KernelOffload]) -> Option<Finding> {
    let told = |offload: &KernelOffload| match (&offload.state, switch_of(config, offload.name)) {
        (_, Some(flag)) => format!("{} off by {flag}", offload.name),
        (Ok(()), None) => format!("{} on", offload.name),
        (Err(why), None) => format!("{} off: {why}", offload.name),
    };
    let told: Vec<_> = offloads.iter().map(told).collect();
    (!told.is_empty()).then(|| note(format!("of the kernel, {}", told.join("; ")), String::new()))
}

/// The setting that keeps an offload of the kernel from being used.
fn switch_of(config: &Config, name: &str) -> Option<&'static str> {
    let offloads = &config.offloads;
    let (wanted, flag) = match name {
        "UDP_SEGMENT" => (offloads.udp_send, "--no-gso"),
        "UDP_GRO" => (offloads.udp_receive, "--no-gro"),
        "tunnel-GSO" => (offloads.tunnel_gso != TunnelGsoMode::Off, "--tunnel-gso off"),
        _ => (offloads.device, "--no-tun-offload"),
    };
    (!wanted).then_some(flag)
}

fn is_underlay(subject: &Subject<'_>, host: &Survey, link: &SurveyedLink) -> bool {
    let underlay = subject.node.iter().flat_map(|node| &node.underlay);
    let addresses: Vec<_> = underlay.map(|choice| choice.addr).collect();
    let of_link = host.addresses.iter().flatten().filter(|local| local.interface == link.name);
    of_link.map(|local| local.address).any(|address| addresses.contains(&address))
}

/// The offloads that are of use in that place and that the interface tells of.
fn told_of(link: &SurveyedLink, place: OffloadPlace) -> Vec<(Offload, OffloadState)> {
    let state =
        |offload: &Offload| link.offloads.iter().find(|(name, _)| *name == offload.name).map(|it| it.1);
    let known = OFFLOADS.into_iter().filter(|offload| offload.place == place);
    known.filter_map(|offload| Some((offload, state(&offload)?))).collect()
}

fn underlay(link: &SurveyedLink) -> Option<Finding> {
    let offloads = told_of(link, OffloadPlace::Underlay);
    let told = |(offload, state): &(Offload, OffloadState)| match state {
        OffloadState::On => format!("{} {state}", offload.name),
        OffloadState::Off | OffloadState::Cannot => format!("{} {state} ({})", offload.name, offload.lack),
    };
    let seen: Vec<_> = offloads.iter().map(told).collect();
    let off = offloads.iter().filter(|(_, state)| *state == OffloadState::Off);
    let flags: Vec<_> = off.map(|(offload, _)| format!("{} on", offload.name)).collect();
    let remedy = match flags.is_empty() {
        true => String::new(),
        false => format!("ethtool -K {} {}", link.name, flags.join(" ")),
    };
    (!seen.is_empty()).then(|| note(format!("of {}, {}", link.name, seen.join("; ")), remedy))
}

/// All of them at once: there may be hundreds.
fn pod_veths(config: &Config, veths: &[&SurveyedLink]) -> Option<Finding> {
    let told = |offload: Offload| {
        let is_on = |veth: &&&SurveyedLink| veth.offloads.contains(&(offload.name, OffloadState::On));
        let on = veths.iter().filter(is_on).count();
        let lack = if on == veths.len() { String::new() } else { format!(" ({} otherwise)", offload.lack) };
        format!("{} is on for {on}{lack}", offload.name)
    };
    let of_veths = OFFLOADS.into_iter().filter(|offload| offload.place == OffloadPlace::PodVeth);
    let told: Vec<_> = of_veths.map(told).collect();
    let remedy = match config.tune_pods {
        true => "nothing: --tune-pods turns them on while the node runs",
        false => "run with --tune-pods, which turns them on while the node runs",
    };
    let knows = veths.iter().any(|veth| !veth.offloads.is_empty());
    knows.then(|| note(format!("of {} veths, {}", veths.len(), told.join("; ")), remedy.to_owned()))
}

fn note(seen: String, remedy: String) -> Finding {
    Finding::new(&catalog::OFFLOADS, Severity::Note, seen, remedy)
}
