//! What of the host keeps a node from running.

use super::*;

pub(super) type HostCase = (&'static str, fn(&mut Facts), (Severity, &'static str), &'static [&'static str]);

/// What the host is like, what is found, and words of what is seen and of the remedy.
const HOST_CASES: &[HostCase] = &[
    ("no privilege", |f| f.host.net_admin = Ok(false), (Error, "privilege"), &["CAP_NET_ADMIN"]),
    ("no TUN", |f| f.host.tun = Ok(false), (Error, "tun"), &["/dev/net/tun", "modprobe tun"]),
    ("a TUN that cannot be opened", |f| f.host.tun = Err("denied".into()), (Unseen, "tun"), &["denied"]),
    (
        "an underlay device without offloads",
        |f| {
            f.host.links.as_mut().unwrap()[1].offloads = vec![
                ("tx-checksumming", OffloadState::On),
                ("tx-udp-segmentation", OffloadState::Off),
                ("tx-udp_tnl-csum-segmentation", OffloadState::Cannot),
                ("rx-gro", OffloadState::Off),
            ];
        },
        (Note, "offloads"),
        &[
            "eth0, tx-checksumming on; tx-udp-segmentation off by setting (the CPU cuts",
            "tx-udp_tnl-csum-segmentation off: the device cannot (the tunnel-GSO lane stays off",
            "ethtool -K eth0 tx-udp-segmentation on rx-gro on",
        ],
    ),
    (
        "a kernel without some offloads",
        |f| f.host.kernel_offloads = kernel_offloads(),
        (Note, "offloads"),
        &["of the kernel, TUN TSO4, TSO6 on; UDP_GRO off: the kernel does not know it"],
    ),
    (
        "pods' veths that do not aggregate",
        |f| {
            add(
                f,
                SurveyedLink {
                    kind: Some("veth".into()),
                    offloads: veth_offloads(),
                    ..link("veth1", 9, 1450)
                },
            )
        },
        (Note, "offloads"),
        &[
            "of 1 veths, generic-receive-offload is on for 0",
            "rx-udp-gro-forwarding is on for 1",
            "--tune-pods",
        ],
    ),
    ("no nft", |f| f.host.nft = Ok(false), (Error, "nft"), &["nftables"]),
    (
        "port taken",
        |f| f.vxlan_port = Some(Err("UDP port 4789 is taken by process 7 (x); stop it".into())),
        (Error, "vxlan-port"),
        &["process 7 (x)", "stop it"],
    ),
    (
        "metrics port taken",
        |f| {
            f.metrics = Err("cannot listen on 127.0.0.1:10249 for metrics: in use; give another".into());
            f.host.tcp_holders = Ok(BTreeMap::from([(10249, "process 8 (kube-proxy)".to_owned())]));
        },
        (Error, "metrics-port"),
        &["cannot listen on 127.0.0.1:10249 for metrics", "process 8 (kube-proxy)"],
    ),
    (
        "kube-proxy's health port taken",
        |f| f.host.tcp_holders = Ok(BTreeMap::from([(10256, "process 8 (kube-proxy)".to_owned())])),
        (Warning, "kube-proxy-ports"),
        &["10256", "process 8"],
    ),
    (
        "another windlass",
        |f| f.managed_by = Some("another windlass, process 9 (windlass),".into()),
        (Error, "another-windlass"),
        &["another windlass, process 9 (windlass), manages", "stop it"],
    ),
    ("flanneld", |f| runs(f, "flanneld", true), (Error, "flanneld"), &["process 77 (flanneld)"]),
    ("kube-proxy", |f| runs(f, "kube-proxy", true), (Error, "kube-proxy"), &["--cleanup"]),
    ("a kube-proxy of who knows where", |f| runs(f, "kube-proxy", false), (Unseen, "kube-proxy"), &["77"]),
    ("our device's name", |f| add(f, link("windlass0", 9, 1450)), (Error, "device-name"), &["--device"]),
    (
        "flannel's device",
        |f| add(f, vxlan("flannel.4096", 4096, 4789)),
        (Error, "flannel-device"),
        &["ip link delete flannel.4096", "4789"],
    ),
    ("our VNI under another name", |f| add(f, vxlan("vx", 4096, 1)), (Error, "flannel-device"), &["vx"]),
    ("our port under another name", |f| add(f, vxlan("vx", 1, 4789)), (Error, "flannel-device"), &["vx"]),
    ("another flannel's", |f| add(f, vxlan("flannel.9", 9, 9)), (Warning, "flannel-device"), &["flannel.9"]),
    ("kube-ipvs0", |f| add(f, link("kube-ipvs0", 9, 1500)), (Error, "kube-proxy-ipvs"), &["ip link delete"]),
    (
        "IPVS",
        |f| f.host.ipvs = Ok(vec!["TCP  0A600001:01BB rr".into()]),
        (Error, "kube-proxy-ipvs"),
        &["1 virtual", "ipvsadm --clear"],
    ),
    (
        "a peer's route",
        |f| lead(f, route("10.244.2.0/24", "eth0")),
        (Error, "routes"),
        &["ip route delete 10.244.2.0/24 dev eth0"],
    ),
    (
        "a route to our range",
        |f| lead(f, route("10.96.0.0/12", "eth0")),
        (Error, "routes"),
        &["10.96.0.0/12"],
    ),
    (
        "a route to no peer's",
        |f| lead(f, route("10.244.9.0/24", "eth0")),
        (Warning, "routes"),
        &["10.244.9.0"],
    ),
    (
        "a narrow path to a peer, with a strict filter before it",
        |f| {
            lead(f, route("192.168.1.51/32", "wg0"));
            add(f, link("wg0", 9, 1420));
            f.host.sysctls.insert("net/ipv4/conf/all/rp_filter".into(), "2".into());
        },
        (Warning, "mtu"),
        &["1420", "ip link set wg0 mtu 1500"],
    ),
    (
        "an underlay narrower than its peers'",
        |f| {
            f.host.addresses.as_mut().unwrap()[0].mtu = 1400;
            (f.host.links, f.host.subnet_env) = (Ok(vec![link("cni0", 3, 1350)]), Ok(None));
        },
        (Warning, "mtu"),
        &[
            "eth0 has an MTU of 1400, so the overlay carries 1350",
            "send up to 1450",
            "ip link set eth0 mtu 1500",
        ],
    ),
    (
        "a path by another interface",
        |f| lead(f, route("192.168.1.51/32", "b")),
        (Warning, "rp-filter"),
        &["eth0"],
    ),
    (
        "no forwarding",
        |f| drop(f.host.sysctls.insert("net/ipv4/ip_forward".into(), "0".into())),
        (Note, "ip-forward"),
        &["net.ipv4.ip_forward", "windlass run sets it"],
    ),
    (
        "a bridge too wide",
        |f| f.host.links = Ok(vec![link("cni0", 3, 1500)]),
        (Warning, "bridge-mtu"),
        &["ip link set cni0 mtu 1450"],
    ),
    (
        "flannel's CNI too wide",
        |f| f.host.subnet_env = Ok(Some("FLANNEL_NETWORK=x\nFLANNEL_MTU=1480\n".into())),
        (Warning, "bridge-mtu"),
        &["FLANNEL_MTU=1480"],
    ),
    ("a clock of 1970", |f| f.host.clock = 0, (Warning, "clock"), &["timedatectl"]),
];

