//! Any values of flannel's annotations on a Node.
//!
//! Input: for each annotation which one it is, and its value's length and text.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_control::cluster::Announcement;
use windlass_control::source::flannel::annotations;

use crate::Seed;
use crate::cluster::{self, PREFIX};
use crate::input::Input;

const NAMES: [&str; 7] = [
    "backend-data",
    "backend-v6-data",
    "backend-type",
    "public-ip",
    "public-ipv6",
    "public-ip-overwrite",
    "public-ipv6-overwrite",
];

/// Every value is used, absent, or refused by its annotation's name; and the cluster of which such a node is part can
/// be programmed.
///
/// # Panics
/// When it is not so.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut given = BTreeMap::new();
    while !input.is_empty() && given.len() < NAMES.len() {
        let name = format!("{PREFIX}/{}", input.choose(&NAMES));
        given.insert(name, String::from_utf8_lossy(input.piece()).into_owned());
    }
    let mut refused = Vec::new();
    let flannel = annotations(&given, PREFIX, |text| refused.push(text));
    let all =
        [flannel.public_ip, flannel.public_ipv6, flannel.public_ip_overwrite, flannel.public_ipv6_overwrite];
    for (addr, name) in all.into_iter().zip(&NAMES[3..]) {
        let key = format!("{PREFIX}/{name}");
        let text = given.get(&key).map_or("", String::as_str);
        let is_refused = refused.iter().any(|said| said.starts_with(&format!("annotation {key}:")));
        match addr {
            Some(addr) => {
                assert!(addr.is_ipv6() == name.contains("ipv6") && !addr.is_loopback() && !is_refused)
            }
            None => assert!(text.is_empty() || is_refused, "{key} {text:?} is lost"),
        }
    }
    let mut state = cluster::example();
    if let Some(node) = state.nodes.get_mut("node-b") {
        let node = Arc::make_mut(node);
        node.flannel = flannel;
        let is_ready = matches!(node.flannel.vtep_v4, Announcement::Ready { .. });
        cluster::check(&state);
        assert!(is_ready || cluster::settings_of(&state, "node-b").is_err(), "a node without a VTEP runs");
    }
}

/// What flannel writes on Linux and on Windows, and what nobody should.
pub fn seeds() -> Vec<Seed> {
    let one = |name: u8, value: &str| [&[name, value.len() as u8], value.as_bytes()].concat();
    let linux = [
        one(0, r#"{"VNI":4096,"VtepMAC":"00:15:5d:3c:3e:3c"}"#),
        one(1, "null"),
        one(2, "vxlan"),
        one(3, "192.168.1.51"),
    ];
    vec![
        ("linux", linux.concat()),
        ("windows-before-its-device", one(0, r#"{"VNI":4096,"VtepMAC":""}"#)),
        ("another-vni", one(0, r#"{"VNI":1,"VtepMAC":"00:15:5d:3c:3e:3c"}"#)),
        ("vni-too-large", one(0, r#"{"VNI":16777216,"VtepMAC":"00:15:5d:3c:3e:3c"}"#)),
        ("leading-zeros", one(3, "192.168.01.51")),
        (
            "own-address",
            [one(0, r#"{"VNI":4096,"VtepMAC":"00:15:5d:3c:3e:3c"}"#), one(3, "192.168.1.40")].concat(),
        ),
        ("shell", one(5, "$(reboot)")),
        ("ipv6", [one(1, r#"{"VNI":4096,"VtepMAC":"00:15:5d:3c:3e:3d"}"#), one(4, "fd00::51")].concat()),
    ]
}
