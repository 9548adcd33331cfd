use std::fs;

use serde_json::Value;

use super::*;

const PREFIX: &str = "flannel.alpha.coreos.com";
const EXAMPLE: &str = include_str!("../../../examples/worked-example.yaml");

fn read(text: &str) -> Loaded {
    load_text("test.yaml", text, PREFIX).unwrap()
}

fn load(path: PathBuf) -> Result<Loaded, ManifestError> {
    Manifests::new(&[path], PREFIX).read()
}

fn problems(loaded: &Loaded) -> Vec<String> {
    loaded.problems.iter().map(Problem::to_string).collect()
}

#[test]
fn the_worked_example_is_read_without_problems() {
    let loaded = read(EXAMPLE);
    assert_eq!(problems(&loaded), Vec::<String>::new());
    let state = loaded.state;
    assert_eq!(state.nodes.len(), 2);
    assert_eq!(state.services.len(), 4);
    assert_eq!(state.endpoint_slices.len(), 4);
    assert_eq!(state.service_cidrs["kubernetes"], vec!["10.96.0.0/12".parse().unwrap()]);
    assert!(matches!(state.net_conf, NetConfState::Present(_)));
    assert_eq!(loaded.passed_over, 0);
}

#[test]
fn json_and_yaml_and_lists_say_the_same() {
    let mut items = Vec::new();
    for document in EXAMPLE.split("\n---\n") {
        items.push(serde_saphyr::from_str::<Value>(document).unwrap());
    }
    let json = items.iter().map(|item| serde_json::to_string_pretty(item).unwrap()).collect::<Vec<_>>();
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
    let state = read(EXAMPLE).state;
    assert_eq!(read(&json.join("\n")).state, state);
    assert_eq!(read(&list.to_string()).state, state);
    assert_eq!(read(&serde_saphyr::to_string(&list).unwrap()).state, state);
}

/// Fields of later releases, at every depth: of an object, its metadata, spec, status, and of what lists in them hold.
#[test]
fn unknown_fields_are_passed_over() {
    let items = EXAMPLE.split("\n---\n").map(|document| {
        let mut item = serde_saphyr::from_str::<Value>(document).unwrap();
        if item["kind"] != "ConfigMap" {
            add_unknown_fields(&mut item);
        }
        item
    });
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>()});
    let loaded = read(&list.to_string());
    assert_eq!(problems(&loaded), Vec::<String>::new());
    assert_eq!(loaded.state, read(EXAMPLE).state);
}

/// Maps of names to texts, which have no fields.
const MAPS: [&str; 4] = ["annotations", "labels", "selector", "deprecatedTopology"];

fn add_unknown_fields(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let known = fields.iter_mut().filter(|(name, _)| !MAPS.contains(&name.as_str()));
            known.for_each(|(_, value)| add_unknown_fields(value));
            fields.insert("ofALaterRelease".to_owned(), serde_json::json!({ "mode": ["new", 1, null] }));
        }
        Value::Array(values) => values.iter_mut().for_each(add_unknown_fields),
        _ => {}
    }
}