fn runs(facts: &mut Facts, name: &str, is_here: bool) {
    let process = SurveyedProcess { id: 77, name: name.to_owned(), is_here };
    facts.host.processes = Ok(vec![process]);
}

fn add(facts: &mut Facts, link: SurveyedLink) {
    facts.host.links.as_mut().unwrap().push(link);
}

fn lead(facts: &mut Facts, route: SurveyedRoute) {
    facts.host.routes.as_mut().unwrap().push(route);
}

#[test]
fn each_trouble_of_the_host_is_found_alone_with_its_remedy() {
    let mut cluster = example();
    peer(&mut cluster).created_at = Some(NOON_2026 - 1000);
    for (what, change, expected, words) in HOST_CASES {
        let mut facts = healthy();
        change(&mut facts);
        let findings = found(&[], &cluster, &facts);
        assert_eq!(named(&findings), [*expected], "{what}: {findings:?}");
        let text = format!("{} {}", findings[0].seen, findings[0].remedy);
        for word in *words {
            assert!(text.contains(word), "{what}: {word:?} is not in {text:?}");
        }
    }
}

#[test]
fn an_underlay_narrower_than_the_device_of_a_run_needs_is_found() {
    let mut facts = healthy();
    facts.managed_by = Some("another windlass".into());
    add(&mut facts, link("windlass0", 9, 1450));
    facts.host.addresses.as_mut().unwrap()[0].mtu = 1480;
    let findings = found(&[], &example(), &facts);
    let mtu = findings.iter().find(|finding| finding.check.name == "mtu").unwrap();
    assert_eq!(mtu.seen, "windlass0 has an MTU of 1450, which needs 1500 of eth0, and eth0 has 1480");
}

fn kernel_offloads() -> Vec<KernelOffload> {
    let missing = Err("the kernel does not know it".to_owned());
    vec![
        KernelOffload { name: "TUN TSO4, TSO6", state: Ok(()) },
        KernelOffload { name: "UDP_GRO", state: missing },
    ]
}

fn veth_offloads() -> Vec<(&'static str, OffloadState)> {
    vec![("generic-receive-offload", OffloadState::Off), ("rx-udp-gro-forwarding", OffloadState::On)]
}
