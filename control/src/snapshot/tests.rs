use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use windlass_dataplane::lb::conntrack::{Connection, Conntrack};
use windlass_dataplane::tables::TableSet;
use windlass_dataplane::tables::Writer;
use windlass_dataplane::tables::service::Service;
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol, Vip};

use super::*;
use crate::cluster::{ClusterState, Node};
use crate::registration::{Kept, Owner, Vteps};
use crate::source::manifests::Manifests;
use crate::system::HostMoment;

const NODE: &str = "node-a";

fn worked_example() -> ClusterState {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/worked-example.yaml");
    Manifests::new(&[file.into()], "flannel.alpha.coreos.com").read().unwrap().state
}

fn owner() -> Owner {
    Owner::of(NODE, &Node { uid: Some("1".to_owned()), ..Node::default() })
}

/// A VIP's connections over both protocols, one of each address family.
fn table() -> Conntrack {
    let table = Conntrack::new(100, 1);
    for (protocol, client, vip, backend) in [
        (Protocol::TCP, "10.244.0.14:40000", "10.96.0.10:53", "10.244.2.1:5353"),
        (Protocol::UDP, "10.244.0.14:40000", "10.96.0.10:53", "10.244.2.1:5353"),
        (Protocol::TCP, "[fd00::14]:40000", "[fd00:96::10]:53", "[fd00:2::1]:5353"),
    ] {
        let [client, vip, backend]: [SocketAddr; 3] =
            [client, vip, backend].map(|text| text.parse().unwrap());
        let flow = |src: SocketAddr, dst: SocketAddr| FlowKey {
            src: src.ip(),
            dst: dst.ip(),
            protocol,
            src_port: src.port(),
            dst_port: dst.port(),
        };
        let opened = Connection::new(flow(client, vip), flow(backend, client), Instant::ZERO);
        table.insert(&Arc::new(opened), 0).unwrap();
        let vip = Vip { addr: vip.ip(), port: vip.port(), protocol };
        table.remember_affinity(client.ip(), vip, backend, Duration::from_secs(60), Instant::ZERO, 0);
    }
    table
}

fn file_of(folder: &Path, name: &str) -> std::path::PathBuf {
    folder.join(name)
}

#[test]
fn g5_a_cluster_is_remembered_whole() {
    let folder = tempfile::tempdir().unwrap();
    assert!(read_cluster(folder.path(), NODE).unwrap().is_none());
    let state = worked_example();
    write_cluster(folder.path(), NODE, &state).unwrap();
    assert_eq!(read_cluster(folder.path(), NODE).unwrap(), Some(state));
}

#[test]
fn g5_a_snapshot_that_is_cut_off_or_changed_anywhere_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_cluster(folder.path(), NODE, &worked_example()).unwrap();
    let file = file_of(folder.path(), "cluster.snapshot");
    let whole = fs::read(&file).unwrap();
    let step = whole.len() / 97;
    for cut in (0..whole.len()).step_by(step) {
        fs::write(&file, &whole[..cut]).unwrap();
        let refused = read_cluster(folder.path(), NODE).unwrap_err();
        assert!(matches!(refused, SnapshotError::Damaged { .. }), "{cut}: {refused}");
        let mut changed = whole.clone();
        changed[cut] ^= 1;
        fs::write(&file, &changed).unwrap();
        assert!(read_cluster(folder.path(), NODE).is_err(), "byte {cut}");
    }
}

#[test]
fn g5_a_snapshot_of_another_release_or_node_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let state = worked_example();
    write_cluster(folder.path(), "node-b", &state).unwrap();
    let refused = read_cluster(folder.path(), NODE).unwrap_err();
    assert!(matches!(refused, SnapshotError::Foreign { .. }), "{refused}");

    write_cluster(folder.path(), NODE, &state).unwrap();
    let rejoined = Node { uid: Some("another".to_owned()), ..Node::clone(&state.nodes[NODE]) };
    Kept::new(NODE, &rejoined, Vteps::default()).write(folder.path()).unwrap();
    let refused = read_cluster(folder.path(), NODE).unwrap_err();
    assert!(matches!(refused, SnapshotError::Foreign { .. }), "{refused}");

    let file = file_of(folder.path(), "cluster.snapshot");
    let text = fs::read_to_string(&file).unwrap().replacen(" 1 ", " 7 ", 1);
    fs::write(&file, text).unwrap();
    let refused = read_cluster(folder.path(), NODE).unwrap_err();
    assert!(refused.to_string().contains("version 7"), "{refused}");
}

#[test]
fn g1_connections_are_remembered_and_go_on_where_their_backends_do() {
    let folder = tempfile::tempdir().unwrap();
    let now = HostMoment::now().unwrap();
    let saved = Connections::of(&table(), Instant::ZERO);
    saved.write(folder.path(), &owner(), &now).unwrap();
    let found = Connections::read(folder.path(), &owner(), &now).unwrap().unwrap();
    assert_eq!(found, saved);
    assert_eq!((found.connections.len(), found.affinities.len()), (3, 3));

    // No service serves the UDP connection any more; TCP ends by itself (F6).
    let tables = Writer::new(TableSet::default()).current();
    let after = Conntrack::new(100, 2);
    assert_eq!(found.restore(&after, &tables, 2), Restored { connections: 2, forgotten: 1 });
    for connection in &found.connections {
        let is_there = after.lookup(&connection.reply).is_some();
        assert_eq!(is_there, connection.original.protocol == Protocol::TCP);
    }
    let mut tables = TableSet::default();
    let udp = found.connections.iter().find(|saved| saved.original.protocol == Protocol::UDP).unwrap();
    let vip = Vip { addr: udp.original.dst, port: udp.original.dst_port, protocol: Protocol::UDP };
    let backend = SocketAddr::new(udp.reply.src, udp.reply.src_port);
    Arc::make_mut(&mut tables.services).insert(Arc::new(Service::new("dns", vip, vec![backend])));
    let tables = Writer::new(tables).current();
    let after = Conntrack::new(100, 2);
    assert_eq!(found.restore(&after, &tables, 2), Restored { connections: 3, forgotten: 0 });
}

#[test]
fn connections_of_another_node_or_of_before_a_boot_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let now = HostMoment::now().unwrap();
    Connections::of(&table(), Instant::ZERO).write(folder.path(), &owner(), &now).unwrap();
    let foreign = Connections::read(folder.path(), &Owner::default(), &now).unwrap_err();
    assert!(matches!(foreign, SnapshotError::Foreign { .. }), "{foreign}");
    let later = r#"{"boot":"another","uptime":{"secs":9,"nanos":0}}"#;
    let later: HostMoment = serde_json::from_str(later).unwrap();
    let before = Connections::read(folder.path(), &owner(), &later).unwrap_err();
    assert!(matches!(before, SnapshotError::BeforeBoot { .. }), "{before}");
}

#[test]
fn only_what_matters_of_connections_shows_in_their_fingerprint() {
    let before = Connections::of(&table(), Instant::ZERO);
    let mut later = Connections::of(&table(), Instant::ZERO + Duration::from_secs(5));
    later.connections.reverse();
    assert_eq!(before.fingerprint(), later.fingerprint());
    later.connections.pop();
    assert_ne!(before.fingerprint(), later.fingerprint());
}

#[test]
#[cfg(unix)]
fn what_is_remembered_is_its_owners_alone_to_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    write_cluster(folder.path(), NODE, &worked_example()).unwrap();
    let mode = fs::metadata(file_of(folder.path(), "cluster.snapshot")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
