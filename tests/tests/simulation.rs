//! Whole clusters on virtual time: see `windlass_tests::sim`.
//!
//! `WINDLASS_SIM_SEED=7 cargo test -p windlass-tests --test simulation` runs that seed alone, at every scale;
//! `WINDLASS_SIM_SEEDS=1000` runs as many small clusters, and `WINDLASS_SIM_WATCH=2004` tells of every packet from or to
//! that port. `cargo test --release -p windlass-tests --test simulation -- --ignored --nocapture` runs 1,000 nodes and
//! 10,000 services.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::Instant;

use windlass_tests::say;
use windlass_tests::sim::invariant::Invariant;
use windlass_tests::sim::tamper::Tamper;
use windlass_tests::sim::{Plan, Scale, Summary, run};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The seed that was asked for, or else the first `count`.
fn seeds(count: u64) -> Vec<u64> {
    match number("WINDLASS_SIM_SEED") {
        Some(seed) => vec![seed],
        None => (1..=count).collect(),
    }
}

fn plan(seed: u64, scale: Scale) -> Plan {
    Plan { seed, scale, tamper: None, watch: number("WINDLASS_SIM_WATCH").map(|port| port as u16) }
}

/// Runs the seeds and tells what they came to.
fn all_hold(seeds: Vec<u64>, scale: &Scale) {
    let started = Instant::now();
    let (mut failures, mut total) = (Vec::new(), Summary::default());
    let count = seeds.len();
    for seed in seeds {
        match run(&plan(seed, scale.clone())) {
            Ok(summary) => total += summary,
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    let Summary { flows, done, packets, lost, .. } = total;
    say(&format!(
        "{count} clusters of {} nodes and {} services: {flows} flows, {done} of them well, {packets} packets through \
         engines, {lost} lost on links, in {:.1} s",
        scale.nodes,
        scale.services,
        started.elapsed().as_secs_f64()
    ));
    assert!(failures.is_empty(), "{} of {count} failed\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn small_clusters_hold_every_invariant() {
    all_hold(seeds(number("WINDLASS_SIM_SEEDS").unwrap_or(24)), &Scale::small());
}

#[test]
fn large_clusters_hold_every_invariant() {
    all_hold(seeds(2), &Scale::large());
}

#[test]
#[ignore = "1,000 nodes and 10,000 services: minutes, and only in --release"]
fn the_largest_cluster_holds_every_invariant() {
    all_hold(seeds(1), &Scale::largest());
}

#[test]
fn a_seed_decides_everything() {
    let [first, second] = [(); 2].map(|()| run(&plan(3, Scale::small())).map(|summary| summary.digest));
    assert_eq!(first.map_err(|failure| failure.to_string()), second.map_err(|failure| failure.to_string()));
}

/// Faults made on purpose, and the invariants that may be the first to show each.
#[test]
fn every_fault_that_is_made_on_purpose_is_found() {
    use Invariant::{
        Converges, KeepsBackend, Memory, NotRefused, ReplyCarriesVip, RightNetwork, RightTranslation,
        RightVtep, ServedBackend, Sums,
    };
    let faults: [(Tamper, &[Invariant]); 10] = [
        (Tamper::SkipReplyRewrite, &[ReplyCarriesVip]),
        (Tamper::WrongVtep, &[RightVtep]),
        (Tamper::LoseSilently, &[Sums]),
        (Tamper::CountTwice, &[Sums]),
        (Tamper::KeepDeadBackend, &[ServedBackend, KeepsBackend, Converges]),
        (Tamper::AcceptWrongVni, &[RightNetwork]),
        (Tamper::LeakVip, &[RightTranslation]),
        (Tamper::ForgetConnections, &[ReplyCarriesVip, KeepsBackend]),
        (Tamper::NeverExpire, &[Memory, Converges]),
        (Tamper::SkipPublication, &[RightVtep, ServedBackend, NotRefused, Converges]),
    ];
    let mut missed = Vec::new();
    for (tamper, expected) in faults {
        let found: BTreeSet<Invariant> = (1..=SEEDS_PER_FAULT)
            .map(|seed| Plan { tamper: Some(tamper), ..plan(seed, Scale::small()) })
            .filter_map(|plan| run(&plan).err())
            .map(|failure| failure.violation.invariant)
            .take(1)
            .collect();
        say(&format!("{tamper:?}: {found:?}"));
        if found.is_empty() || !found.iter().all(|invariant| expected.contains(invariant)) {
            missed.push((tamper, found));
        }
    }
    assert!(missed.is_empty(), "not found, or found as something else: {missed:?}");
}

/// Each fault is to be found in one of as many clusters; most are in the first.
const SEEDS_PER_FAULT: u64 = 3;
