//! Fuzz targets, as functions over bytes: libFuzzer calls them with what it makes up, tests with the committed corpus.
//!
//! A target is one file of [`target`]: what it does with its input, what must hold, and the inputs to begin from. Its
//! corpus lies in `corpus/<name>`, and what once broke it in `regressions/<name>`, each file named for what it was.

pub mod captured;
pub mod check;
pub mod cluster;
pub mod input;
pub mod node;
pub mod sample;
pub mod target;

/// An input to begin from, and its file's name.
pub type Seed = (&'static str, Vec<u8>);

/// Something that is fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, on the command line and of its corpus' folder.
    pub name: &'static str,
    /// Panics where something does not hold that must.
    pub run: fn(&[u8]),
    /// Inputs that each take a path of their own.
    pub seeds: fn() -> Vec<Seed>,
}

/// All targets.
pub const TARGETS: [Target; 17] = {
    use target::*;
    [
        Target { name: "decap", run: decap::run, seeds: decap::seeds },
        Target { name: "encap", run: encap::run, seeds: encap::seeds },
        Target { name: "round_trip", run: round_trip::run, seeds: round_trip::seeds },
        Target { name: "nat", run: nat::run, seeds: nat::seeds },
        Target { name: "fragments", run: fragments::run, seeds: fragments::seeds },
        Target { name: "icmp_errors", run: icmp_errors::run, seeds: icmp_errors::seeds },
        Target { name: "coalesce", run: coalesce::run, seeds: coalesce::seeds },
        Target { name: "segment", run: segment::run, seeds: segment::seeds },
        Target { name: "bridge", run: bridge::run, seeds: bridge::seeds },
        Target { name: "virtio", run: virtio::run, seeds: virtio::seeds },
        Target { name: "manifests", run: manifests::run, seeds: manifests::seeds },
        Target { name: "objects", run: objects::run, seeds: objects::seeds },
        Target { name: "net_conf", run: net_conf::run, seeds: net_conf::seeds },
        Target { name: "annotations", run: annotations::run, seeds: annotations::seeds },
        Target { name: "trace", run: trace::run, seeds: trace::seeds },
        Target { name: "admin", run: admin::run, seeds: admin::seeds },
        Target { name: "capture", run: capture::run, seeds: capture::seeds },
    ]
};

/// The target of that name.
pub fn named(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
