use windlass_dataplane::device::Family;
use windlass_dataplane::device::survey::{FirewallSurvey, SurveyedForwarding, WindowsSurvey};

use super::host::HostCase;
use super::*;
use crate::cluster::ObjectName;

const RULE: &str =
    r"v2.30|Action=Allow|Active=TRUE|Dir=In|Protocol=17|LPort=4789|App=C:\windlass.exe|Name=windlass-vxlan|";

/// As flannel's vxlan backend makes it on Windows.
const OVERLAY: &str = r#"{"Success": true, "Output": [{"Name": "nat", "Type": "nat"}, {"Name": "flannel.4096", "Type": "Overlay",
    "Subnets": [{"AddressPrefix": "10.244.0.0/24", "Policies": [{"Type": "VSID", "VSID": 4096}]}]}]}"#;

/// The worked example's node-a as a Windows host: what Linux has cannot be seen.
fn healthy() -> Facts {
    let mut facts = super::healthy();
    let elsewhere = || "Windows has no such thing".to_owned();
    facts.host.tun = Err(elsewhere());
    facts.host.nft = Err(elsewhere());
    facts.host.ruleset = Err(elsewhere());
    facts.host.iptables_rules = Err(elsewhere());
    facts.host.ipvs = Err(elsewhere());
    facts.host.subnet_env = Err(elsewhere());
    facts.host.sysctls.clear();
    let forwards = |interface: &str, is_on| SurveyedForwarding {
        interface: interface.to_owned(),
        family: Family::V4,
        is_on,
    };
    facts.host.windows = Some(WindowsSurvey {
        wintun: Ok(()),
        udp_holders: Ok(BTreeMap::new()),
        hns_networks: Ok(r#"{"Success": true, "Output": []}"#.to_owned()),
        forwarding: Ok(vec![forwards("eth0", true), forwards("cni0", true), forwards("Wi-Fi", false)]),
        firewall: Ok(FirewallSurvey { active: vec!["domain", "public"], rules: vec![RULE.to_owned()] }),
    });
    facts
}

fn host(facts: &mut Facts) -> &mut WindowsSurvey {
    facts.host.windows.as_mut().unwrap()
}

fn firewall(facts: &mut Facts) -> &mut FirewallSurvey {
    host(facts).firewall.as_mut().unwrap()
}

#[test]
fn a_healthy_windows_node_has_no_finding_of_what_linux_alone_has() {
    assert_eq!(named(&found(&[], &example(), &healthy())), Vec::new());
}

/// What the host is like, what is found, and words of what is seen and of the remedy.
const CASES: &[HostCase] = &[
    (
        "no wintun.dll",
        |f| host(f).wintun = Err("wintun.dll: missing; download it".into()),
        (Error, "wintun"),
        &["missing", "download it"],
    ),
    (
        "VXLAN's port held by a process",
        |f| {
            f.vxlan_port = Some(Err("UDP port 4789 is taken; stop it".into()));
            host(f).udp_holders = Ok(BTreeMap::from([(4789, "process 7 (flanneld)".to_owned())]));
        },
        (Error, "vxlan-port"),
        &["process 7 (flanneld)", "stop it"],
    ),
    (
        "VXLAN's port held by VFP",
        |f| f.vxlan_port = Some(Err("UDP port 4789 is taken; stop it".into())),
        (Error, "vxlan-port"),
        &["no process has it", "Get-HnsNetwork"],
    ),
    (
        "an HNS overlay network on our VNI",
        |f| host(f).hns_networks = Ok(OVERLAY.into()),
        (Error, "hns-overlay"),
        &["flannel.4096", "VNI 4096", "Remove-HnsNetwork"],
    ),
    (
        "one on another VNI",
        |f| host(f).hns_networks = Ok(OVERLAY.replace("4096", "5000")),
        (Warning, "hns-overlay"),
        &["flannel.5000", "[5000]"],
    ),
    (
        "no HNS",
        |f| host(f).hns_networks = Err("no vmcompute.dll".into()),
        (Unseen, "hns-overlay"),
        &["vmcompute"],
    ),
    (
        "an HNS that refuses",
        |f| host(f).hns_networks = Ok(r#"{"Success": false, "Error": "access denied"}"#.into()),
        (Unseen, "hns-overlay"),
        &["access denied"],
    ),
    ("an HNS that babbles", |f| host(f).hns_networks = Ok("<".into()), (Unseen, "hns-overlay"), &["no JSON"]),
    (
        "an underlay that does not forward",
        |f| host(f).forwarding.as_mut().unwrap()[0].is_on = false,
        (Warning, "ip-forward"),
        &["netsh interface ipv4 set interface \"eth0\" forwarding=enabled"],
    ),
    (
        "a pods' interface that does not forward",
        |f| host(f).forwarding.as_mut().unwrap()[1].is_on = false,
        (Warning, "ip-forward"),
        &["\"cni0\""],
    ),
    ("forwarding unseen", |f| host(f).forwarding = Err("wine".into()), (Unseen, "ip-forward"), &["wine"]),
    (
        "no rule for VXLAN",
        |f| firewall(f).rules.clear(),
        (Warning, "firewall"),
        &["domain, public", "UDP port 4789", "windlass service install"],
    ),
    (
        "a rule that blocks it beside ours",
        |f| firewall(f).rules.push(RULE.replace("Allow", "Block").replace("windlass-vxlan", "no overlays")),
        (Warning, "firewall"),
        &["no overlays", "enable=no"],
    ),
    (
        "a peer's route",
        |f| {
            let by_hand =
                SurveyedRoute { gateway: "192.168.1.1".parse().ok(), ..route("10.244.2.0/24", "Ethernet 2") };
            f.host.routes.as_mut().unwrap().push(by_hand);
        },
        (Error, "routes"),
        &[
            "Remove-NetRoute -DestinationPrefix 10.244.2.0/24 -InterfaceAlias 'Ethernet 2' -NextHop 192.168.1.1",
        ],
    ),
    (
        "an underlay narrower than its peers'",
        |f| {
            f.host.addresses.as_mut().unwrap()[0].mtu = 1400;
            f.host.links = Ok(vec![link("cni0", 3, 1350)]);
        },
        (Warning, "mtu"),
        &["Set-NetIPInterface -InterfaceAlias 'eth0' -NlMtuBytes 1500"],
    ),
    (
        "an adapter of our name",
        |f| f.host.links.as_mut().unwrap().push(link("windlass0", 9, 1450)),
        (Error, "device-name"),
        &["pnputil /remove-device"],
    ),
    ("a firewall unseen", |f| host(f).firewall = Err("denied".into()), (Unseen, "firewall"), &["denied"]),
];

#[test]
fn each_fault_of_a_windows_host_is_found_and_told() {
    for (what, make, expected, words) in CASES {
        let mut facts = healthy();
        make(&mut facts);
        let findings = found(&[], &example(), &facts);
        assert_eq!(named(&findings), [*expected], "{what}: {findings:?}");
        let told = format!("{} {}", findings[0].seen, findings[0].remedy);
        for word in *words {
            assert!(told.contains(word), "{what}: {told}");
        }
    }
}

#[test]
fn a_firewall_that_is_off_needs_no_rule() {
    let mut facts = healthy();
    *firewall(&mut facts) = FirewallSurvey::default();
    assert_eq!(named(&found(&[], &example(), &facts)), Vec::new());
}

/// The example's web with a node port.
fn with_node_port(local: bool) -> ClusterState {
    let mut cluster = example();
    let web = cluster.services.get_mut(&ObjectName::new("default", "web")).unwrap();
    let web = Arc::make_mut(web);
    web.ports[0].node_port = Some(30_080);
    web.exposure.local = local;
    cluster
}

#[test]
fn what_of_node_ports_is_served_is_told() {
    let findings = found(&[], &with_node_port(false), &healthy());
    assert_eq!(named(&findings), [(Note, "node-ports")]);
    assert!(findings[0].seen.starts_with("1 node ports are served"), "{findings:?}");
    let findings = found(&[], &with_node_port(true), &healthy());
    assert_eq!(named(&findings), [(Warning, "node-ports")]);
    let told = format!("{} {}", findings[0].seen, findings[0].remedy);
    for words in ["Service default/web:80", "tcp node port 30080 is not served", "set the policy to Cluster"]
    {
        assert!(told.contains(words), "{told}");
    }
    // Linux brings them to the device, with the client's address.
    assert_eq!(named(&found(&[], &with_node_port(true), &super::healthy())), Vec::new());
}

#[test]
fn services_whose_replies_windows_would_lose_are_named() {
    let mut cluster = example();
    let slice = cluster.endpoint_slices.get_mut(&ObjectName::new("default", "web-m4c9d")).unwrap();
    Arc::make_mut(slice).endpoints[0].addr = "192.168.1.51".parse().unwrap();
    let findings = found(&[], &cluster, &healthy());
    assert_eq!(named(&findings), [(Warning, "ip-masq")]);
    assert!(findings[0].seen.contains("default/web:80"), "{findings:?}");
    // A server of this node itself answers.
    let slice = cluster.endpoint_slices.get_mut(&ObjectName::new("default", "web-m4c9d")).unwrap();
    Arc::make_mut(slice).endpoints[0].addr = "192.168.1.40".parse().unwrap();
    assert_eq!(named(&found(&[], &cluster, &healthy())), Vec::new());
}
