//! This node's own Node object: what it says of us is what we have made of it.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::vxlan::Vni;

use super::Kept;
use crate::cluster::{Announcement, ClusterState, Node, Problem};

/// The MACs of our VTEPs, one for each family that our pods have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vteps {
    /// Carries inner IPv4.
    pub mac_v4: Option<Mac>,
    /// Carries inner IPv6.
    pub mac_v6: Option<Mac>,
}

impl Vteps {
    /// The MACs that the node announces, else those that were kept for this very node, else new ones: peers go on
    /// sending to the MAC they know until they hear of another.
    pub fn of(node: &Node, kept: Option<&Kept>) -> Self {
        let has = |ipv6: bool| node.pod_cidrs.iter().any(|cidr| cidr.addr().is_ipv6() == ipv6);
        let mac = |ipv6: bool, announced: &Announcement, kept: Option<Mac>| {
            has(ipv6).then(|| match announced {
                Announcement::Ready { mac, .. } => *mac,
                _ => kept.unwrap_or_else(random_mac),
            })
        };
        let kept = kept.map(Kept::vteps).unwrap_or_default();
        Self {
            mac_v4: mac(false, &node.flannel.vtep_v4, kept.mac_v4),
            mac_v6: mac(true, &node.flannel.vtep_v6, kept.mac_v6),
        }
    }
}

/// A locally administered unicast address (IEEE 802, 8.2), as flannel makes them.
fn random_mac() -> Mac {
    // Every RandomState has keys of its own.
    let [mut first, second, third, fourth, fifth, sixth, ..] =
        RandomState::new().build_hasher().finish().to_be_bytes();
    first = first & 0xfe | 0x02;
    Mac([first, second, third, fourth, fifth, sixth])
}

/// Our Node object as we have registered it, which holds whatever becomes of it in the cluster.
#[derive(Clone, Debug)]
pub struct OwnNode {
    name: String,
    vteps: Vteps,
    /// As it was last seen with a podCIDR.
    last: Node,
}

/// What has become of our Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// What is to be said.
    pub problems: Vec<Problem>,
    /// Whether our annotations are to be written again.
    pub is_to_be_written: bool,
}

impl OwnNode {
    /// The node of that name with these VTEPs.
    pub fn new(name: &str, node: &Node, vteps: Vteps) -> Self {
        Self { name: name.to_owned(), vteps, last: node.clone() }
    }

    /// Our node as the cluster has it, made to say what we have registered: without it nothing else of the cluster
    /// could be followed. Tells what others have made of it.
    pub fn imposed(&mut self, found: Option<&Node>, vni: Vni) -> (Node, Drift) {
        let mut drift = Drift::default();
        let subject = format!("Node {}", self.name);
        let mut say = |text: &str| drift.problems.push(Problem::new(&subject, text));
        let mut node = match found {
            None => {
                say(IS_GONE);
                self.last.clone()
            }
            Some(node) if node.pod_cidrs.is_empty() => {
                say(HAS_NO_POD_CIDR);
                Node { pod_cidrs: self.last.pod_cidrs.clone(), ..node.clone() }
            }
            Some(node) => node.clone(),
        };
        let ours =
            |mac: Option<Mac>| mac.map_or(Announcement::Missing, |mac| Announcement::Ready { vni, mac });
        let flannel = &mut node.flannel;
        let (vtep_v4, vtep_v6) = (ours(self.vteps.mac_v4), ours(self.vteps.mac_v6));
        let differs = |announced: &Announcement, ours: &Announcement| {
            *ours != Announcement::Missing && announced != ours
        };
        if found.is_some() && (differs(&flannel.vtep_v4, &vtep_v4) || differs(&flannel.vtep_v6, &vtep_v6)) {
            drift.is_to_be_written = true;
        }
        (flannel.vtep_v4, flannel.vtep_v6) = (vtep_v4, vtep_v6);
        flannel.backend_type = Some("vxlan".to_owned());
        self.last = node.clone();
        (node, drift)
    }

    /// The same in a whole cluster.
    pub fn impose(&mut self, state: &mut ClusterState, vni: Vni) -> Drift {
        let (node, drift) = self.imposed(state.nodes.get(&self.name).map(AsRef::as_ref), vni);
        state.nodes.insert(self.name.clone(), node.into());
        drift
    }
}

const IS_GONE: &str = "it has gone from the cluster, and stock nodes no longer send to its pods; forwarding goes \
     on as it was until it joins again";
const HAS_NO_POD_CIDR: &str = "it has no spec.podCIDR any more; forwarding goes on with the one it had: run \
     kube-controller-manager with --allocate-node-cidrs=true";
