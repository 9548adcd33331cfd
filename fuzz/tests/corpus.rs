//! The fuzz targets on stable Rust: over the committed corpus and regressions, over damaged seeds and random bytes.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use windlass_fuzz::{TARGETS, Target, named};

/// Committed inputs of a target: the corpus, and what once broke it.
fn committed(kind: &str, target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(target);
    let Ok(files) = std::fs::read_dir(&folder) else { return Vec::new() };
    let read = |path: std::path::PathBuf| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
    };
    files.map(|file| read(file.unwrap().path())).collect()
}

/// Every committed input, whole and cut off at many lengths, then damaged seeds, then random bytes.
fn holds(target: &Target) {
    for (name, bytes) in
        committed("corpus", target.name).into_iter().chain(committed("regressions", target.name))
    {
        println!("{} {name}", target.name);
        (target.run)(&bytes);
        let step = bytes.len() / 100 + 1;
        (0..bytes.len()).step_by(step).for_each(|len| (target.run)(&bytes[..len]));
    }
    let config = ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new(config);
    let run = |bytes: Vec<u8>| {
        (target.run)(&bytes);
        Ok(())
    };
    runner.run(&damaged((target.seeds)()), run).unwrap();
    runner.run(&prop::collection::vec(any::<u8>(), 0..300), run).unwrap();
}

fn damaged(seeds: Vec<(&'static str, Vec<u8>)>) -> impl Strategy<Value = Vec<u8>> {
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
    (any::<prop::sample::Index>(), damage).prop_map(move |(seed, damage)| {
        let mut bytes = seeds[seed.index(seeds.len())].1.clone();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    })
}

#[test]
fn the_committed_seeds_are_those_the_code_makes() {
    for target in TARGETS {
        let committed = committed("corpus", target.name);
        for (name, bytes) in (target.seeds)() {
            let file = committed.iter().find(|(file, _)| file == name).map(|(_, bytes)| bytes);
            assert_eq!(file, Some(&bytes), "{} {name}: run the example `seeds`", target.name);
        }
    }
}

#[test]
fn every_folder_of_inputs_belongs_to_a_target() {
    for kind in ["corpus", "regressions"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind);
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().to_string_lossy().into_owned();
            assert!(named(&name).is_some() || name == "README.md", "{kind}/{name}: there is no such target");
        }
    }
}

#[test]
fn every_target_holds_in_a_test_of_its_own() {
    let source = include_str!("corpus.rs");
    for target in TARGETS {
        assert!(source.contains(&format!("fn {}_holds()", target.name)), "{}", target.name);
    }
}

fn target_holds(name: &str) {
    holds(named(name).unwrap());
}

#[test]
fn decap_holds() {
    target_holds("decap");
}

#[test]
fn encap_holds() {
    target_holds("encap");
}

#[test]
fn round_trip_holds() {
    target_holds("round_trip");
}

#[test]
fn nat_holds() {
    target_holds("nat");
}

#[test]
fn fragments_holds() {
    target_holds("fragments");
}

#[test]
fn icmp_errors_holds() {
    target_holds("icmp_errors");
}

#[test]
fn coalesce_holds() {
    target_holds("coalesce");
}

#[test]
fn segment_holds() {
    target_holds("segment");
}

#[test]
fn bridge_holds() {
    target_holds("bridge");
}

#[test]
fn virtio_holds() {
    target_holds("virtio");
}

#[test]
fn manifests_holds() {
    target_holds("manifests");
}

#[test]
fn objects_holds() {
    target_holds("objects");
}

#[test]
fn net_conf_holds() {
    target_holds("net_conf");
}

#[test]
fn annotations_holds() {
    target_holds("annotations");
}

#[test]
fn trace_holds() {
    target_holds("trace");
}

#[test]
fn admin_holds() {
    target_holds("admin");
}

#[test]
fn capture_holds() {
    target_holds("capture");
}
