//! L2 segments as people read them.

use windlass_control::inspect::segments::{SegmentRow, StationRow};

use crate::cli::print::{columns, list, maybe};

/// The segments of this node.
pub(crate) fn segments(rows: &[SegmentRow]) -> String {
    let row = |row: &SegmentRow| {
        let learning = row.learns.zip(row.learns_for);
        let learning = learning.map(|(stations, seconds)| format!("{stations} a VTEP, {seconds} s"));
        vec![
            row.name.clone(),
            row.vni.to_string(),
            row.device.clone(),
            list(&row.vteps),
            row.unknown_unicast.clone(),
            learning.unwrap_or_else(|| "off".to_owned()),
        ]
    };
    let header = ["SEGMENT", "VNI", "DEVICE", "OTHER VTEPS", "UNKNOWN UNICAST", "LEARNING"];
    columns(&header, rows.iter().map(row).collect(), "no segment")
}

/// The stations of its segments.
pub(crate) fn stations(rows: &[StationRow]) -> String {
    let row = |row: &StationRow| {
        let silent = row.silent_seconds.map(|seconds| format!("learned, silent for {seconds} s"));
        vec![
            row.segment.clone(),
            row.vni.to_string(),
            row.mac.clone(),
            row.vtep.map_or_else(|| "this node".to_owned(), |vtep| vtep.to_string()),
            list(&row.ips),
            silent.unwrap_or_else(|| "static".to_owned()),
            maybe(row.path_mtu.as_ref()),
        ]
    };
    let header = ["SEGMENT", "VNI", "MAC", "BEHIND", "ADDRESSES", "ENTRY", "PATH MTU"];
    columns(&header, rows.iter().map(row).collect(), "no station")
}
