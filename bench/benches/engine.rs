//! The engine alone, without devices: nanoseconds and, where the processor lets us count them, cycles per packet.
//!
//! One base point (64 bytes, batches of 64, 1,000 flows, 10 services, 10 FDB entries, IPv4) and each of these varied by
//! itself, for each path. `translate` is the flow-cache hit of a VIP's flow, `new-flow` its first packet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant as SystemInstant};

use criterion::{Criterion, Throughput};
use windlass_bench::cycles::Cycles;
use windlass_bench::engine::{BURST, Case, Family, Load, Path, Tables};
use windlass_bench::machine::Machine;
use windlass_bench::stats::Summary;

type Vary = fn(&mut Case);

/// What a variation is called and what it changes. Those that share tables stand together.
const VARIATIONS: [(&str, Vary); 13] = [
    ("base", |_| {}),
    ("1,400 B", |case| case.packet_len = 1_400),
    ("IPv6", |case| case.family = Family::V6),
    ("batch 1", |case| case.batch = 1),
    ("batch 32", |case| case.batch = 32),
    ("1 flow", |case| case.flows = 1),
    ("100k flows", |case| case.flows = 100_000),
    ("1M flows", |case| case.flows = 1_000_000),
    ("1k services", |case| case.services = 1_000),
    ("100k services", |case| case.services = 100_000),
    ("10k FDB entries", |case| case.nodes = 10_000),
    ("1M FDB entries", |case| case.nodes = 1_000_000),
    ("base again", |_| {}),
];

/// Per packet, one value per sample.
#[derive(Default)]
struct Samples {
    nanos: Vec<f64>,
    cycles: Vec<f64>,
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .sample_size(20)
        .without_plots()
        .configure_from_args();
    let mut cycles = Cycles::new();
    let mut table = BTreeMap::new();
    let mut tables: Option<Tables> = None;
    for (row, (name, vary)) in VARIATIONS.into_iter().enumerate() {
        for (column, path) in Path::ALL.into_iter().enumerate() {
            let mut case = Case::base(path);
            vary(&mut case);
            // One new flow is no load.
            if path == Path::NewFlow && case.flows == 1 {
                continue;
            }
            let samples = measure(&mut criterion, &format!("{path}/{name}"), case, &mut tables, &mut cycles);
            table.insert((row, column), samples);
        }
    }
    criterion.final_summary();
    print(&table, &cycles);
}

/// What criterion measures is kept for the table too.
fn measure(
    criterion: &mut Criterion,
    name: &str,
    case: Case,
    tables: &mut Option<Tables>,
    cycles: &mut Cycles,
) -> Samples {
    let mut samples = Samples::default();
    let mut load = None;
    let mut group = criterion.benchmark_group("engine");
    group.throughput(Throughput::Elements(BURST as u64));
    group.bench_function(name, |bencher| {
        // Only what is asked for is made, and tables that fit are used again.
        let load = load.get_or_insert_with(|| {
            let kept = tables.take().filter(|tables| tables.fit(&case));
            Load::new(case, tables.insert(kept.unwrap_or_else(|| Tables::new(&case))))
        });
        bencher.iter_custom(|bursts| {
            let mut spent = Duration::ZERO;
            cycles.reset();
            for _ in 0..bursts {
                load.refill();
                cycles.resume();
                let began = SystemInstant::now();
                load.run();
                spent += began.elapsed();
                cycles.pause();
            }
            let packets = bursts as f64 * BURST as f64;
            samples.nanos.push(spent.as_nanos() as f64 / packets);
            samples.cycles.extend(cycles.read().map(|cycles| cycles as f64 / packets));
            spent
        });
    });
    samples
}

fn print(table: &BTreeMap<(usize, usize), Samples>, cycles: &Cycles) {
    let machine = Machine::read();
    println!(
        "\n{}, {} cores, Linux {}, load {}",
        machine.processor, machine.cores, machine.kernel, machine.load_before
    );
    println!("Median [least] nanoseconds per packet{}.\n", cycles.remark());
    print!("| |");
    Path::ALL.iter().for_each(|path| print!(" {path} |"));
    println!("\n|---|{}", "---:|".repeat(Path::ALL.len()));
    for (row, (name, _)) in VARIATIONS.iter().enumerate() {
        let cells = (0..Path::ALL.len()).map(|column| table.get(&(row, column)).and_then(cell));
        let cells: Vec<_> = cells.collect();
        if cells.iter().any(Option::is_some) {
            let cells: Vec<_> = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".into())).collect();
            println!("| {name} | {} |", cells.join(" | "));
        }
    }
}

fn cell(samples: &Samples) -> Option<String> {
    let Summary { median, min, .. } = Summary::of(&samples.nanos)?;
    let cycles = Summary::of(&samples.cycles)
        .map_or_else(String::new, |cycles| format!(", {:.0} cycles", cycles.median));
    Some(format!("{median:.1} [{min:.1}]{cycles}"))
}
