//! What flannel writes: node annotations and net-conf.json (flannel v0.28, backend vxlan).

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::vxlan::Vni;

use crate::cluster::{Announcement, Flannel, NetConf, parse_cidr};

/// The annotations of one node under `prefix`; texts that cannot be read are given to `refuse`.
pub fn annotations(
    annotations: &BTreeMap<String, String>,
    prefix: &str,
    mut refuse: impl FnMut(String),
) -> Flannel {
    let text = |name: &str| annotations.get(&format!("{prefix}/{name}")).map(String::as_str);
    let mut addr = |name: &str, ipv6: bool| {
        let text = text(name).filter(|text| !text.is_empty())?;
        match text.parse::<IpAddr>() {
            Ok(addr) if addr.is_ipv6() == ipv6 && usable(addr) => Some(addr),
            _ => {
                refuse(format!("annotation {prefix}/{name}: {text:?} is no usable address and is ignored"));
                None
            }
        }
    };
    Flannel {
        public_ip: addr("public-ip", false),
        public_ipv6: addr("public-ipv6", true),
        node_public_ip: addr("node-public-ip", false),
        node_public_ipv6: addr("node-public-ipv6", true),
        public_ip_overwrite: addr("public-ip-overwrite", false),
        public_ipv6_overwrite: addr("public-ipv6-overwrite", true),
        backend_type: text("backend-type").map(str::to_owned),
        vtep_v4: announcement(text("backend-data")),
        vtep_v6: announcement(text("backend-v6-data")),
    }
}

fn usable(addr: IpAddr) -> bool {
    !(addr.is_unspecified() || addr.is_multicast() || addr.is_loopback())
}

fn announcement(text: Option<&str>) -> Announcement {
    #[derive(Deserialize)]
    struct BackendData {
        #[serde(rename = "VNI")]
        vni: u32,
        #[serde(rename = "VtepMAC")]
        vtep_mac: String,
    }
    let text = match text {
        // flannel writes null for a family it does not serve.
        None | Some("" | "null") => return Announcement::Missing,
        Some(text) => text,
    };
    let data: BackendData = match serde_json::from_str(text) {
        Ok(data) => data,
        Err(error) => return Announcement::Malformed(format!("{text:?}: {error}")),
    };
    if data.vtep_mac.is_empty() {
        return Announcement::NotReady;
    }
    match (Vni::new(data.vni), data.vtep_mac.parse::<Mac>()) {
        (None, _) => Announcement::Malformed(format!("VNI {} is above 16777215", data.vni)),
        (_, Err(error)) => Announcement::Malformed(error.to_string()),
        (Some(vni), Ok(mac)) => Announcement::Ready { vni, mac },
    }
}

/// Reads net-conf.json, whose keys may be written in any case.
///
/// # Errors
/// With the key, its value and what would be valid.
pub fn net_conf(text: &str) -> Result<NetConf, String> {
    let root: Value = serde_json::from_str(text).map_err(|error| format!("net-conf.json: {error}"))?;
    let backend = key(&root, "Backend").cloned().unwrap_or_default();
    let cidr = |name: &str, ipv6: bool| match key(&root, name).and_then(Value::as_str) {
        None | Some("") => Ok(None),
        Some(text) => match parse_cidr(text) {
            Some(cidr) if cidr.addr().is_ipv6() == ipv6 => Ok(Some(cidr.trunc())),
            _ => Err(format!("net-conf.json: {name} {text:?} is no network like 10.244.0.0/16")),
        },
    };
    let enabled = |name: &str, default: bool| key(&root, name).and_then(Value::as_bool).unwrap_or(default);
    let number = |name: &str, max: u64| match key(&backend, name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            // Go cannot tell 0 from absent.
            Some(0) => Ok(None),
            Some(number) if number <= max => Ok(Some(number as u32)),
            _ => Err(format!("net-conf.json: Backend.{name} {value} is no number up to {max}")),
        },
    };
    Ok(NetConf {
        network: cidr("Network", false)?.filter(|_| enabled("EnableIPv4", true)),
        ipv6_network: cidr("IPv6Network", true)?.filter(|_| enabled("EnableIPv6", false)),
        backend_type: key(&backend, "Type").and_then(Value::as_str).map(str::to_owned),
        vni: number("VNI", 0xff_ffff)?.and_then(Vni::new),
        port: number("Port", 0xffff)?.map(|port| port as u16),
        mtu: number("MTU", 65_535)?,
        direct_routing: key(&backend, "DirectRouting").and_then(Value::as_bool).unwrap_or(false),
    })
}

