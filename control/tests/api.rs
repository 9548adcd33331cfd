//! The cluster from an API server: a stand-in that speaks the real wire protocol, and fails in real ways.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::sync::Notify;
use windlass_control::cluster::{ClusterState, ObjectName};
use windlass_control::source::kube::{
    Access, ApiSource, FOLLOW, Kind, PATCH, PATCHED, Patience, SourceError,
};
use windlass_control::source::{Cluster, manifests};
use windlass_tests::api_server::{ApiServer, Fault};
use windlass_tests::objects::{Objects, ServiceSpec};
use windlass_tests::process::wait_until;
use windlass_tests::topology::NodeSpec;

const PREFIX: &str = "flannel.alpha.coreos.com";
const LIMIT: Duration = Duration::from_secs(60);

const WEB: ServiceSpec =
    ServiceSpec { name: "web", vip: Ipv4Addr::new(10, 106, 228, 152), port: 80, backend_port: 8080 };

/// Hanging answers are given up soon, so that tests need not wait for what a minute shows as well.
const IMPATIENT: Patience = Patience {
    watch_for: Duration::from_secs(30),
    watch_limit: Duration::from_secs(2),
    answer_limit: Duration::from_secs(2),
};

fn cluster() -> Objects {
    let backend = (Ipv4Addr::new(10, 244, 2, 9).into(), "node-51");
    Objects::cluster(&[NodeSpec::first(), NodeSpec::second()]).with_service(&WEB, &[backend])
}

/// A source, what it has told last, and the folder of its kubeconfig.
struct Mirrored {
    source: ApiSource,
    told: Option<Cluster>,
    _folder: tempfile::TempDir,
}

impl Mirrored {
    fn start(server: &ApiServer) -> Result<Self> {
        Self::woken(server, &Arc::new(Notify::new()))
    }

    fn woken(server: &ApiServer, wake: &Arc<Notify>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let access = Access::Kubeconfig(server.kubeconfig(folder.path(), "secret")?);
        let source = ApiSource::start(&access, PREFIX, IMPATIENT, Arc::clone(wake))?;
        Ok(Self { source, told: None, _folder: folder })
    }

    fn listed(server: &ApiServer) -> Result<Self> {
        let mut mirrored = Self::start(server)?;
        mirrored.source.wait(LIMIT, |_| true)?;
        mirrored.state()?;
        Ok(mirrored)
    }

    /// Waits with less patience, for a kind that is not to come.
    fn not_listed(&self) -> Result<String> {
        let mut said = Vec::new();
        let short = Duration::from_secs(3);
        let waited = self.source.wait(short, |error| {
            said.push(error.to_string());
            true
        });
        let error = waited.err().context("every kind was listed")?;
        ensure!(matches!(error, SourceError::NotListed { .. }) && !said.is_empty(), "{said:?}");
        Ok(error.to_string())
    }

    fn state(&mut self) -> Result<&ClusterState> {
        self.told = self.source.take().or(self.told.take());
        Ok(&self.told.as_ref().context("nothing was told")?.state)
    }

    fn wait_for(&mut self, what: &str, wanted: impl Fn(&ClusterState) -> bool) -> Result<()> {
        wait_until(what, LIMIT, || Ok(wanted(self.state()?)))
    }

    fn wait_for_services(&mut self, names: &[&str]) -> Result<()> {
        self.wait_for(&format!("services {names:?}"), |state| services(state) == names)
    }
}

fn services(state: &ClusterState) -> Vec<&str> {
    state.services.keys().map(|name| &*name.name).collect()
}

fn extra(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "default" },
        "spec": { "clusterIP": "10.106.9.9", "clusterIPs": ["10.106.9.9"], "ports": [{ "port": 80 }] },
    })
}

#[test]
fn the_api_gives_the_same_cluster_as_the_same_objects_in_a_file() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    let mut mirrored = Mirrored::listed(&server)?;
    let folder = tempfile::tempdir()?;
    // The server gives each object its uid and time, so the file is written from what it serves.
    let mut served = Objects::default();
    for object in cluster().iter() {
        let text = |path: &str| object.pointer(path).and_then(|text| text.as_str()).unwrap_or_default();
        let plural = format!("{}s", text("/kind").to_lowercase());
        let found = server.object(&plural, text("/metadata/namespace"), text("/metadata/name"));
        served.push(found.with_context(|| format!("{plural} {}", text("/metadata/name")))?);
    }
    served.write(folder.path())?;
    let loaded = manifests::Manifests::new(&[folder.path().to_owned()], PREFIX).read()?;
    assert_eq!(*mirrored.state()?, loaded.state);
    Ok(())
}

