//! What a new snapshot changed, in words: one line an object, and few lines when many objects change at once.

mod segments;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::SocketAddr;

use windlass_dataplane::tables::{Entry, ForwardingTables, Service, Vip};

/// Lines of one kind before the rest is summed up.
const LINES_PER_KIND: usize = 20;

/// Backends named in one line before the rest is summed up.
const BACKENDS_PER_LINE: usize = 5;

/// The lines that tell `after` from `before`, which differ in `touched` entries at most.
pub fn lines(before: &ForwardingTables, after: &ForwardingTables, touched: &[Entry]) -> Vec<String> {
    let mut lines = own_ranges(before, after);
    lines.extend(bounded(nodes(before, after, touched), "nodes"));
    lines.extend(bounded(services(before, after, touched), "services"));
    lines.extend(bounded(segments::segments(before, after), "stations"));
    lines
}

fn bounded(mut lines: Vec<String>, kind: &str) -> Vec<String> {
    lines.sort_unstable();
    let more = lines.len().saturating_sub(LINES_PER_KIND);
    if more > 0 {
        lines.truncate(LINES_PER_KIND);
        lines.push(format!("{more} more {kind} changed"));
    }
    lines
}

fn own_ranges(before: &ForwardingTables, after: &ForwardingTables) -> Vec<String> {
    let (before, after) = (before.local(), after.local());
    let mut lines = Vec::new();
    let ranges = [
        ("cluster CIDRs", &before.cluster_cidrs, &after.cluster_cidrs),
        ("service CIDRs", &before.service_cidrs, &after.service_cidrs),
    ];
    for (what, old, new) in ranges {
        if old != new {
            lines.push(format!("{what} changed from {} to {}", list(old), list(new)));
        }
    }
    if before.addresses != after.addresses {
        let (old, new) = (list(&before.addresses), list(&after.addresses));
        lines.push(format!("this node's addresses changed from {old} to {new}"));
    }
    lines
}

/// What the tables say of one peer.
#[derive(Default, PartialEq, Eq)]
struct Peer {
    vteps: BTreeSet<String>,
    prefixes: BTreeSet<String>,
    addresses: BTreeSet<String>,
}

fn peers<'a>(tables: &'a ForwardingTables, names: &BTreeSet<&str>) -> BTreeMap<&'a str, Peer> {
    let mut peers: BTreeMap<&str, Peer> = BTreeMap::new();
    for (_, mac, vtep) in tables.fdb().iter().filter(|(_, _, vtep)| names.contains(vtep.node.as_str())) {
        let peer = peers.entry(&vtep.node).or_default();
        peer.vteps.insert(format!("{mac} at {}", vtep.addr));
        peer.prefixes.extend(vtep.prefixes.iter().map(ToString::to_string));
        peer.addresses.extend(vtep.addresses.iter().map(ToString::to_string));
    }
    peers
}

fn nodes(before: &ForwardingTables, after: &ForwardingTables, touched: &[Entry]) -> Vec<String> {
    let vteps = touched.iter().flat_map(|entry| match entry {
        Entry::Fdb(vni, mac) => [before.fdb().lookup(*vni, *mac), after.fdb().lookup(*vni, *mac)],
        _ => [None, None],
    });
    let names: BTreeSet<&str> = vteps.flatten().map(|vtep| vtep.node.as_str()).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let (mut old, new) = (peers(before, &names), peers(after, &names));
    let mut lines = Vec::new();
    for (name, peer) in new {
        match old.remove(name) {
            None => lines.push(format!(
                "node {name}: added, {} behind VTEP {}",
                list(&peer.prefixes),
                list(&peer.vteps)
            )),
            Some(known) if known == peer => {}
            Some(known) => {
                let parts = [
                    moved("VTEP moved", &known.vteps, &peer.vteps),
                    moved("podCIDRs changed", &known.prefixes, &peer.prefixes),
                    moved("addresses changed", &known.addresses, &peer.addresses),
                ];
                let parts: Vec<_> = parts.into_iter().flatten().collect();
                lines.push(format!("node {name}: {}", parts.join("; ")));
            }
        }
    }
    lines.extend(old.into_keys().map(|name| format!("node {name}: removed")));
    lines
}

fn moved(what: &str, before: &BTreeSet<String>, after: &BTreeSet<String>) -> Option<String> {
    (before != after).then(|| format!("{what} from {} to {}", list(before), list(after)))
}

fn services(before: &ForwardingTables, after: &ForwardingTables, touched: &[Entry]) -> Vec<String> {
    let vips: BTreeSet<Vip> = touched
        .iter()
        .filter_map(|entry| match entry {
            Entry::Service(vip) => Some(*vip),
            _ => None,
        })
        .collect();
    let line = |vip| match (before.services().lookup(vip), after.services().lookup(vip)) {
        (None, Some(service)) => {
            let backends = named(service.backends.iter(), "no backend");
            Some(format!("{}: added with {backends}", title(service)))
        }
        (Some(known), Some(service)) if known != service => {
            Some(format!("{}: {}", title(service), difference(known, service)))
        }
        (Some(service), None) => Some(format!("{}: removed", title(service))),
        _ => None,
    };
    vips.into_iter().filter_map(line).collect()
}

/// `service default/web:http (10.96.0.21:80 tcp)`.
fn title(service: &Service) -> String {
    let vip = SocketAddr::new(service.vip.addr, service.vip.port);
    format!("service {} ({vip} {})", service.name, service.vip.protocol)
}

