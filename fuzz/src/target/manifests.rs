//! Any text as a file of Kubernetes objects.
//!
//! Input: the text.

use windlass_control::source::manifests::load_text;

use crate::Seed;
use crate::cluster::{self, EXAMPLE, PREFIX};

/// A text is refused with its line, or every object of it is used, named or passed over, and what is used can be
/// programmed.
///
/// # Panics
/// When it is not so.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match load_text("fuzzed", text, PREFIX) {
        Ok(loaded) => {
            loaded.problems.iter().for_each(|problem| assert!(problem.subject.starts_with("fuzzed:")));
            cluster::check(&loaded.state);
        }
        Err(error) => assert!(error.to_string().starts_with("fuzzed:"), "{error}"),
    }
}

/// The worked example, whole and object by object, and texts that are no objects.
pub fn seeds() -> Vec<Seed> {
    let object = |kind: &str| {
        let is_kind = |text: &&str| text.contains(&format!("\nkind: {kind}\n"));
        EXAMPLE.split("\n---\n").find(is_kind).unwrap_or_default().as_bytes().to_vec()
    };
    let list = r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}},
        {"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"clusterIP":"10.96.0.1","ports":[{"port":0}]}}]}"#;
    vec![
        ("worked-example", EXAMPLE.as_bytes().to_vec()),
        ("node", object("Node")),
        ("service", object("Service")),
        ("endpoint-slice", object("EndpointSlice")),
        ("service-cidr", object("ServiceCIDR")),
        ("flannel-config", object("ConfigMap")),
        ("json-list", list.as_bytes().to_vec()),
        ("alias", b"a: &a [1, 2]\nb: [*a, *a]\n".to_vec()),
        ("no-yaml", b"kind: [\n".to_vec()),
        ("empty-documents", b"---\n---\n...\n---\n".to_vec()),
    ]
}