#[test]
fn objects_that_come_change_and_go_are_followed() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    let mut mirrored = Mirrored::listed(&server)?;
    server.apply(extra("extra"))?;
    mirrored.wait_for_services(&["extra", "web"])?;
    server.patch("services", "default", "extra", &json!({ "spec": { "ports": [{ "port": 81 }] } }))?;
    mirrored.wait_for("the other port", |state| {
        state.services[&ObjectName::new("default", "extra")].ports[0].port == 81
    })?;
    server.delete("services", "default", "extra")?;
    mirrored.wait_for_services(&["web"])?;
    ensure!(server.count("GET", "services") == 1, "one list is enough");
    Ok(())
}

#[test]
fn a_status_that_nobody_needs_is_no_change() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    let mut mirrored = Mirrored::listed(&server)?;
    let heartbeat =
        json!({ "status": { "nodeInfo": { "kernelVersion": "6.18" } }, "unknown": { "field": 1 } });
    server.patch("nodes", "", "node-51", &heartbeat)?;
    server.apply(extra("after"))?;
    mirrored.wait_for_services(&["after", "web"])?;
    server.patch("nodes", "", "node-51", &json!({ "status": { "nodeInfo": { "kernelVersion": "7" } } }))?;
    std::thread::sleep(Duration::from_millis(300));
    ensure!(mirrored.source.take().is_none());
    Ok(())
}

#[test]
fn a_list_in_pages_is_one_list() -> Result<()> {
    let mut objects = cluster();
    let names: Vec<String> = (0..1_201).map(|number| format!("s{number:04}")).collect();
    names.iter().for_each(|name| objects.push(extra(name)));
    let server = ApiServer::start(&objects)?;
    let mut mirrored = Mirrored::listed(&server)?;
    ensure!(mirrored.state()?.services.len() == 1_202);
    ensure!(server.count("GET", "services") == 3);
    Ok(())
}

#[test]
fn g6_a_watch_that_is_told_410_lists_again_and_loses_nothing() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    let mut mirrored = Mirrored::listed(&server)?;
    server.fail(Fault::SilentWatches);
    server.apply(extra("new"))?;
    server.delete("services", "default", "web")?;
    server.compact();
    server.recover();
    // Everything at once: never a cluster with both or with neither.
    wait_until("the new service alone", LIMIT, || {
        let services = services(mirrored.state()?);
        ensure!(services == ["web"] || services == ["new"], "{services:?}");
        Ok(services == ["new"])
    })?;
    ensure!(server.count("GET", "services") >= 2, "only a list tells what went meanwhile");
    Ok(())
}

#[test]
fn watches_that_end_break_off_are_slow_or_hang_are_resumed() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    let mut mirrored = Mirrored::listed(&server)?;
    let mut names = vec!["web".to_owned()];
    let faults = [Fault::ClosedWatches, Fault::BrokenWatches, Fault::SilentWatches, Fault::SlowWatches];
    for (number, fault) in faults.into_iter().enumerate() {
        server.fail(fault);
        server.end_watches();
        let name = format!("after-{number}");
        server.apply(extra(&name))?;
        std::thread::sleep(Duration::from_secs(1));
        if fault != Fault::SlowWatches {
            ensure!(!services(mirrored.state()?).contains(&name.as_str()), "{fault:?} does not fail");
            server.recover();
        }
        names.push(name);
        names.sort();
        mirrored
            .wait_for(&format!("the service added during {fault:?}"), |state| services(state) == names)?;
        server.recover();
    }
    ensure!(server.count("GET", "services") == 1, "a watch that ended is resumed where it was");
    Ok(())
}

#[test]
fn a_server_that_closes_every_watch_is_not_hammered() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    server.fail(Fault::ClosedWatches);
    let _mirrored = Mirrored::listed(&server)?;
    std::thread::sleep(Duration::from_secs(3));
    let watches = server.count("WATCH", "services");
    ensure!((1..=8).contains(&watches), "{watches} watches in 3 s");
    Ok(())
}

#[test]
fn g4_what_was_known_stays_while_the_server_is_away_or_mute() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    let mut mirrored = Mirrored::listed(&server)?;
    for fault in [Fault::Away, Fault::Mute] {
        let before = mirrored.state()?.clone();
        server.fail(fault);
        server.end_watches();
        server.delete("services", "default", "extra")?;
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(*mirrored.state()?, before);
        server.recover();
        server.apply(extra("extra"))?;
        mirrored.wait_for_services(&["extra", "web"])?;
    }
    Ok(())
}

