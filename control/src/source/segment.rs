//! L2 segments as manifests describe them: Windlass's own kind, since Kubernetes has none for it.
//!
//! ```yaml
//! apiVersion: windlass.dev/v1alpha1
//! kind: Segment
//! metadata: {name: blue}
//! spec:
//!   vni: 100
//!   vteps: [192.0.2.1, 192.0.2.2]      # everybody's underlay addresses; each node finds itself among them
//!   stations:                          # static entries; ips are what ARP and ND are answered with
//!   - {mac: "02:00:00:00:00:a1", ips: [10.0.0.1, "fd00::1"], vtep: 192.0.2.1}
//!   device: seg100                     # the TAP device; seg and the VNI unless given
//!   unknownUnicast: flood              # or drop
//!   learning: {stationsPerVtep: 1024, seconds: 300}     # off unless given
//! ```

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::vxlan::Vni;

use crate::cluster::{Learning, Segment, Station};
use crate::config::is_device_name;

/// The group and version of the kind.
pub const VERSION: &str = "windlass.dev/v1alpha1";

/// The kind.
pub const KIND: &str = "Segment";

#[derive(Deserialize)]
struct Object {
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    vni: u32,
    vteps: Vec<String>,
    device: Option<String>,
    #[serde(default)]
    unknown_unicast: UnknownUnicast,
    learning: Option<LearningSpec>,
    #[serde(default)]
    stations: Vec<Value>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum UnknownUnicast {
    #[default]
    Flood,
    Drop,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LearningSpec {
    #[serde(default = "stations_per_vtep")]
    stations_per_vtep: u32,
    #[serde(default = "seconds")]
    seconds: u64,
}

/// As many as Linux learns on a bridge of a rack.
fn stations_per_vtep() -> u32 {
    1_024
}

/// Linux's for bridges and vxlan devices (IEEE 802.1Q table 8-6).
fn seconds() -> u64 {
    300
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StationSpec {
    mac: String,
    #[serde(default)]
    ips: Vec<String>,
    vtep: String,
}

/// Reads a segment. A single doubtful station is left out and given to `refuse`.
///
/// # Errors
/// Why the object as a whole cannot be used.
pub fn segment(value: Value, mut refuse: impl FnMut(String)) -> Result<Segment, String> {
    let Object { spec } = typed(value)?;
    let vni = Vni::new(spec.vni).ok_or(format!("spec.vni {} is above 16777215", spec.vni))?;
    if spec.vteps.is_empty() {
        return Err("spec.vteps is empty; list the underlay address of every node of the segment".to_owned());
    }
    let vteps = spec.vteps.iter().map(|text| host("spec.vteps", text)).collect::<Result<_, _>>()?;
    let device = spec.device.unwrap_or(format!("seg{vni}"));
    if !is_device_name(&device) {
        return Err(format!("spec.device {device:?} is no interface name of 1 to 15 bytes"));
    }
    let learning = spec.learning.map(learning).transpose()?;
    let mut stations = Vec::with_capacity(spec.stations.len());
    for (index, value) in spec.stations.into_iter().enumerate() {
        match typed(value).and_then(station) {
            Ok(station) => stations.push(station),
            Err(reason) => refuse(format!("spec.stations[{index}]: {reason}; the station is left out")),
        }
    }
    let floods_unknown = spec.unknown_unicast == UnknownUnicast::Flood;
    Ok(Segment { vni, device, vteps, floods_unknown, learning, stations })
}

fn learning(spec: LearningSpec) -> Result<Learning, String> {
    let LearningSpec { stations_per_vtep, seconds } = spec;
    if !(1..=1_000_000).contains(&stations_per_vtep) {
        return Err(format!("spec.learning.stationsPerVtep {stations_per_vtep} is not 1 to 1000000"));
    }
    if !(10..=1_000_000).contains(&seconds) {
        return Err(format!("spec.learning.seconds {seconds} is not 10 to 1000000 (IEEE 802.1Q)"));
    }
    Ok(Learning { stations_per_vtep, seconds })
}

fn station(spec: StationSpec) -> Result<Station, String> {
    let mac: Mac = spec.mac.parse().map_err(|error| format!("mac: {error}"))?;
    if mac.is_multicast() || mac == Mac::default() {
        return Err(format!("mac: {mac} is a group's address or none at all, and no station's"));
    }
    let ips = spec.ips.iter().map(|text| host("ips", text)).collect::<Result<_, _>>()?;
    Ok(Station { mac, ips, vtep: host("vtep", &spec.vtep)? })
}

/// An address that a station or a node can have.
fn host(place: &str, text: &str) -> Result<IpAddr, String> {
    let addr: IpAddr = text.parse().map_err(|_| format!("{place}: {text:?} is no IP address"))?;
    let is_one = !addr.is_unspecified() && !addr.is_multicast() && !addr.is_loopback();
    if is_one { Ok(addr) } else { Err(format!("{place}: {addr} is no single host's address")) }
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: Value) -> (Result<Segment, String>, Vec<String>) {
        let mut refused = Vec::new();
        let object = json!({"apiVersion": VERSION, "kind": KIND, "metadata": {"name": "blue"}, "spec": spec});
        (segment(object, |text| refused.push(text)), refused)
    }

    #[test]
    fn a_segment_has_defaults_that_flood_and_do_not_learn() {
        let (segment, refused) = read(json!({"vni": 100, "vteps": ["192.0.2.1", "2001:db8::2"]}));
        let segment = segment.unwrap();
        assert_eq!((segment.vni.get(), segment.device.as_str(), segment.vteps.len()), (100, "seg100", 2));
        assert!(segment.floods_unknown && segment.learning.is_none() && refused.is_empty());
        let spec =
            json!({"vni": 1, "vteps": ["192.0.2.1"], "unknownUnicast": "drop", "learning": {"seconds": 60}});
        let segment = read(spec).0.unwrap();
        assert_eq!(segment.learning, Some(Learning { stations_per_vtep: 1_024, seconds: 60 }));
        assert!(!segment.floods_unknown);
    }

    #[test]
    fn doubtful_stations_are_left_out_alone_and_named() {
        let (segment, refused) = read(json!({"vni": 1, "vteps": ["192.0.2.1"], "stations": [
            {"mac": "02:00:00:00:00:a1", "ips": ["10.0.0.1"], "vtep": "192.0.2.1"},
            {"mac": "01:00:5e:00:00:01", "vtep": "192.0.2.1"},
            {"mac": "02:00:00:00:00:a2", "ips": ["010.0.0.1"], "vtep": "192.0.2.1"},
            {"mac": "02:00:00:00:00:a3", "vtep": "0.0.0.0"},
            {"mac": "02:00:00:00:00:a4", "vtep": "192.0.2.1", "ip": "10.0.0.4"},
            {"vtep": "192.0.2.1"},
        ]}));
        assert_eq!(segment.unwrap().stations.len(), 1);
        for (text, expected) in refused.iter().zip([
            "spec.stations[1]: mac: 01:00:5e:00:00:01 is a group's address",
            "spec.stations[2]: ips: \"010.0.0.1\" is no IP address",
            "spec.stations[3]: vtep: 0.0.0.0 is no single host's address",
            "spec.stations[4]: ip: unknown field `ip`",
            "spec.stations[5]: missing field `mac`",
        ]) {
            assert!(text.starts_with(expected) && text.ends_with("; the station is left out"), "{text}");
        }
        assert_eq!(refused.len(), 5);
    }

    #[test]
    fn what_cannot_be_a_segment_says_why() {
        for (spec, expected) in [
            (json!({"vni": 16_777_216, "vteps": ["192.0.2.1"]}), "spec.vni 16777216 is above 16777215"),
            (json!({"vni": 1, "vteps": []}), "spec.vteps is empty"),
            (json!({"vni": 1, "vteps": ["node-a"]}), "spec.vteps: \"node-a\" is no IP address"),
            (json!({"vni": 1}), "spec: missing field `vteps`"),
            (json!({"vni": 1, "vteps": ["192.0.2.1"], "learn": true}), "spec.learn: unknown field `learn`"),
            (
                json!({"vni": 1, "vteps": ["192.0.2.1"], "device": "a/b"}),
                "spec.device \"a/b\" is no interface",
            ),
            (
                json!({"vni": 1, "vteps": ["192.0.2.1"], "learning": {"stationsPerVtep": 0}}),
                "spec.learning.stationsPerVtep 0 is not",
            ),
        ] {
            let error = read(spec).0.unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
