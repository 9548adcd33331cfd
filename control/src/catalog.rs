//! Every check that is made of a node: its name, what it is about, and why it is made.

/// A check.
#[derive(Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name, in kebab case. It never changes.
    pub name: &'static str,
    /// What it looks at.
    pub about: About,
    /// Why it matters.
    pub why: &'static str,
    /// Whether the node may be run in spite of its failure.
    pub ignorable: bool,
}

/// What a check looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// Flags, files and the cluster's objects.
    Objects,
    /// This host.
    Host,
}

const fn needed(name: &'static str, why: &'static str) -> Check {
    Check { name, about: About::Objects, why, ignorable: false }
}

const fn objects(name: &'static str, why: &'static str) -> Check {
    Check { name, about: About::Objects, why, ignorable: true }
}

/// A check of the host without which the node cannot run, whoever says so.
const fn vital(name: &'static str, why: &'static str) -> Check {
    Check { name, about: About::Host, why, ignorable: false }
}

const fn host(name: &'static str, why: &'static str) -> Check {
    Check { name, about: About::Host, why, ignorable: true }
}

/// The names by which a failed check can be ignored.
pub fn ignorable() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().filter(|check| check.ignorable).map(|check| check.name)
}

/// The check of that name; that of the objects where there is none.
pub(crate) fn named(name: &str) -> &'static Check {
    ALL.into_iter().find(|check| check.name == name).unwrap_or(&OBJECTS)
}

macro_rules! checks {
    ($($identifier:ident = $check:expr;)*) => {
        $(pub(crate) static $identifier: Check = $check;)*

        /// Every check.
        pub static ALL: [&Check; [$(stringify!($identifier)),*].len()] = [$(&$identifier),*];
    };
}

checks! {
    MANIFESTS = needed("manifests", "without the cluster's objects there is nothing to forward to");
    OBJECTS = objects("objects", "what cannot be read or does not fit is left out, and the rest goes on");
    NODE = needed("node", "the node's podCIDR and VTEP are read from its own Node object");
    POD_CIDR = needed("pod-cidr", "packets for this node's pods are known by its podCIDR");
    ANNOTATIONS = needed("annotations", "peers send to the VTEP that the node's flannel annotation announces");
    NET_CONF = needed("net-conf", "VNI, port and network must be those of the other nodes");
    OVERLAP = needed("overlap", "an address in two ranges has two meanings, and packets would go in circles");
    UNDERLAY = needed("underlay", "VXLAN is sent from, and by peers sent to, one address of this host");
    MTU = objects("mtu", "a packet longer than the underlay carries is lost, since VXLAN is never fragmented");
    VNI = objects("vni", "peers drop packets of another VNI");
    VXLAN_PORT_AGREES = objects("port", "peers send to, and listen on, one UDP port only");
    NETWORK = objects("network", "addresses outside these ranges do not go through the overlay");
    DIRECT_ROUTING = objects(
        "direct-routing",
        "stock peers of this subnet send to our pods unencapsulated, past Windlass: replies from service backends keep the backend's address and are lost"
    );
    POD_CIDR_OVERLAP = objects("pod-cidr-overlap", "two nodes with one podCIDR: the older keeps it, the other's pods are not reached");
    EXTERNAL_ADDRESS = objects("external-address", "what is sent to an address of this host is taken by the host itself, whatever service has that address");
    VTEP_ADDRESS = objects("vtep-address", "a VTEP inside the overlay would be reached through the overlay itself, in circles: that node is left out");
    CLOCK = host("clock", "certificates and leases fail, and logs cannot be compared");

    PRIVILEGE = vital("privilege", "making the device, routes and filter rules needs CAP_NET_ADMIN");
    TUN = vital("tun", "packets of pods come and go through a TUN device");
    WINTUN = host("wintun", "its driver makes the overlay device of a Windows node, and no other file may be run in its place");
    HNS_OVERLAY = host("hns-overlay", "VFP encapsulates an HNS overlay network itself: it takes VXLAN's port, and packets of its VNI that are meant for Windlass");
    FIREWALL = host("firewall", "Windows' firewall drops what comes to a port that no rule lets in, and VXLAN comes unasked");
    NODE_PORTS = host("node-ports", "Windows brings nothing to Windlass but its own node ports: they are sockets of Windlass there, which hide the client's address");
    NFT = vital("nft", "the filter rules are set with the program nft");
    ANOTHER_WINDLASS = vital("another-windlass", "two would remove each other's routes and filter rules");
    DEVICE_NAME = host("device-name", "the overlay device is made under this name");
    VXLAN_PORT = vital("vxlan-port", "VXLAN is received on this port, and only one program can have it");
    METRICS_PORT = vital("metrics-port", "metrics and health are served there");
    KUBE_PROXY_PORTS = host("kube-proxy-ports", "kube-proxy serves metrics on 10249 and health on 10256: who holds them may be one");
    FLANNEL_DEVICE = host("flannel-device", "a kernel vxlan device of the same network takes packets that are meant for Windlass");
    FLANNELD = host("flanneld", "flanneld makes its vxlan device, FDB and routes again whenever a node changes");
    KUBE_PROXY = host("kube-proxy", "kube-proxy's rules translate service addresses before Windlass sees them");
    KUBE_PROXY_RULES = host("kube-proxy-rules", "left-over rules send service addresses to endpoints that may be long gone, before Windlass sees them");
    KUBE_PROXY_IPVS = host("kube-proxy-ipvs", "left-over virtual services answer for service addresses before Windlass sees them");
    ROUTES = host("routes", "a more specific route wins over the overlay's, and its packets never reach Windlass");
    FORWARD_POLICY = host("forward-policy", "packets between pods and the overlay device are forwarded, and a DROP policy drops what no rule accepts");
    IP_MASQ = host("ip-masq", "a masqueraded packet loses the pod's address: backends and peers see this node instead");
    IP_FORWARD = host("ip-forward", "packets between pods and the overlay device are forwarded by the system");
    ACCEPT_RA = host("accept-ra", "a host that forwards IPv6 ignores router advertisements unless accept_ra is 2, and loses a default route that came by them");
    RP_FILTER = host("rp-filter", "a strict reverse path filter drops VXLAN from peers whose route leaves by another interface");
    BRIDGE_NETFILTER = host("bridge-netfilter", "packets between two pods of one bridge pass the filter rules too");
    OFFLOADS = host("offloads", "what kernel and devices do not do for many packets at once costs CPU time for each of them");
    BRIDGE_MTU = host("bridge-mtu", "pods send packets that the overlay cannot carry: they get ICMP for an answer, and connections that ignore it hang");
}

/// The checks that matter where L2 segments are bridged: nothing is routed, and the host's rules stay as they are.
pub(crate) static OF_SEGMENTS: [&Check; 10] = [
    &MANIFESTS,
    &OBJECTS,
    &UNDERLAY,
    &MTU,
    &PRIVILEGE,
    &TUN,
    &VXLAN_PORT,
    &METRICS_PORT,
    &RP_FILTER,
    &OFFLOADS,
];