#[test]
fn g7_nothing_is_told_before_every_kind_was_listed() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    server.fail(Fault::Refuse("endpointslices", 403));
    let mirrored = Mirrored::start(&server)?;
    let said = mirrored.not_listed()?;
    for word in ["EndpointSlices", "403", "discovery.k8s.io", "list, watch"] {
        ensure!(said.contains(word), "{said}");
    }
    ensure!(!said.contains("Services,"), "{said}");
    ensure!(mirrored.source.take().is_none());
    server.recover();
    mirrored.source.wait(LIMIT, |_| true)?;
    ensure!(mirrored.source.take().is_some());
    Ok(())
}

#[test]
fn kinds_that_a_node_can_do_without_are_done_without() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    server.fail(Fault::Refuse("servicecidrs", 404));
    server.fail(Fault::Refuse("configmaps", 403));
    let mut mirrored = Mirrored::listed(&server)?;
    ensure!(mirrored.state()?.service_cidrs.is_empty());
    let problems: Vec<String> =
        mirrored.told.iter().flat_map(|told| &told.problems).map(ToString::to_string).collect();
    let says = |word: &str| problems.iter().any(|problem| problem.contains(word));
    ensure!(says("--service-cidr") && says("kube-flannel/kube-flannel-cfg") && says("--vni"), "{problems:?}");
    server.recover();
    mirrored.wait_for("the ServiceCIDR, once it may be read", |state| !state.service_cidrs.is_empty())
}

#[test]
fn an_expired_token_is_said_and_what_was_known_stays() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    server.require_token("another");
    let mirrored = Mirrored::start(&server)?;
    let said = mirrored.not_listed()?;
    ensure!(said.contains("401") && said.contains("expired") && said.contains("kubeconfig"), "{said}");
    server.require_token("secret");
    mirrored.source.wait(LIMIT, |_| true)?;
    Ok(())
}

#[test]
fn an_unreachable_server_is_named() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    let folder = tempfile::tempdir()?;
    let file = server.kubeconfig(folder.path(), "secret")?;
    let text = std::fs::read_to_string(&file)?.replace(&server.url(), "http://127.0.0.1:1");
    std::fs::write(&file, text)?;
    let source = ApiSource::start(&Access::Kubeconfig(file), PREFIX, IMPATIENT, Arc::new(Notify::new()))?;
    let error = source.wait(Duration::from_secs(1), |_| true).err().context("listed")?.to_string();
    for word in ["http://127.0.0.1:1", "refused", "Nodes", "KUBERNETES_SERVICE_HOST"] {
        ensure!(error.contains(word), "{error}");
    }
    Ok(())
}

#[test]
fn a_thousand_ports_and_a_thousand_addresses_are_read() -> Result<()> {
    let mut objects = cluster();
    let ports: Vec<_> = (1..=1_000).map(|port| json!({ "name": format!("p{port}"), "port": port })).collect();
    let mut wide = extra("wide");
    wide["spec"]["ports"] = json!(ports);
    objects.push(wide);
    let endpoints: Vec<_> = (0..1_000)
        .map(|number| json!({ "addresses": [format!("10.244.{}.{}", 4 + number / 250, 1 + number % 250)] }))
        .collect();
    objects.push(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "wide", "namespace": "default", "labels": { "kubernetes.io/service-name": "wide" } },
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
    }));
    let server = ApiServer::start(&objects)?;
    let mut mirrored = Mirrored::listed(&server)?;
    let name = ObjectName::new("default", "wide");
    let state = mirrored.state()?;
    ensure!(
        state.services[&name].ports.len() == 1_000 && state.endpoint_slices[&name].endpoints.len() == 1_000
    );
    Ok(())
}

