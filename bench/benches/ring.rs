//! A worker's turn over rings as on Windows beside one over slabs as on Linux, per packet and in memory: see
//! [`windlass_bench::ring`]. The two take turns, batch by batch, so that what the machine does meanwhile meets both.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use windlass_bench::engine::{BURST, Case, Path, Tables};
use windlass_bench::machine::Machine;
use windlass_bench::ring::{Memory, Turn};
use windlass_bench::stats::Summary;

const PATHS: [Path; 3] = [Path::Encap, Path::Translate, Path::Decap];
const PACKET_LENS: [usize; 2] = [64, 1_400];

/// Nanoseconds per packet, one value per sample.
#[derive(Default)]
struct Samples {
    slab: Vec<f64>,
    ring: Vec<f64>,
    ratio: Vec<f64>,
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .sample_size(40)
        .without_plots()
        .configure_from_args();
    let tables = Tables::new(&Case::base(Path::Encap));
    let mut rows = Vec::new();
    for (path, packet_len) in PATHS.into_iter().flat_map(|path| PACKET_LENS.map(|len| (path, len))) {
        let case = Case { packet_len, ..Case::base(path) };
        rows.push((format!("{path}, {packet_len} B"), measure(&mut criterion, case, &tables)));
    }
    criterion.final_summary();
    print(&rows);
}

/// Criterion is told of the ring.
fn measure(criterion: &mut Criterion, case: Case, tables: &Tables) -> Samples {
    let mut samples = Samples::default();
    let mut turns = None;
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(BURST as u64));
    group.bench_function(format!("{}/{}B", case.path, case.packet_len), |bencher| {
        let [slab, ring] = turns.get_or_insert_with(|| {
            [Memory::Slab, Memory::Ring].map(|memory| Turn::new(case, memory, tables))
        });
        bencher.iter_custom(|bursts| {
            let (mut in_slab, mut in_ring) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..bursts {
                in_slab += timed(slab);
                in_ring += timed(ring);
            }
            let packets = bursts as f64 * BURST as f64;
            samples.slab.push(in_slab.as_nanos() as f64 / packets);
            samples.ring.push(in_ring.as_nanos() as f64 / packets);
            samples.ratio.push(in_ring.as_secs_f64() / in_slab.as_secs_f64());
            in_ring
        });
    });
    samples
}

fn timed(turn: &mut Turn) -> Duration {
    turn.refill();
    let began = Instant::now();
    turn.run();
    began.elapsed()
}

fn print(rows: &[(String, Samples)]) {
    let machine = Machine::read();
    println!(
        "\n{}, {} cores, Linux {}, load {}",
        machine.processor, machine.cores, machine.kernel, machine.load_before
    );
    println!("Median [least] nanoseconds per packet; ratios of the same samples, median [least to most].\n");
    println!("| | slab, as on Linux | ring, as on Windows | ratio |\n|---|---:|---:|---:|");
    for (name, Samples { slab, ring, ratio }) in rows {
        let Some(((slab, ring), ratio)) = Summary::of(slab).zip(Summary::of(ring)).zip(Summary::of(ratio))
        else {
            continue;
        };
        println!(
            "| {name} | {:.1} [{:.1}] | {:.1} [{:.1}] | {:.2}x [{:.2} to {:.2}] |",
            slab.median, slab.min, ring.median, ring.min, ratio.median, ratio.min, ratio.max
        );
    }
}
