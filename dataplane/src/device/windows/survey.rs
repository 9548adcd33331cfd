//! What of this host can be seen without changing anything of it.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{elevation, firewall, forwarding, hns, holders, library, link, processes, tables};
use crate::device::host::Family;
use crate::device::survey::{Seen, Survey, SurveyedLink, SurveyedRoute, WindowsSurvey};

/// The host as far as it can be seen. What only Linux has is unseen.
pub fn survey(_tcp_ports: &[u16]) -> Survey {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let processes = processes::processes().map_err(|error| format!("listing processes: {error}"));
    let windows = WindowsSurvey {
        wintun: library::check(),
        udp_holders: holders::udp(&processes),
        hns_networks: hns::networks(),
        forwarding: forwarding::survey(),
        firewall: firewall::survey(),
    };
    Survey {
        net_admin: elevation::is_elevated().map_err(|error| error.to_string()),
        tun: linux_only(),
        windows: Some(windows),
        nft: linux_only(),
        ruleset: linux_only(),
        iptables_rules: linux_only(),
        ipvs: linux_only(),
        kernel_offloads: Vec::new(),
        links: links(),
        addresses: link::local_addresses().map_err(|error| error.to_string()),
        default_routes: default_routes(),
        routes: routes(),
        tcp_holders: holders::tcp(&processes),
        processes,
        sysctls: Default::default(),
        subnet_env: linux_only(),
        clock: i64::try_from(clock.as_secs()).unwrap_or(i64::MAX),
    }
}

fn linux_only<T>() -> Seen<T> {
    Err("Windows has no such thing".to_owned())
}

fn links() -> Seen<Vec<SurveyedLink>> {
    let adapters = tables::adapters().map_err(|error| error.to_string())?;
    let link = |tables::Adapter { name, index, mtu, .. }| SurveyedLink {
        name,
        index,
        mtu,
        ..SurveyedLink::default()
    };
    Ok(adapters.into_iter().map(link).collect())
}

fn default_routes() -> Seen<Vec<IpAddr>> {
    let mut addresses = Vec::new();
    for family in [Family::V4, Family::V6] {
        let interface = link::default_route_interface(family).map_err(|error| error.to_string())?;
        addresses.extend(interface.and_then(|interface| interface.addresses.first().copied()));
    }
    Ok(addresses)
}

fn routes() -> Seen<Vec<SurveyedRoute>> {
    let adapters = tables::adapters().map_err(|error| error.to_string())?;
    let mut routes = Vec::new();
    for family in [Family::V4, Family::V6] {
        let found = tables::routes(family).map_err(|error| error.to_string())?;
        routes.extend(found.into_iter().map(|route| SurveyedRoute {
            destination: route.destination,
            interface: adapters.iter().find(|adapter| adapter.index == route.index).map(|it| it.name.clone()),
            gateway: route.gateway,
            ours: false,
            advertised: false,
        }));
    }
    Ok(routes)
}