#[test]
fn unknown_fields_are_passed_over() -> Result<()> {
    let objects = cluster();
    let known = Mirrored::listed(&ApiServer::start(&objects)?)?.state()?.clone();
    let server = ApiServer::start(&Objects::default())?;
    for object in objects.iter() {
        let mut object = object.clone();
        object["ofALaterRelease"] = json!({ "mode": ["new", 1, null] });
        object["metadata"]["ofALaterRelease"] = json!(7);
        if let Some(spec) = object.get_mut("spec") {
            spec["ofALaterRelease"] = json!("yes");
        }
        for endpoint in object.get_mut("endpoints").and_then(|list| list.as_array_mut()).into_iter().flatten()
        {
            endpoint["ofALaterRelease"] = json!([{}]);
        }
        server.apply(object)?;
    }
    let mut mirrored = Mirrored::listed(&server)?;
    let problems: Vec<String> =
        mirrored.told.iter().flat_map(|told| &told.problems).map(ToString::to_string).collect();
    ensure!(problems.iter().all(|problem| !problem.contains("LaterRelease")), "{problems:?}");
    let state = mirrored.state()?;
    ensure!(
        state.services.keys().eq(known.services.keys()) && state.endpoint_slices == known.endpoint_slices
    );
    let cidrs = |state: &ClusterState| -> Vec<_> {
        state.nodes.values().map(|node| node.pod_cidrs.clone()).collect()
    };
    ensure!(cidrs(state) == cidrs(&known) && state.service_cidrs == known.service_cidrs);
    Ok(())
}

#[test]
fn a_token_that_expires_under_way_is_said_and_what_was_known_stays() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    let mut mirrored = Mirrored::listed(&server)?;
    let known = mirrored.state()?.clone();
    server.require_token("another");
    server.end_watches();
    wait_until("a refused watch", LIMIT, || Ok(server.count("WATCH", "services") > 2))?;
    server.apply(extra("unseen"))?;
    ensure!(*mirrored.state()? == known, "nothing is lost");
    server.require_token("secret");
    mirrored.wait_for_services(&["unseen", "web"])
}

#[test]
fn differences_lead_to_the_cluster_as_it_is() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    let mut mirrored = Mirrored::listed(&server)?;
    let mut state = mirrored.state()?.clone();
    server.apply(extra("new"))?;
    server.delete("endpointslices", "default", "web-v6")?;
    server.delete("nodes", "", "node-51")?;
    wait_until("all changes", LIMIT, || {
        if let Some(changed) = mirrored.source.take_changed() {
            let difference = changed.difference;
            ensure!(
                difference.nodes.len() + difference.services.len() + difference.endpoint_slices.len() <= 3
            );
            state.apply(difference);
        }
        Ok(state.services.len() == 2 && state.nodes.len() == 1 && state.endpoint_slices.len() == 1)
    })?;
    server.compact();
    server.apply(extra("newer"))?;
    mirrored.wait_for_services(&["new", "newer", "web"])
}

#[test]
fn changes_that_come_together_are_told_together() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    let wake = Arc::new(Notify::new());
    let mut mirrored = Mirrored::woken(&server, &wake)?;
    mirrored.source.wait(LIMIT, |_| true)?;
    mirrored.state()?;
    let names: Vec<String> = (0..300).map(|number| format!("s{number:03}")).collect();
    let begun = Instant::now();
    names.iter().try_for_each(|name| server.apply(extra(name)))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut parts = 0;
    while mirrored.state()?.services.len() < 301 {
        runtime.block_on(async { tokio::time::timeout(LIMIT, wake.notified()).await })?;
        parts += 1;
    }
    // However slow this machine is: the first at once, and then every 4 ms at most.
    let most = 3 + begun.elapsed().as_millis() / 4;
    ensure!(parts <= most, "300 changes were told in {parts} parts, in the time of {most}");
    Ok(())
}

#[test]
fn nothing_is_asked_for_but_what_the_roles_allow() -> Result<()> {
    let server = ApiServer::start(&cluster())?;
    let mirrored = Mirrored::listed(&server)?;
    let patch = vec![json!({ "metadata": { "annotations": { "a": "b" } } })];
    mirrored.source.patch_node("node-51", patch, LIMIT, || true)?;
    let kinds = Kind::ALL.map(|kind| kind.resource().1);
    wait_until("every kind to be watched", LIMIT, || {
        Ok(kinds.iter().all(|plural| server.count("WATCH", plural) > 0))
    })?;
    let verb_of = |method: &str| match method {
        "GET" => "list",
        "WATCH" => "watch",
        "PATCH" => "patch",
        _ => "",
    };
    for (method, plural) in server.requests() {
        let verb = verb_of(&method);
        let is_followed = kinds.contains(&plural) && FOLLOW.contains(&verb);
        let is_patched = PATCHED.1.split('/').next() == Some(plural) && PATCH.contains(&verb);
        ensure!(is_followed || is_patched, "{method} {plural}");
    }
    Ok(())
}
