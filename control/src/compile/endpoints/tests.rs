//! The cases of Kubernetes' `TestCategorizeEndpoints` (pkg/proxy/topology_test.go) in our terms: which endpoints a Cluster and a Local policy choose on node `here` in zone `a`.

use windlass_dataplane::tables::Vip;
use windlass_dataplane::wire::flow::Protocol;

use super::*;
use crate::cluster::{EndpointPort, Hints};
use crate::compile::tests::settings;

struct Case {
    name: &'static str,
    /// Our zone, if we are in one.
    zone: Option<&'static str>,
    /// `last-byte node conditions zone-hints node-hints`: conditions of `r`eady, `s`erving, `t`erminating, `-` for none.
    endpoints: &'static [&'static str],
    /// Last bytes of what is chosen for a policy of Cluster.
    cluster: &'static [u8],
    /// The same for Local, and what becomes of packets without.
    local: (&'static [u8], WhenEmpty),
}

use WhenEmpty::{Drop, Reject};

const CASES: &[Case] = &[
    Case { name: "no endpoints", zone: Some("a"), endpoints: &[], cluster: &[], local: (&[], Reject) },
    Case {
        name: "hints, and an endpoint of our zone; topology is ignored for Local",
        zone: Some("a"),
        endpoints: &["1 here rs a -", "2 there rs b -", "3 here rs b -", "4 there rs a -"],
        cluster: &[1, 4],
        local: (&[1, 3], Reject),
    },
    Case {
        name: "our node has no zone: no filtering",
        zone: None,
        endpoints: &["1 here rs a -", "2 there rs b -"],
        cluster: &[1, 2],
        local: (&[1], Reject),
    },
    Case {
        name: "hints for other zones only: no filtering",
        zone: Some("a"),
        endpoints: &["1 there rs b -", "2 there rs c -"],
        cluster: &[1, 2],
        local: (&[], Drop),
    },
    Case {
        name: "an endpoint that is not ready does not count, nor does its hint",
        zone: Some("a"),
        endpoints: &["1 there rs b -", "2 there s a -", "3 there rs c -"],
        cluster: &[1, 3],
        local: (&[], Drop),
    },
    Case {
        name: "one ready endpoint without hints: no filtering",
        zone: Some("a"),
        endpoints: &["1 there rs a -", "2 there rs b -", "3 there rs - -"],
        cluster: &[1, 2, 3],
        local: (&[], Drop),
    },
    Case {
        name: "one that is not ready and has no hints does not matter",
        zone: Some("a"),
        endpoints: &["1 there rs a -", "2 there rs b -", "3 there s - -"],
        cluster: &[1],
        local: (&[], Drop),
    },
    Case {
        name: "several zones in one hint",
        zone: Some("c"),
        endpoints: &["1 there rs a,b,c -", "2 there rs b,c -", "3 there rs b,d -"],
        cluster: &[1, 2],
        local: (&[], Drop),
    },
    Case {
        name: "trafficDistribution PreferSameNode: node hints before zone hints",
        zone: Some("a"),
        endpoints: &["1 here rs a here", "2 there rs a there"],
        cluster: &[1],
        local: (&[1], Reject),
    },
    Case {
        name: "node hints for others only: zone hints count",
        zone: Some("a"),
        endpoints: &["1 there rs a there", "2 third rs b third"],
        cluster: &[1],
        local: (&[], Drop),
    },
    Case {
        name: "Cluster, no endpoint ready: none, and they serve for nobody",
        zone: Some("a"),
        endpoints: &["1 here - - -", "2 there s - -"],
        cluster: &[],
        local: (&[], Reject),
    },
    Case {
        name: "some ready: the terminating ones get nothing new",
        zone: Some("a"),
        endpoints: &["1 here st - -", "2 there rs - -"],
        cluster: &[2],
        local: (&[1], Reject),
    },
    Case {
        name: "all terminating: those that still serve",
        zone: Some("a"),
        endpoints: &["1 here st - -", "2 there st - -", "3 here t - -"],
        cluster: &[1, 2],
        local: (&[1], Reject),
    },
    Case {
        name: "terminating ones are taken whatever their hints",
        zone: Some("a"),
        endpoints: &["1 there st b -", "2 there st a -"],
        cluster: &[1, 2],
        local: (&[], Drop),
    },
    Case {
        name: "Local, one ready here and one ending here: the ready one",
        zone: Some("a"),
        endpoints: &["1 here st - -", "2 here rs - -", "3 there rs - -"],
        cluster: &[2, 3],
        local: (&[2], Reject),
    },
    Case {
        name: "Local, only endpoints elsewhere that are ending: dropped, for there are some",
        zone: Some("a"),
        endpoints: &["1 there st - -", "2 here t - -"],
        cluster: &[1],
        local: (&[], Drop),
    },
];

fn words(text: &str) -> Vec<String> {
    if text == "-" { Vec::new() } else { text.split(',').map(str::to_owned).collect() }
}

fn endpoint(text: &str) -> Endpoint {
    let [last, node, conditions, zones, nodes] = text.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{text}");
    };
    Endpoint {
        addr: format!("10.244.1.{last}").parse().unwrap(),
        node: Some(node.to_owned()),
        ready: conditions.contains('r'),
        serving: conditions.contains('s'),
        terminating: conditions.contains('t'),
        hints: Some(Box::new(Hints { zones: words(zones), nodes: words(nodes) })),
    }
}

#[test]
fn f4_endpoints_are_categorized_as_by_kube_proxy() {
    for case in CASES {
        let port =
            ServicePort { name: "http".to_owned(), protocol: Protocol::TCP, port: 80, node_port: None };
        let slice = EndpointSlice {
            service: Some("web".to_owned()),
            ports: vec![EndpointPort { name: "http".to_owned(), protocol: Protocol::TCP, port: 8080 }],
            endpoints: case.endpoints.iter().map(|text| endpoint(text)).collect(),
            ..EndpointSlice::default()
        };
        let slices = [(ObjectName::new("default", "web-1"), Arc::new(slice))];
        let settings = NodeSettings { node: "here".into(), zone: case.zone.map(str::to_owned), ..settings() };
        let endpoints = Endpoints::of(&settings, &port, false, &slices);
        let vip = Vip { addr: "10.96.0.1".parse().unwrap(), port: 80, protocol: Protocol::TCP };
        let given = |choice: Choice| choice.give(TableService::new("default/web:http", vip, Vec::new()));
        let last_bytes = |service: &TableService| -> Vec<u8> {
            let last = |backend: &SocketAddr| match backend {
                SocketAddr::V4(backend) => backend.ip().octets()[3],
                SocketAddr::V6(_) => 0,
            };
            service.backends.iter().map(last).collect()
        };
        let (cluster, local) = (given(endpoints.cluster()), given(endpoints.local()));
        assert_eq!(last_bytes(&cluster), case.cluster, "{}: Cluster", case.name);
        assert_eq!(cluster.when_empty, Reject, "{}", case.name);
        assert_eq!(last_bytes(&local), case.local.0, "{}: Local", case.name);
        if local.backends.is_empty() {
            assert_eq!(local.when_empty, case.local.1, "{}: Local", case.name);
        }
    }
}