fn difference(before: &Service, after: &Service) -> String {
    let is_in = |list: &[SocketAddr], backend: &SocketAddr| list.contains(backend);
    let (old, new) = (&before.backends, &after.backends);
    let added = new.iter().filter(|backend| old.binary_search(backend).is_err());
    let mut left = old.iter().filter(|backend| new.binary_search(backend).is_err());
    let drains = |backend: &&SocketAddr| is_in(&after.draining, backend);
    let ended = before.draining.iter().filter(|backend| !after.serves(**backend));
    let mut parts = Vec::new();
    let mut say = |backends: Vec<&SocketAddr>, what: &str| {
        if !backends.is_empty() {
            parts.push(format!("{} {what}", named(backends.into_iter(), "")));
        }
    };
    say(added.collect(), "added");
    say(left.clone().filter(drains).collect(), "drains");
    say(left.by_ref().filter(|backend| !drains(backend)).chain(ended).collect(), "removed");
    if before.name != after.name {
        parts.push(format!("was {}", before.name));
    }
    if before.affinity != after.affinity {
        parts.push(match after.affinity {
            Some(affinity) => format!("ClientIP affinity of {} s", affinity.as_secs()),
            None => "no affinity".to_owned(),
        });
    }
    if parts.is_empty() { "traffic policy or draining backends changed".to_owned() } else { parts.join("; ") }
}

fn named<'a>(backends: impl ExactSizeIterator<Item = &'a SocketAddr>, none: &str) -> String {
    let count = backends.len();
    let mut names: Vec<_> = backends.take(BACKENDS_PER_LINE).map(ToString::to_string).collect();
    if count > names.len() {
        names.push(format!("{} more", count - names.len()));
    }
    match count {
        0 => none.to_owned(),
        1 => format!("backend {}", names.join(", ")),
        _ => format!("backends {}", names.join(", ")),
    }
}

fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windlass_dataplane::tables::{Fdb, RemoteVtep, ServiceTable, TableSet, Writer};
    use windlass_dataplane::wire::flow::Protocol;
    use windlass_dataplane::wire::vxlan::Vni;

    use super::*;

    fn tables(services: &[(u16, &[&str])], peers: &[(&str, &str, &str)]) -> TableSet {
        let mut table = ServiceTable::default();
        for (port, backends) in services {
            let vip = Vip { addr: "10.96.0.21".parse().unwrap(), port: *port, protocol: Protocol::TCP };
            let backends = backends.iter().map(|backend| backend.parse().unwrap()).collect();
            table.insert(Arc::new(Service::new(format!("default/web:{port}"), vip, backends)));
        }
        let mut fdb = Fdb::default();
        for (node, mac, addr) in peers {
            let mut vtep = RemoteVtep::new(*node, addr.parse().unwrap());
            vtep.prefixes = vec!["10.244.2.0/24".parse().unwrap()];
            fdb.insert(Vni::new(1).unwrap(), mac.parse().unwrap(), Arc::new(vtep));
        }
        TableSet { services: Arc::new(table), fdb: Arc::new(fdb), ..TableSet::default() }
    }

    fn between(before: TableSet, after: TableSet) -> Vec<String> {
        let sets = [&before, &after];
        let fdb = sets.iter().flat_map(|set| set.fdb.iter().map(|(vni, mac, _)| Entry::Fdb(vni, mac)));
        let vips = sets.iter().flat_map(|set| set.services.iter().map(|service| Entry::Service(service.vip)));
        let touched: Vec<_> = fdb.chain(vips).collect();
        let mut writer = Writer::new(before);
        let before = writer.current();
        lines(&before, &writer.publish(after), &touched)
    }

    #[test]
    fn a_line_names_the_object_and_what_changed() {
        let said = between(
            tables(
                &[(80, &["10.244.2.15:8080"]), (81, &[])],
                &[("b", "00:00:00:00:00:01", "192.168.1.51:4789")],
            ),
            tables(
                &[(80, &["10.244.2.16:8080"]), (82, &["10.244.2.15:80"])],
                &[
                    ("b", "00:00:00:00:00:02", "192.168.1.52:4789"),
                    ("c", "00:00:00:00:00:03", "192.168.1.53:4789"),
                ],
            ),
        );
        assert_eq!(
            said,
            [
                "node b: VTEP moved from 00:00:00:00:00:01 at 192.168.1.51:4789 to 00:00:00:00:00:02 at 192.168.1.52:4789",
                "node c: added, 10.244.2.0/24 behind VTEP 00:00:00:00:00:03 at 192.168.1.53:4789",
                "service default/web:80 (10.96.0.21:80 tcp): backend 10.244.2.16:8080 added; backend 10.244.2.15:8080 removed",
                "service default/web:81 (10.96.0.21:81 tcp): removed",
                "service default/web:82 (10.96.0.21:82 tcp): added with backend 10.244.2.15:80",
            ]
        );
    }

    #[test]
    fn many_changes_are_summed_up() {
        let many: Vec<(u16, &[&str])> = (1..=50).map(|port| (port, &[][..])).collect();
        let said = between(tables(&[], &[]), tables(&many, &[]));
        assert_eq!(said.len(), LINES_PER_KIND + 1);
        assert_eq!(said[LINES_PER_KIND], "30 more services changed");
    }

    #[test]
    fn nothing_changed_says_nothing() {
        let same =
            || tables(&[(80, &["10.244.2.15:8080"])], &[("b", "00:00:00:00:00:01", "192.168.1.51:4789")]);
        assert_eq!(between(same(), same()), [""; 0]);
    }
}
