//! Any text as flannel's net-conf.json.
//!
//! Input: the text.

use serde_json::json;
use windlass_control::source::flannel::net_conf;

use crate::Seed;

/// A text is refused with a reason, or says the same when it is written down again.
///
/// # Panics
/// When it is not so.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let conf = match net_conf(text) {
        Ok(conf) => conf,
        Err(reason) => return assert!(reason.starts_with("net-conf.json: "), "{reason}"),
    };
    assert!(conf.network.is_none_or(|network| network.addr().is_ipv4() && network == network.trunc()));
    assert!(conf.ipv6_network.is_none_or(|network| network.addr().is_ipv6() && network == network.trunc()));
    let again = json!({
        "Network": conf.network,
        "EnableIPv6": true,
        "IPv6Network": conf.ipv6_network,
        "Backend": {
            "Type": conf.backend_type,
            "VNI": conf.vni.map(|vni| vni.get()),
            "Port": conf.port,
            "MTU": conf.mtu,
            "DirectRouting": conf.direct_routing,
        },
    });
    assert_eq!(net_conf(&again.to_string()), Ok(conf));
}

/// flannel's own, both families, and numbers that do not fit.
pub fn seeds() -> Vec<Seed> {
    let seed = |name, text: &str| (name, text.as_bytes().to_vec());
    vec![
        seed("stock", r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#),
        seed(
            "windows",
            r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":4096,"Port":4789,"MTU":1450}}"#,
        ),
        seed(
            "dual-stack",
            r#"{"EnableIPv4":true,"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd00::/48","Backend":{"Type":"vxlan","DirectRouting":true}}"#,
        ),
        seed("any-case", r#"{"network":"10.244.1.0/16","backend":{"TYPE":"vxlan","vni":1}}"#),
        seed("too-large", r#"{"Backend":{"VNI":16777216,"Port":65536,"MTU":-1}}"#),
        seed("leading-zero", r#"{"Network":"010.244.0.0/16"}"#),
        seed("no-json", "{"),
    ]
}
