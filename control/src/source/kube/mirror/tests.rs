use serde_json::json;

use super::*;

const PREFIX: &str = "flannel.alpha.coreos.com";

fn service(name: &str, ip: &str, port: i32) -> core::Service {
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "clusterIP": ip, "clusterIPs": [ip], "ports": [{ "port": port }] },
    }))
    .unwrap()
}

fn node(data: &str) -> core::Node {
    serde_json::from_value(json!({
        "metadata": { "name": "n1", "annotations": { format!("{PREFIX}/backend-data"): data } },
        "spec": { "podCIDR": "10.244.1.0/24" },
    }))
    .unwrap()
}

fn config(text: &str) -> core::ConfigMap {
    serde_json::from_value(json!({
        "metadata": { "name": FLANNEL_CONFIG, "namespace": "kube-flannel" },
        "data": { "net-conf.json": text },
    }))
    .unwrap()
}

fn names(mirror: &mut Mirror) -> Vec<String> {
    mirror.state().services.keys().map(|name| name.name.to_string()).collect()
}

#[test]
fn g6_a_list_replaces_all_objects_of_its_kind_at_once() {
    let mut mirror = Mirror::new(PREFIX);
    let first = vec![service("a", "10.96.0.1", 80), service("b", "10.96.0.2", 80)];
    assert!(mirror.take(Kind::Service, Event::Listed(first.clone())));
    assert!(!mirror.take(Kind::Service, Event::Listed(first)), "the same list again changes nothing");
    let second = vec![service("b", "10.96.0.2", 80), service("c", "10.96.0.3", 80)];
    assert!(mirror.take(Kind::Service, Event::Listed(second)));
    assert_eq!(names(&mut mirror), ["b", "c"]);
}

#[test]
fn an_object_that_says_the_same_stays_the_same_allocation() {
    let mut mirror = Mirror::new(PREFIX);
    mirror.take(Kind::Service, Event::Applied(service("a", "10.96.0.1", 80)));
    let name = ObjectName::new("default", "a");
    let before = Arc::clone(&mirror.services.objects[&name]);
    assert!(!mirror.take(Kind::Service, Event::Applied(service("a", "10.96.0.1", 80))));
    assert!(!mirror.take(Kind::Service, Event::Listed(vec![service("a", "10.96.0.1", 80)])));
    assert!(Arc::ptr_eq(&before, &mirror.services.objects[&name]));
    assert!(mirror.take(Kind::Service, Event::Deleted(service("a", "10.96.0.1", 80))));
    assert!(names(&mut mirror).is_empty());
}

#[test]
fn f10_a_malformed_object_is_kept_as_it_last_was_while_the_rest_goes_on() {
    let mut mirror = Mirror::new(PREFIX);
    mirror.take(Kind::Service, Event::Listed(vec![service("a", "10.96.0.1", 80)]));
    let before = mirror.state();
    assert!(mirror.take(Kind::Service, Event::Applied(service("a", "10.96.0.1", 70_000))));
    assert_eq!(mirror.state(), before);
    assert!(mirror.problems()[0].to_string().starts_with("Service default/a: port 70000"));
    let list = vec![service("a", "010.96.0.1", 80), service("b", "10.96.0.2", 80)];
    mirror.take(Kind::Service, Event::Listed(list));
    assert_eq!(names(&mut mirror), ["a", "b"]);
    assert!(mirror.problems()[0].text.ends_with(IS_KEPT));
    mirror.take(Kind::Service, Event::Applied(service("c", "10.96.0.3", 0)));
    assert!(mirror.problems()[1].text.ends_with(IS_SKIPPED));
    mirror.take(Kind::Service, Event::Applied(service("a", "10.96.0.9", 80)));
    mirror.take(Kind::Service, Event::Deleted(service("c", "10.96.0.3", 0)));
    assert_eq!(mirror.problems(), Vec::new());
}

#[test]
fn f10_a_node_keeps_its_vtep_and_the_cluster_its_net_conf() {
    let mut mirror = Mirror::new(PREFIX);
    mirror.take(Kind::Node, Event::Applied(node(r#"{"VNI":1,"VtepMAC":"00:15:5d:3c:3e:3c"}"#)));
    mirror.take(Kind::FlannelConfig, Event::Applied(config(r#"{"Network":"10.244.0.0/16"}"#)));
    let before = mirror.state();
    mirror.take(Kind::Node, Event::Applied(node("{")));
    mirror.take(Kind::FlannelConfig, Event::Applied(config("{")));
    assert_eq!(mirror.state(), before);
    assert_eq!(mirror.problems().len(), 2);
    mirror.take(Kind::Node, Event::Applied(node("null")));
    assert_ne!(mirror.state(), before, "no annotation is no mistake");
}

#[test]
fn the_newer_place_of_flannels_configuration_wins() {
    let mut mirror = Mirror::new(PREFIX);
    mirror.take(Kind::OldFlannelConfig, Event::Applied(config(r#"{"Network":"10.1.0.0/16"}"#)));
    assert!(matches!(mirror.state().net_conf, NetConfState::Present(_)));
    mirror.take(Kind::FlannelConfig, Event::Applied(config(r#"{"Network":"10.2.0.0/16"}"#)));
    let NetConfState::Present(conf) = mirror.state().net_conf else { panic!("no net-conf") };
    assert_eq!(conf.network.map(|network| network.to_string()).as_deref(), Some("10.2.0.0/16"));
}

#[test]
fn differences_lead_from_what_was_told_to_what_is_there() {
    let mut mirror = Mirror::new(PREFIX);
    mirror.take(
        Kind::Service,
        Event::Listed(vec![service("a", "10.96.0.1", 80), service("b", "10.96.0.2", 80)]),
    );
    mirror.take(Kind::Node, Event::Applied(node("null")));
    let mut told = mirror.state();
    assert_eq!(mirror.difference(), Difference::default(), "all of it was told");
    let steps: [&dyn Fn(&mut Mirror) -> bool; 5] = [
        &|mirror| mirror.take(Kind::Service, Event::Applied(service("c", "10.96.0.3", 80))),
        &|mirror| mirror.take(Kind::Service, Event::Listed(vec![service("b", "10.96.0.9", 80)])),
        &|mirror| mirror.take(Kind::Node, Event::Deleted(node("null"))),
        &|mirror| mirror.take(Kind::FlannelConfig, Event::Applied(config(r#"{"Network":"10.1.0.0/16"}"#))),
        &|mirror| mirror.take(Kind::Service, Event::Applied(service("b", "10.96.0.9", 80))),
    ];
    let sizes = steps.map(|step| {
        let has_changed = step(&mut mirror);
        let difference = mirror.difference();
        let size = difference.nodes.len() + difference.services.len();
        told.apply(difference);
        (has_changed, size)
    });
    let expected = [(true, 1), (true, 3), (true, 1), (true, 0), (false, 0)];
    assert_eq!(sizes, expected, "as much as has changed");
    assert_eq!(told, mirror.state());
}