#[test]
fn items_of_a_typed_list_need_no_kind() {
    let text = r#"{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#;
    let loaded = read(text);
    assert_eq!(problems(&loaded), Vec::<String>::new());
    assert_eq!(loaded.state.nodes.keys().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_malformed_object_is_named_and_the_rest_goes_on_f10() {
    let loaded = read(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec:\n  ports: [{port: http}]\n\
         ---\napiVersion: v1\nkind: Node\nmetadata: {name: good}\n\
         ---\nkind: Node\n---\n# nothing\n---\njust a text\n\
         ---\napiVersion: v1\nkind: Service\nmetadata: {name: big}\nspec: {ports: [{port: 70000}]}\n",
    );
    let problems = problems(&loaded);
    assert!(
        problems[0].starts_with("test.yaml:1: Service shop/web: spec.ports[0].port: invalid type"),
        "{problems:?}"
    );
    assert!(problems[0].ends_with("the object is skipped"));
    assert!(problems[1].starts_with("test.yaml:10: Node: it has no apiVersion"), "{problems:?}");
    assert!(problems[2].starts_with("test.yaml:14: object: it has no apiVersion"), "{problems:?}");
    assert!(problems[3].contains("Service default/big: port 70000 is not 1 to 65535"), "{problems:?}");
    assert_eq!(problems.len(), 4);
    assert!(loaded.state.nodes.contains_key("good") && loaded.state.services.is_empty());
}

#[test]
fn a_malformed_item_of_a_list_is_named_by_its_own_line() {
    let loaded = read(
        "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata:\n    name: a\n\
         - apiVersion: v1\n  kind: Node\n  metadata:\n    name: b\n  spec:\n    podCIDR: 010.244.0.0/24\nkind: List\n",
    );
    let text = &problems(&loaded)[0];
    assert!(
        text.starts_with("test.yaml:7: Node b: spec.podCIDR: \"010.244.0.0/24\" is no network"),
        "{text}"
    );
    assert!(text.contains("(leading zeros)"), "{text}");
}

#[test]
fn a_file_that_is_no_yaml_is_an_error_with_file_and_line() {
    let text = "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n---\napiVersion: v1\nkind: [\n";
    let error = load_text("broken.yaml", text, PREFIX).unwrap_err().to_string();
    assert!(error.starts_with("broken.yaml:6:") || error.starts_with("broken.yaml:7:"), "{error}");
    let error = load_text("broken.json", "{\n\"kind\":\n}", PREFIX).unwrap_err().to_string();
    assert!(error.starts_with("broken.json:3:"), "{error}");
}

#[test]
fn endpoint_addresses_that_no_backend_may_have_are_refused_e8_e9() {
    for text in ["127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "010.0.0.1", "255.255.255.255", "x"]
    {
        let loaded = read(&format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: s, namespace: n}}\n\
             addressType: IPv4\nendpoints:\n- addresses: [\"{text}\"]\n- addresses: [10.0.0.1]\nports: [{{port: 80}}]\n"
        ));
        let problem = &problems(&loaded)[0];
        assert!(
            problem.contains("EndpointSlice n/s: endpoint address") && problem.contains(text),
            "{problem}"
        );
        let slice = &loaded.state.endpoint_slices[&ObjectName::new("n", "s")];
        assert_eq!(slice.endpoints.len(), 1, "{text}");
    }
    for text in ["::1", "fe80::1", "ff02::1", "::", "::ffff:10.0.0.1", "10.0.0.1"] {
        let loaded = read(&format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: s}}\n\
             addressType: IPv6\nendpoints:\n- addresses: [\"{text}\"]\nports: null\n"
        ));
        assert!(problems(&loaded)[0].contains("it is refused"), "{text}");
    }
}

#[test]
fn null_lists_as_go_prints_them_are_empty() {
    let loaded = read(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\naddressType: IPv4\n\
         endpoints: null\nports: null\n",
    );
    assert_eq!(problems(&loaded), Vec::<String>::new());
    assert!(loaded.state.endpoint_slices[&ObjectName::new("default", "s")].endpoints.is_empty());
}

#[test]
fn other_kinds_are_passed_over() {
    let loaded = read(
        "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: x}\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata: {name: y}\n",
    );
    assert_eq!((loaded.passed_over, loaded.problems.len(), loaded.state.services.len()), (2, 0, 0));
}

#[test]
fn the_first_of_two_objects_of_one_name_is_kept() {
    let loaded = read(
        "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {podCIDR: 10.1.0.0/24}\n---\n\
         apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {podCIDR: 10.2.0.0/24}\n",
    );
    assert!(problems(&loaded)[0].contains("Node a: another object of this name was read before"));
    assert_eq!(loaded.state.nodes["a"].pod_cidrs, vec!["10.1.0.0/24".parse().unwrap()]);
}

#[test]
fn a_folder_is_read_in_order_without_hidden_and_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let node = |name: &str| format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n");
    fs::create_dir(folder.path().join("..data")).unwrap();
    fs::create_dir(folder.path().join("deeper.yaml")).unwrap();
    for (file, name) in
        [("b.yml", "b"), ("a.yaml", "a"), (".hidden.yaml", "h"), ("notes.txt", "n"), ("..data/d.yaml", "d")]
    {
        fs::write(folder.path().join(file), node(name)).unwrap();
    }
    let loaded = load(folder.path().to_owned()).unwrap();
    assert_eq!(loaded.state.nodes.keys().collect::<Vec<_>>(), ["a", "b"]);
    let empty = load(folder.path().join("..data/../deeper.yaml")).unwrap();
    assert!(problems(&empty)[0].contains("holds no .yaml"));
    let error = load(folder.path().join("missing.yaml")).unwrap_err().to_string();
    assert!(error.contains("missing.yaml") && error.contains("--manifests"), "{error}");
}

