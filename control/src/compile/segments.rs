//! L2 segments: from what manifests say of everybody to what one node must know.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use windlass_dataplane::tables::{Learning, Place, RemoteVtep, Segment, SegmentTable};
use windlass_dataplane::wire::ethernet::Mac;

use crate::cluster::{self, Problem};
use crate::node::NodeSettings;

/// The segments that this node is in. A VTEP keeps what was learned of its path `before`.
pub(super) fn compile(
    segments: &BTreeMap<String, Arc<cluster::Segment>>,
    settings: &NodeSettings,
    before: &SegmentTable,
) -> (SegmentTable, Vec<Problem>) {
    let mut compiler = Compiler { settings, before, name: "", vteps: BTreeMap::new(), problems: Vec::new() };
    let mut table = SegmentTable::default();
    for own in &settings.segments {
        let found = segments.iter().find(|(_, segment)| segment.vni == own.vni && segment.device == own.name);
        if let Some((name, segment)) = found {
            compiler.name = name;
            table.insert(own.vni, compiler.segment(segment));
        }
    }
    (table, compiler.problems)
}

struct Compiler<'a> {
    settings: &'a NodeSettings,
    before: &'a SegmentTable,
    /// The segment's.
    name: &'a str,
    /// A node has one path, whatever segments it is in.
    vteps: BTreeMap<SocketAddr, Arc<RemoteVtep>>,
    problems: Vec<Problem>,
}

impl Compiler<'_> {
    fn segment(&mut self, segment: &cluster::Segment) -> Segment {
        let others: Vec<IpAddr> = segment.vteps.iter().copied().filter(|addr| !self.is_ours(*addr)).collect();
        let vteps = others.into_iter().filter_map(|addr| self.vtep(addr)).collect();
        let mut compiled = Segment::new(self.name, vteps);
        compiled.floods_unknown = segment.floods_unknown;
        compiled.learning = segment.learning.map(|learning| Learning {
            per_vtep: learning.stations_per_vtep,
            lasts: Duration::from_secs(learning.seconds),
        });
        for station in &segment.stations {
            self.station(&mut compiled, station);
        }
        compiled
    }

    fn station(&mut self, compiled: &mut Segment, station: &cluster::Station) {
        let cluster::Station { mac, ips, vtep } = station;
        let place = match compiled.vtep_at(*vtep) {
            _ if self.is_ours(*vtep) => Place::Device,
            Some(known) => Place::Vtep(Arc::clone(known)),
            None => {
                return self.leave_out(*mac, &format!("its vtep {vtep} is not in spec.vteps; add it there"));
            }
        };
        if compiled.place(*mac).is_some() {
            return self.leave_out(*mac, "another station has this MAC; remove one of them");
        }
        compiled.insert_station(*mac, place);
        for addr in ips {
            match compiled.neighbor(*addr) {
                Some(other) => {
                    let text =
                        format!("{addr} is {other}'s already, and not answered for; remove it there or here");
                    self.problem(*mac, text);
                }
                None => compiled.insert_neighbor(*addr, *mac),
            }
        }
    }

    /// `None`, which is said, where no address of ours could send to it.
    fn vtep(&mut self, addr: IpAddr) -> Option<Arc<RemoteVtep>> {
        if !self.settings.underlay.iter().any(|choice| choice.addr.is_ipv4() == addr.is_ipv4()) {
            let text = format!(
                "VTEP {addr} is left out: this node has no underlay address of its family; list one in spec.vteps"
            );
            self.problems.push(Problem::new(format!("Segment {}", self.name), text));
            return None;
        }
        let remote = SocketAddr::new(addr, self.settings.port);
        let known = self.before.vteps_at(addr).find(|vtep| vtep.addr == remote);
        let vtep = self.vteps.entry(remote).or_insert_with(|| {
            known.map_or_else(|| Arc::new(RemoteVtep::new(addr.to_string(), remote)), Arc::clone)
        });
        Some(Arc::clone(vtep))
    }

    fn is_ours(&self, addr: IpAddr) -> bool {
        self.settings.underlay.iter().any(|choice| choice.addr == addr)
    }

    fn leave_out(&mut self, mac: Mac, why: &str) {
        self.problem(mac, format!("it is left out: {why}"));
    }

    fn problem(&mut self, mac: Mac, text: String) {
        self.problems.push(Problem::new(format!("Segment {}, station {mac}", self.name), text));
    }
}

