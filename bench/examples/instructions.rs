//! A fixed number of packets through the engine, the same in every run: what `.ci/instructions` counts under valgrind.
//!
//! Without arguments it prints the names of its cases, with one it runs that case.

use std::process::ExitCode;

use windlass_bench::engine::{BURST, Case, Family, Load, Path, Tables};

/// Bursts that count. `.ci/instructions` divides by their packets.
const BURSTS: usize = 100;

fn cases() -> impl Iterator<Item = (String, Case)> {
    let families = [Family::V4, Family::V6];
    Path::ALL.into_iter().flat_map(move |path| {
        families.map(|family| (format!("{path}-{family}"), Case { family, ..Case::base(path) }))
    })
}

/// The only function whose instructions are counted, with all that it calls: valgrind is told its name.
#[inline(never)]
fn counted(load: &mut Load) {
    load.run();
}

fn main() -> ExitCode {
    let Some(wanted) = std::env::args().nth(1) else {
        println!("packets {}", BURSTS * BURST);
        cases().for_each(|(name, _)| println!("case {name}"));
        return ExitCode::SUCCESS;
    };
    let Some((_, case)) = cases().find(|(name, _)| *name == wanted) else {
        eprintln!("instructions: there is no case {wanted:?}; without arguments it lists them");
        return ExitCode::from(2);
    };
    let mut load = Load::new(case, &Tables::new(&case));
    for _ in 0..BURSTS {
        load.refill();
        counted(&mut load);
    }
    ExitCode::SUCCESS
}