#[test]
fn a_malformed_net_conf_is_remembered_as_such() {
    let loaded = read(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kube-flannel-cfg, namespace: kube-flannel}\n\
         data: {net-conf.json: '{\"Backend\":{\"VNI\":-1}}'}\n",
    );
    assert!(
        matches!(loaded.state.net_conf, NetConfState::Malformed(reason) if reason.contains("Backend.VNI -1"))
    );
}

#[test]
fn only_what_has_changed_is_parsed_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.yaml");
    let text = "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: {name: a}\n\
                - apiVersion: v1\n  kind: Node\n  metadata: {name: b}\nkind: List\n\
                ---\napiVersion: v1\nkind: Node\nmetadata: {name: c}\n";
    fs::write(&file, text).unwrap();
    fs::write(
        folder.path().join("other.json"),
        r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"d"}}"#,
    )
    .unwrap();
    let mut manifests = Manifests::new(&[folder.path().to_owned()], PREFIX);
    let before = manifests.read().unwrap().state;
    fs::write(&file, text.replace("name: b", "name: e, uid: x")).unwrap();
    let after = manifests.read().unwrap().state;
    assert_eq!(after.nodes.keys().collect::<Vec<_>>(), ["a", "c", "d", "e"]);
    for name in ["a", "c", "d"] {
        assert!(Arc::ptr_eq(&before.nodes[name], &after.nodes[name]), "{name}");
    }
}

#[test]
fn lines_are_right_when_what_stands_above_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.yaml");
    let bad = "apiVersion: v1\nkind: Node\nmetadata: {name: b}\nspec: {podCIDR: x}\n";
    let mut manifests = Manifests::new(std::slice::from_ref(&file), PREFIX);
    for above in ["", "---\n", "# one\n# two\n---\n"] {
        fs::write(&file, format!("{above}{bad}")).unwrap();
        let line = above.matches('\n').count().max(1);
        let problem = &problems(&manifests.read().unwrap())[0];
        assert!(problem.contains(&format!("all.yaml:{line}: Node b")), "{problem}");
    }
}

#[test]
fn a_list_says_the_same_however_it_is_written() {
    let items = |indent: &str| {
        let item =
            |name: &str| format!("{indent}- metadata:\n{indent}    name: {name}\n{indent}    labels: *x\n");
        format!("{}{}{}", item("a").replace("*x", "&x {}"), "\n# between\n", item("b"))
    };
    let list = |items: &str| format!("kind: NodeList\nitems:\n{items}apiVersion: v1\n");
    // The alias needs the anchor of the item before: such a list is read as a whole.
    for text in [list(&items("")), list(&items("  ")), list(&items("").replace("*x", "{}"))] {
        let loaded = read(&text);
        assert_eq!(problems(&loaded), Vec::<String>::new(), "{text}");
        assert_eq!(loaded.state.nodes.keys().collect::<Vec<_>>(), ["a", "b"], "{text}");
    }
}

#[test]
fn dashes_within_a_text_begin_no_item() {
    let loaded = read(
        "kind: NodeList\nitems:\n- metadata:\n    name: a\n    uid: |\n     - x\n     items:\n- metadata: {name: b}\napiVersion: v1\n",
    );
    assert_eq!(loaded.state.nodes["a"].uid.as_deref(), Some("- x\nitems:\n"));
    assert_eq!(loaded.state.nodes.len(), 2);
}

#[test]
fn a_broken_item_of_a_list_is_named_by_the_line_of_the_file() {
    let text = "apiVersion: v1\nitems:\n- kind: Node\n  metadata: {name: a}\n- kind: Node\n  metadata: {name: [\nkind: List\n";
    let error = load_text("broken.yaml", text, PREFIX).unwrap_err().to_string();
    assert!(error.starts_with("broken.yaml:6:") || error.starts_with("broken.yaml:7:"), "{error}");
    let json = "{\"kind\":\"List\",\"apiVersion\":\"v1\",\n\"items\":[\n{\"kind\":\"Node\",\"apiVersion\":\"v1\",\n\"metadata\":{\"name\":\"a\"},\"spec\":{\"podCIDR\":\"x\"}}]}";
    let problem = &problems(&read(json))[0];
    assert!(problem.starts_with("test.yaml:3: Node a: "), "{problem}");
}