fn key<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object.as_object()?.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> (Flannel, Vec<String>) {
        let prefixed = |(name, text): &(&str, &str)| (format!("flannel.example/{name}"), (*text).to_owned());
        let mut refused = Vec::new();
        let map = pairs.iter().map(prefixed).collect();
        (annotations(&map, "flannel.example", |text| refused.push(text)), refused)
    }

    #[test]
    fn annotations_are_read_as_flannel_writes_them() {
        let (flannel, refused) = read(&[
            ("backend-type", "vxlan"),
            ("backend-data", r#"{"VNI":4096,"VtepMAC":"ce:7a:e5:af:6a:e9"}"#),
            ("backend-v6-data", r#"{"VNI":4096,"VtepMAC":""}"#),
            ("public-ip", "192.168.1.40"),
        ]);
        assert_eq!(refused, Vec::<String>::new());
        let mac = Mac([0xce, 0x7a, 0xe5, 0xaf, 0x6a, 0xe9]);
        assert_eq!(flannel.vtep_v4, Announcement::Ready { vni: Vni::new(4096).unwrap(), mac });
        assert_eq!(flannel.vtep_v6, Announcement::NotReady);
        assert_eq!(flannel.public_ip, Some("192.168.1.40".parse().unwrap()));
    }

    #[test]
    fn null_and_missing_backend_data_are_the_same() {
        assert_eq!(read(&[("backend-data", "null")]).0.vtep_v4, Announcement::Missing);
        assert_eq!(read(&[]).0.vtep_v4, Announcement::Missing);
    }

    #[test]
    fn doubtful_annotations_are_refused_by_name_e9() {
        for text in ["192.168.01.40", "0.0.0.0", "127.0.0.1", "224.0.0.1", "fd00::1", "$(reboot)"] {
            let (flannel, refused) = read(&[("public-ip", text)]);
            assert_eq!(flannel.public_ip, None);
            assert!(refused[0].contains("flannel.example/public-ip") && refused[0].contains(text));
        }
        for text in [
            "{",
            r#"{"VNI":16777216,"VtepMAC":"ce:7a:e5:af:6a:e9"}"#,
            r#"{"VNI":1,"VtepMAC":"ce:7a"}"#,
            r#"{"VNI":-1,"VtepMAC":""}"#,
            r#"{"VtepMAC":"ce:7a:e5:af:6a:e9"}"#,
        ] {
            let vtep = read(&[("backend-data", text)]).0.vtep_v4;
            assert!(matches!(vtep, Announcement::Malformed(_)), "{text}: {vtep:?}");
        }
    }

    #[test]
    fn net_conf_keys_may_have_any_case() {
        let conf = net_conf(
            r#"{"network":"10.244.0.0/16","EnableIPv6":true,"IPV6NETWORK":"fd00:244::/48",
               "backend":{"type":"vxlan","vni":4096,"PORT":4789,"DirectRouting":true}}"#,
        )
        .unwrap();
        assert_eq!(conf.network, parse_cidr("10.244.0.0/16"));
        assert_eq!(conf.ipv6_network, parse_cidr("fd00:244::/48"));
        assert_eq!((conf.vni, conf.port, conf.direct_routing), (Vni::new(4096), Some(4789), true));
    }

    #[test]
    fn the_stock_net_conf_has_neither_vni_nor_port() {
        let conf = net_conf(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#).unwrap();
        assert_eq!((conf.vni, conf.port, conf.mtu), (None, None, None));
    }

    #[test]
    fn net_conf_errors_name_the_key() {
        for (text, expected) in [
            (r#"{"Backend":{"VNI":16777216}}"#, "Backend.VNI 16777216 is no number up to 16777215"),
            (r#"{"Backend":{"Port":65536}}"#, "Backend.Port 65536"),
            (r#"{"Network":"010.0.0.0/8"}"#, "Network \"010.0.0.0/8\""),
            ("{", "net-conf.json: EOF"),
        ] {
            let error = net_conf(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
