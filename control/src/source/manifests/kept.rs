//! F10: an object that becomes malformed is kept as it last was, and the rest goes on.

use std::collections::BTreeMap;

use super::{Loaded, Skipped};
use crate::cluster::{ClusterState, NetConfState, Problem};
use crate::source::{IS_KEPT, IS_SKIPPED, has_become_unreadable};

impl Loaded {
    /// Puts back what `before` knew of the objects that can no longer be read, and says so in their problems.
    pub fn keep_last_good(&mut self, before: &ClusterState) {
        for skipped in std::mem::take(&mut self.skipped) {
            if self.keep(&skipped, before)
                && let Some(problem) = self.problems.get_mut(skipped.problem)
            {
                problem.text = problem.text.replace(IS_SKIPPED, IS_KEPT);
            }
        }
        if let NetConfState::Malformed(reason) = &self.state.net_conf
            && let NetConfState::Present(_) = before.net_conf
        {
            let text = format!("{reason}; {IS_KEPT}");
            self.problems.push(Problem::new("ConfigMap kube-flannel-cfg", text));
            self.state.net_conf = before.net_conf.clone();
        }
        for (name, node) in &mut self.state.nodes {
            if let Some(known) = before.nodes.get(name)
                && let Some(reason) = has_become_unreadable(known, node)
            {
                let text = format!("its annotations cannot be read ({reason}); {IS_KEPT}");
                self.problems.push(Problem::new(format!("Node {name}"), text));
                *node = known.clone();
            }
        }
    }

    fn keep(&mut self, skipped: &Skipped, before: &ClusterState) -> bool {
        let (state, name) = (&mut self.state, &skipped.name);
        match skipped.kind.as_str() {
            "Node" => put_back(&mut state.nodes, &before.nodes, &name.name.to_string()),
            "Service" => put_back(&mut state.services, &before.services, name),
            "EndpointSlice" => put_back(&mut state.endpoint_slices, &before.endpoint_slices, name),
            "ServiceCIDR" => {
                put_back(&mut state.service_cidrs, &before.service_cidrs, &name.name.to_string())
            }
            _ => false,
        }
    }
}

/// Whether it was put back: a good object of the same name stays, and one that was never good is not there.
fn put_back<K: Ord + Clone, V: Clone>(state: &mut BTreeMap<K, V>, before: &BTreeMap<K, V>, name: &K) -> bool {
    match before.get(name) {
        Some(known) if !state.contains_key(name) => {
            state.insert(name.clone(), known.clone());
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::load_text;
    use super::*;
    use crate::cluster::ObjectName;

    const PREFIX: &str = "flannel.alpha.coreos.com";

    fn node(data: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: n1\n  annotations:\n    \
             {PREFIX}/backend-type: vxlan\n    {PREFIX}/backend-data: '{data}'\nspec: {{podCIDR: 10.244.1.0/24}}\n"
        )
    }

    fn service(ip: &str, port: &str) -> String {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web}}\n\
             spec: {{clusterIP: {ip}, clusterIPs: [{ip}], ports: [{{port: {port}}}]}}\n"
        )
    }

    fn load(text: &str) -> Loaded {
        load_text("f.yaml", text, PREFIX).unwrap()
    }

    #[test]
    fn f10_the_last_good_object_is_kept_while_the_rest_goes_on() {
        let good = node(r#"{"VNI":1,"VtepMAC":"00:15:5d:3c:3e:3c"}"#);
        let before = load(&(good.clone() + &service("10.96.0.10", "53"))).state;
        let mut after = load(
            &(good + &service("10.96.0.11", "70000") + &service("10.96.0.12", "80").replace("web", "new")),
        );
        after.keep_last_good(&before);
        assert_eq!(
            after.state.services[&ObjectName::new("default", "web")],
            before.services[&ObjectName::new("default", "web")]
        );
        assert!(after.state.services.contains_key(&ObjectName::new("default", "new")));
        assert!(after.problems[0].text.ends_with("it is kept as it last was"), "{}", after.problems[0]);
    }

    #[test]
    fn f10_a_node_keeps_its_vtep_when_its_annotation_becomes_unreadable() {
        let before = load(&node(r#"{"VNI":1,"VtepMAC":"00:15:5d:3c:3e:3c"}"#)).state;
        let mut after = load(&node("{"));
        after.keep_last_good(&before);
        assert_eq!(after.state, before);
        assert_eq!(after.problems.len(), 1);
    }

    #[test]
    fn an_object_that_was_never_good_stays_out() {
        let mut after = load(&service("10.96.0.11", "70000"));
        after.keep_last_good(&ClusterState::default());
        assert!(after.state.services.is_empty());
        assert!(after.problems[0].text.ends_with(IS_SKIPPED));
    }
}
