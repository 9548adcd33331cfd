//! Engines, connection table and snapshots under shuttle: the very sources of `dataplane/src`, compiled a second
//! time with shuttle's locks, atomics and threads where they say `std`, and run under schedules that a seed decides.
//!
//! Production code knows nothing of it: `extern crate self as std` makes this crate the one that the included files call
//! `std`, and another line the one that the tests' own packets are made for. A schedule that fails is printed, and `WINDLASS_SCHEDULE=… cargo test -p windlass-tests --test concurrency
//! MODEL` runs it again; `WINDLASS_SCHEDULES=100000` tries more of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    unreachable_pub,
    unused_imports,
    missing_docs
)]

extern crate alloc;
extern crate self as std;
extern crate self as windlass_dataplane;
extern crate std as real_std;
extern crate windlass_dataplane as plain;

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, Runner};

mod cluster;
mod models;

/// The sources under test, in the folders where they are.
#[path = "../../../dataplane/src"]
mod dataplane {
    pub mod engine;
    pub mod flow_cache;
    pub mod lb;
    pub mod offload;
    pub mod packet;
    pub mod tables;
    pub mod wire;
}
pub use dataplane::{engine, flow_cache, lb, offload, packet, tables, wire};
// Nothing that threads share, but for counters, which only their own worker writes.
pub use plain::{counters, drop_reason};
#[path = "../../src/packets.rs"]
mod packets;

pub mod device {
    pub use plain::device::{Quote, TooLong, ring};

    /// Hints change nothing but the speed.
    pub mod hints {
        pub fn prefetch<T>(_: &T) {}
        pub fn advise_huge<T>(_: &mut [T]) {}
    }
}

// What the included files find in `std`, and in this crate under the same names.
pub use ::core::{
    any, array, cmp, convert, fmt, hash, iter, marker, mem, net, num, ops, option, ptr, result, slice, str,
};
pub use real_std::{collections, env, error, io, panic, process};
pub mod time {
    pub use plain::time::Instant;
    pub use real_std::time::{Duration, SystemTime};
}
pub mod sync {
    pub use shuttle::sync::*;
}
pub mod thread {
    pub use shuttle::thread::*;
}

/// Schedules of each model, unless the environment says otherwise.
const SCHEDULES: usize = 400;

/// Preemptions that the schedules of the second half choose well (Burckhardt et al. 2010, probabilistic concurrency
/// testing); those of the first half are random.
const DEPTH: usize = 3;

fn main() {
    let mut arguments = env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let wanted = arguments.next().unwrap_or_default();
    let schedules =
        env::var("WINDLASS_SCHEDULES").ok().and_then(|count| count.parse().ok()).unwrap_or(SCHEDULES);
    for (name, model) in models::MODELS.into_iter().filter(|(name, _)| name.contains(&wanted)) {
        let started = real_std::time::Instant::now();
        match env::var("WINDLASS_SCHEDULE") {
            Ok(schedule) => run(ReplayScheduler::new_from_encoded(&schedule), model),
            Err(_) => {
                run(RandomScheduler::new(schedules / 2), model);
                run(PctScheduler::new(DEPTH, schedules / 2), model);
            }
        }
        real_std::println!("{name}: {schedules} schedules in {:.1} s", started.elapsed().as_secs_f64());
    }
}

fn run(scheduler: impl Scheduler + 'static, model: fn()) {
    let mut config = Config::new();
    config.stack_size = STACK_LEN;
    Runner::new(scheduler, config).run(model);
}

/// What an engine without optimization takes, and more.
const STACK_LEN: usize = 512 * 1024;
