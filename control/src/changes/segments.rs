//! What changed in L2 segments.

use std::collections::BTreeMap;

use windlass_dataplane::tables::{ForwardingTables, Place, Segment};
use windlass_dataplane::wire::ethernet::Mac;

/// One line for each station that came, went or moved, and for each segment whose VTEPs or rules are others.
pub(super) fn segments(before: &ForwardingTables, after: &ForwardingTables) -> Vec<String> {
    let mut lines = Vec::new();
    for (vni, new) in after.segments().iter() {
        match before.segments().lookup(vni) {
            None => lines.push(format!("segment {}: added", new.name)),
            Some(old) if old != new => of_one(old, new, &mut lines),
            Some(_) => {}
        }
    }
    let gone = before.segments().iter().filter(|(vni, _)| after.segments().lookup(*vni).is_none());
    lines.extend(gone.map(|(_, old)| format!("segment {}: removed", old.name)));
    lines
}

fn of_one(old: &Segment, new: &Segment, lines: &mut Vec<String>) {
    let vteps = |segment: &Segment| super::list(segment.vteps().iter().map(|vtep| vtep.addr.ip()));
    let (before, after) = (vteps(old), vteps(new));
    if before != after {
        lines.push(format!("segment {}: other VTEPs changed from {before} to {after}", new.name));
    }
    if (old.floods_unknown, old.learning) != (new.floods_unknown, new.learning) {
        lines.push(format!("segment {}: flooding or learning changed", new.name));
    }
    let (mut before, after) = (stations(old), stations(new));
    for (mac, place) in after {
        match before.remove(&mac) {
            None => lines.push(format!("segment {}: station {mac} added, behind {place}", new.name)),
            Some(known) if known != place => {
                lines.push(format!("segment {}: station {mac} moved from {known} to {place}", new.name));
            }
            Some(_) => {}
        }
    }
    lines.extend(before.into_keys().map(|mac| format!("segment {}: station {mac} removed", new.name)));
}

fn stations(segment: &Segment) -> BTreeMap<Mac, String> {
    let place = |place: &Place| match place {
        Place::Device => "this node's device".to_owned(),
        Place::Vtep(vtep) => vtep.addr.ip().to_string(),
    };
    segment.stations().map(|(mac, at)| (mac, place(at))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windlass_dataplane::tables::{RemoteVtep, SegmentTable, TableSet, Writer};
    use windlass_dataplane::wire::vxlan::Vni;

    use super::*;

    #[test]
    fn stations_that_come_go_and_move_are_named() {
        let tables = |stations: &[(u8, Option<usize>)]| {
            let vtep = |last| Arc::new(RemoteVtep::new("n", ([192, 0, 2, last], 4789).into()));
            let vteps = [vtep(1), vtep(2)];
            let mut segment = Segment::new("blue", vteps.to_vec());
            for (last, place) in stations {
                let place = place.map_or(Place::Device, |index| Place::Vtep(Arc::clone(&vteps[index])));
                segment.insert_station(Mac([2, 0, 0, 0, 0, *last]), place);
            }
            let mut table = SegmentTable::default();
            table.insert(Vni::new(100).unwrap(), segment);
            TableSet { segments: Arc::new(table), ..TableSet::default() }
        };
        let mut writer = Writer::new(tables(&[(1, None), (2, Some(0)), (3, Some(0))]));
        let before = writer.current();
        let after = writer.publish(tables(&[(1, None), (2, Some(1)), (4, None)]));
        assert_eq!(
            segments(&before, &after),
            [
                "segment blue: station 02:00:00:00:00:02 moved from 192.0.2.1 to 192.0.2.2",
                "segment blue: station 02:00:00:00:00:04 added, behind this node's device",
                "segment blue: station 02:00:00:00:00:03 removed",
            ]
        );
        let gone = writer.publish(TableSet::default());
        assert_eq!(segments(&after, &gone), ["segment blue: removed"]);
        assert_eq!(segments(&gone, &after), ["segment blue: added"]);
    }
}