#[cfg(test)]
mod tests {
    use windlass_dataplane::device::SegmentDevice;
    use windlass_dataplane::time::Instant;
    use windlass_dataplane::wire::vxlan::Vni;

    use super::*;
    use crate::node::UnderlayChoice;

    const MANIFEST: &str = r#"
apiVersion: windlass.dev/v1alpha1
kind: Segment
metadata: {name: blue}
spec:
  vni: 100
  vteps: [192.0.2.1, 192.0.2.2, "2001:db8::3"]
  learning: {seconds: 60}
  stations:
  - {mac: "02:00:00:00:00:a1", ips: [10.0.0.1], vtep: 192.0.2.1}
  - {mac: "02:00:00:00:00:b2", ips: [10.0.0.2, "fd00::2"], vtep: 192.0.2.2}
  - {mac: "02:00:00:00:00:b2", vtep: 192.0.2.1}
  - {mac: "02:00:00:00:00:c3", ips: [10.0.0.1], vtep: 192.0.2.2}
  - {mac: "02:00:00:00:00:d4", vtep: 192.0.2.9}
"#;

    #[test]
    fn a_segment_is_compiled_as_this_node_sees_it_and_what_contradicts_is_named() {
        let state = crate::source::manifests::load_text("f.yaml", MANIFEST, "").unwrap().state;
        let vni = Vni::new(100).unwrap();
        let underlay = UnderlayChoice { addr: [192, 0, 2, 1].into(), why: String::new() };
        let settings = NodeSettings {
            underlay: vec![underlay],
            segments: vec![SegmentDevice { vni, name: "seg100".into() }],
            ..crate::compile::tests::settings()
        };
        let (table, problems) = compile(&state.segments, &settings, &SegmentTable::default());
        let segment = table.lookup(vni).unwrap();
        let mac = |text: &str| text.parse::<Mac>().unwrap();
        assert_eq!(segment.place(mac("02:00:00:00:00:a1")), Some(&Place::Device));
        let Some(Place::Vtep(vtep)) = segment.place(mac("02:00:00:00:00:b2")) else { panic!("a VTEP") };
        assert_eq!(vtep.addr, SocketAddr::new([192, 0, 2, 2].into(), settings.port));
        assert_eq!(segment.neighbor("fd00::2".parse().unwrap()), Some(mac("02:00:00:00:00:b2")));
        assert_eq!((segment.vteps().len(), segment.stations().count()), (1, 3));
        let said: Vec<_> = problems.iter().map(ToString::to_string).collect();
        for (said, expected) in said.iter().zip([
            "VTEP 2001:db8::3 is left out",
            "station 02:00:00:00:00:b2: it is left out: another station has this MAC",
            "station 02:00:00:00:00:c3: 10.0.0.1 is 02:00:00:00:00:a1's already",
            "station 02:00:00:00:00:d4: it is left out: its vtep 192.0.2.9 is not in spec.vteps",
        ]) {
            assert!(said.contains(expected), "{said}");
        }
        assert_eq!(said.len(), 4);

        let now = Instant::ZERO;
        vtep.path_mtu.learn(vtep.addr.ip(), 1_400, now);
        let (again, _) = compile(&state.segments, &settings, &table);
        assert_eq!(again.lookup(vni).unwrap().vteps()[0].path_mtu.get(now), Some(1_400));
    }
}
