//! The fuzz targets on stable Rust: over the committed corpus, and over some random bytes.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use proptest::prelude::*;
use windlass_fuzz::{decap, seeds};

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    files
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap()))
        .collect()
}

#[test]
fn decap_holds_over_the_corpus() {
    for (name, bytes) in corpus("decap") {
        println!("{name}");
        decap(&bytes);
        for len in 0..bytes.len().min(200) {
            decap(&bytes[..len]);
        }
    }
}

#[test]
fn the_committed_seeds_are_those_the_code_makes() {
    let committed = corpus("decap");
    for (name, bytes) in seeds::decap() {
        let file = committed.iter().find(|(file, _)| file == name);
        assert_eq!(file.map(|(_, bytes)| bytes), Some(&bytes), "{name}: run the example `seeds`");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decap_holds_over_random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        decap(&bytes);
    }

    #[test]
    fn decap_holds_over_damaged_seeds(
        seed in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let seeds = seeds::decap();
        let mut bytes = seeds[seed.index(seeds.len())].1.clone();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        decap(&bytes);
    }
}
