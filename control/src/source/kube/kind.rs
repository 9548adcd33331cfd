//! The kinds of objects that are mirrored.

use std::fmt;

/// A kind, with the namespace where only one is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Nodes.
    Node,
    /// Services.
    Service,
    /// EndpointSlices.
    EndpointSlice,
    /// ServiceCIDRs, which Kubernetes has from 1.33 on.
    ServiceCidr,
    /// The ConfigMap kube-flannel-cfg where flannel installs it.
    FlannelConfig,
    /// The same where old releases of flannel install it.
    OldFlannelConfig,
}

/// flannel's ConfigMap.
pub(super) const FLANNEL_CONFIG: &str = "kube-flannel-cfg";

/// What is written to: API group and resource.
pub const PATCHED: (&str, &str) = ("", "nodes/status");

/// What is done to it.
pub const PATCH: &[&str] = &["patch"];

/// What is done to the objects of every kind.
pub const FOLLOW: &[&str] = &["list", "watch"];

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Node,
        Self::Service,
        Self::EndpointSlice,
        Self::ServiceCidr,
        Self::FlannelConfig,
        Self::OldFlannelConfig,
    ];

    /// Whether a node can do nothing without.
    pub fn is_needed(self) -> bool {
        matches!(self, Self::Node | Self::Service | Self::EndpointSlice)
    }

    /// Its resource, and the namespace where only one is looked at: `nodes`, `kube-flannel/configmaps`.
    pub fn label(self) -> String {
        let (_, resource) = self.resource();
        self.namespace().map_or(resource.to_owned(), |namespace| format!("{namespace}/{resource}"))
    }

    /// The namespace that is looked at, where it is only one.
    pub fn namespace(self) -> Option<&'static str> {
        match self {
            Self::FlannelConfig => Some("kube-flannel"),
            Self::OldFlannelConfig => Some("kube-system"),
            _ => None,
        }
    }

    /// Its API group and resource.
    pub fn resource(self) -> (&'static str, &'static str) {
        match self {
            Self::Node => ("", "nodes"),
            Self::Service => ("", "services"),
            Self::EndpointSlice => ("discovery.k8s.io", "endpointslices"),
            Self::ServiceCidr => ("networking.k8s.io", "servicecidrs"),
            Self::FlannelConfig | Self::OldFlannelConfig => ("", "configmaps"),
        }
    }

    /// The rule of RBAC that allows `verb`.
    pub(super) fn rule(self, verb: &str) -> String {
        let (group, resource) = if verb == "patch" { PATCHED } else { self.resource() };
        let verbs = if verb == "patch" { PATCH } else { FOLLOW }.join(", ");
        let rule = format!("{{apiGroups: [{group:?}], resources: [{resource:?}], verbs: [{verbs}]}}");
        match self.namespace() {
            None => format!("give our ClusterRole the rule {rule}"),
            Some(namespace) => format!(
                "give a Role in {namespace} the rule {rule}, or give --vni, --underlay-port and --cluster-cidr"
            ),
        }
    }

    /// What is done without.
    pub(super) fn substitute(self) -> &'static str {
        match self {
            Self::ServiceCidr => "each VIP gets a route of its own, unless --service-cidr is given",
            _ => "VNI, port and cluster CIDR are the flags' or their defaults",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("Nodes"),
            Self::Service => f.write_str("Services"),
            Self::EndpointSlice => f.write_str("EndpointSlices"),
            Self::ServiceCidr => f.write_str("ServiceCIDRs"),
            Self::FlannelConfig | Self::OldFlannelConfig => {
                write!(f, "the ConfigMap {}/{FLANNEL_CONFIG}", self.namespace().unwrap_or_default())
            }
        }
    }
}
