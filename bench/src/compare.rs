//! `compare`: sets every contestant up, goes through the rounds, and reports.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use windlass_tests::binary;
use windlass_tests::netns::{missing_ability, on_path, sweep_dead_runs};
use windlass_tests::topology::Topology;

use crate::contestants::{self, BASE, CONTESTANTS, Contestant, UNBESET, windlass_help};
use crate::figures::{Figures, Span};
use crate::interrupt;
use crate::machine::Machine;
use crate::measure::{self, Kind, MEASURES, Measure};
use crate::programming::{self, Programming};
use crate::report::{Report, Row, Settings, html, json, table};
use crate::stand::Stand;
use crate::sweep::Sweep;

/// After the set-up, no round begins that would not end within this.
const QUICK_BUDGET: Duration = Duration::from_secs(115);

/// Arguments of `compare`.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Number of rounds; each takes every measure of every contestant once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each measure counts
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// Two minutes: as many rounds of short measures as they hold, three at most, and fewer contestants and measures
    #[arg(long)]
    quick: bool,
    /// Vary one thing, with few contestants and measures that fit it
    #[arg(long, value_enum, conflicts_with = "measures")]
    sweep: Option<Sweep>,
    /// Windlass in all combinations of lane, tuning, workers and services, in place of the usual contestants
    #[arg(long, conflicts_with_all = ["quick", "smoke", "sweep"])]
    matrix: bool,
    /// One round of 200 ms with the kernel and Windlass, to see that it works
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// Only these contestants, by their keys; the kernel's vxlan is always there
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these measures, by their keys
    #[arg(long, value_delimiter = ',')]
    measures: Vec<String>,
    /// Measure Windlass with other flags too, as NAME=FLAGS (may be given several times)
    #[arg(long, value_name = "NAME=FLAGS", allow_hyphen_values = true)]
    windlass: Vec<String>,
    /// Switch tx-udp_tnl-segmentation off on the underlay devices, as NICs without it have it
    #[arg(long)]
    no_tunnel_gso: bool,
    /// List contestants and measures, and end
    #[arg(long)]
    list: bool,
    /// Write the raw figures there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report there
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What is done in a comparison.
#[derive(Debug)]
struct Plan {
    contestants: Vec<Contestant>,
    measures: Vec<Measure>,
    rounds: usize,
    span: Span,
    tunnel_segmentation: bool,
    sweep: Option<Sweep>,
    /// Whether it is measured how long services take to program.
    programming: bool,
    /// When no further round begins.
    budget: Option<Duration>,
    /// What is left out, and why.
    left_out: Vec<String>,
}

/// Measures side by side, prints the table and writes the reports.
///
/// # Errors
/// When it cannot run here, was interrupted, or the kernel's vxlan cannot be set up.
pub fn run(args: &CompareArgs) -> Result<()> {
    let plan = Plan::new(args)?;
    if args.list {
        plan.list();
        return Ok(());
    }
    interrupt::listen()?;
    if let Some(why) = missing_ability() {
        bail!("cannot compare here: {why}");
    }
    sweep_dead_runs()?;
    let report = plan.carry_out()?;
    print!("{}", table::render(&report));
    for (file, text) in [(&args.json, json::render(&report)?), (&args.html, html::render(&report))] {
        if let Some(file) = file {
            fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
            println!("written: {}", file.display());
        }
    }
    Ok(())
}

impl Plan {
    fn new(args: &CompareArgs) -> Result<Self> {
        let (rounds, duration_ms, warm_up_ms) = match (args.smoke, args.quick) {
            (true, _) => (1, 200, 50),
            (_, true) => (3, 200, 50),
            _ => (args.rounds.max(1), args.duration_ms, 200),
        };
        let (measures, left_out) = measures(args)?;
        Ok(Self {
            contestants: contestants(args)?,
            measures,
            rounds,
            span: Span {
                warm_up: Duration::from_millis(warm_up_ms),
                duration: Duration::from_millis(duration_ms),
            },
            tunnel_segmentation: !args.no_tunnel_gso,
            sweep: args.sweep,
            programming: !args.smoke && args.sweep.is_none() && args.measures.is_empty(),
            budget: args.quick.then_some(QUICK_BUDGET),
            left_out,
        })
    }

    fn list(&self) {
        for contestant in &self.contestants {
            println!("{:<22} {}", contestant.key, contestant.how());
        }
        println!();
        for measure in &self.measures {
            println!("{:<22} {}", measure.key, measure.title);
        }
    }

    fn carry_out(&self) -> Result<Report> {
        let machine = Machine::read();
        let mut rows = self.rows()?;
        let begun = Instant::now();
        let mut topologies = Vec::new();
        for row in rows.iter().filter(|row| row.skipped.is_none()) {
            interrupt::check()?;
            topologies.push((row.contestant, Topology::pair()?));
        }
        let mut stands = Vec::new();
        for (contestant, topology) in &topologies {
            interrupt::check()?;
            match self.stand(*contestant, topology, &mut rows) {
                Ok(stand) => stands.push(stand),
                Err(error) if contestant.key == base(self.sweep) || interrupt::interrupted() => {
                    return Err(error);
                }
                Err(error) => skip(&mut rows, contestant, &format!("cannot be set up: {error:#}")),
            }
        }
        let mut programming: Vec<_> =
            stands.iter().filter_map(|stand| stand.programming().cloned()).collect();
        programming.extend(self.program_windlass()?);
        let measured = self.measure(begun, &stands, &mut rows);
        for stand in stands {
            stand.end();
        }
        let settings = Settings { rounds: measured?, ..self.settings() };
        let report = Report::new(machine, settings, base(self.sweep), self.measures.clone(), rows);
        Ok(Report { programming, left_out: self.left_out.clone(), ..report })
    }

    /// On a topology of its own, which goes before the first round; nothing in the smallest form, in sweeps, and beside
    /// chosen measures.
    fn program_windlass(&self) -> Result<Vec<Programming>> {
        if !self.programming {
            return Ok(Vec::new());
        }
        interrupt::check()?;
        match programming::windlass(&Topology::pair()?) {
            Ok(programming) => Ok(programming),
            Err(error) => {
                eprintln!("FAILED: programming services: {error:#}");
                Ok(Vec::new())
            }
        }
    }

    fn rows(&self) -> Result<Vec<Row>> {
        eprintln!("building windlass");
        let help = windlass_help()?;
        let rows = self.contestants.iter().map(|contestant| {
            let mut row = Row::new(*contestant, self.rounds);
            row.skipped = contestant.missing(&help);
            row
        });
        Ok(rows.collect())
    }

    fn stand<'a>(
        &self,
        contestant: Contestant,
        topology: &'a Topology,
        rows: &mut [Row],
    ) -> Result<Stand<'a>> {
        let begun = Instant::now();
        let stand = Stand::new(contestant, topology, self.tunnel_segmentation)?;
        if let Some(row) = rows.iter_mut().find(|row| row.contestant.key == contestant.key) {
            row.devices = stand.devices(topology)?;
            row.congestion_control = stand.congestion_control()?;
        }
        eprintln!("set up in {:.1} s: {}", begun.elapsed().as_secs_f64(), contestant.title);
        Ok(stand)
    }

    /// Round by round, measure by measure, and then the contestants, each round beginning with another. Gives how many
    /// rounds were made.
    fn measure(&self, begun: Instant, stands: &[Stand<'_>], rows: &mut [Row]) -> Result<usize> {
        for round in 0..self.rounds {
            let round_begun = Instant::now();
            for measure in &self.measures {
                let begun = Instant::now();
                let (late, early) = stands.split_at(round % stands.len().max(1));
                for stand in early.iter().chain(late).filter(|stand| stand.takes(measure)) {
                    interrupt::check()?;
                    let taken = stand.take(measure, self.span);
                    interrupt::check()?;
                    record(rows, stand.contestant(), measure, round, taken);
                }
                let took = begun.elapsed().as_secs_f64();
                eprintln!("round {} of {}: {} ({took:.1} s)", round + 1, self.rounds, measure.title);
            }
            if self.budget.is_some_and(|budget| begun.elapsed() + round_begun.elapsed() > budget) {
                eprintln!("{} rounds fit the time; more would not", round + 1);
                return Ok(round + 1);
            }
        }
        Ok(self.rounds)
    }

    fn settings(&self) -> Settings {
        Settings {
            command: command(),
            rounds: self.rounds,
            duration_ms: self.span.duration.as_millis(),
            warm_up_ms: self.span.warm_up.as_millis(),
            tunnel_segmentation: self.tunnel_segmentation,
            sweep: self.sweep,
        }
    }
}

fn base(sweep: Option<Sweep>) -> &'static str {
    sweep.map_or(BASE, Sweep::base)
}

/// Those asked for, or those of the sweep, or those of the form; the base is always there.
fn contestants(args: &CompareArgs) -> Result<Vec<Contestant>> {
    let matrix = if args.matrix { contestants::matrix() } else { Vec::new() };
    check_keys(&args.only, contestants::all().chain(matrix.iter().copied()).map(|it| it.key))?;
    let asked = |contestant: &Contestant| args.only.iter().any(|key| key == contestant.key);
    let mut chosen: Vec<Contestant> = contestants::all()
        .filter(|contestant| match (args.only.is_empty(), args.sweep) {
            _ if contestant.key == base(args.sweep) => true,
            (false, _) => asked(contestant),
            (true, Some(sweep)) => sweep.contestants().contains(&contestant.key),
            (true, None) if args.matrix => false,
            (true, None) if args.smoke => contestant.key == UNBESET,
            (true, None) if args.quick => contestant.quick,
            (true, None) => CONTESTANTS.iter().any(|usual| usual.key == contestant.key),
        })
        .collect();
    chosen.extend(matrix.into_iter().filter(|contestant| args.only.is_empty() || asked(contestant)));
    for given in &args.windlass {
        chosen.push(Contestant::given(given)?);
    }
    Ok(chosen)
}

/// Those asked for, or those of the sweep, or those of the form, and what of them cannot be taken here.
fn measures(args: &CompareArgs) -> Result<(Vec<Measure>, Vec<String>)> {
    check_keys(&args.measures, measure::all().map(|measure| measure.key))?;
    let asked = |measure: &Measure| args.measures.iter().any(|key| key == measure.key);
    let chosen: Vec<Measure> = match args.sweep {
        Some(sweep) => sweep.measures(),
        None if !args.measures.is_empty() => measure::all().filter(asked).collect(),
        None => MEASURES.into_iter().filter(|it| it.quick || !(args.quick || args.smoke)).collect(),
    };
    if on_path("iperf3") {
        return Ok((chosen, Vec::new()));
    }
    let (possible, impossible): (Vec<_>, Vec<_>) =
        chosen.into_iter().partition(|measure| !matches!(measure.kind, Kind::CrossCheck(_)));
    let left_out = impossible.iter().map(|measure| format!("{}: iperf3 is not installed", measure.title));
    Ok((possible, left_out.collect()))
}

fn record(
    rows: &mut [Row],
    contestant: &Contestant,
    measure: &Measure,
    round: usize,
    taken: Result<Figures>,
) {
    let Some(row) = rows.iter_mut().find(|row| row.contestant.key == contestant.key) else { return };
    match taken {
        Ok(figures) => row.record(measure, round, &figures),
        Err(error) => {
            eprintln!("FAILED: {}, {}: {error:#}", contestant.title, measure.title);
            row.failures.push(format!("round {}, {}: {error:#}", round + 1, measure.title));
        }
    }
}

fn skip(rows: &mut [Row], contestant: &Contestant, why: &str) {
    eprintln!("SKIPPED: {}: {why}", contestant.title);
    if let Some(row) = rows.iter_mut().find(|row| row.contestant.key == contestant.key) {
        row.skipped = Some(why.to_owned());
    }
}

fn check_keys(given: &[String], known: impl Iterator<Item = &'static str>) -> Result<()> {
    let known: Vec<&str> = known.collect();
    match given.iter().find(|key| !known.contains(&key.as_str())) {
        Some(key) => bail!("{key:?} is not known; there are {}", known.join(", ")),
        None => Ok(()),
    }
}

/// The command as one would type it in the repository, with the binary that it did not build, if there was one.
fn command() -> String {
    let quoted = |word: String| if word.contains(' ') { format!("'{word}'") } else { word };
    let words: Vec<String> = std::env::args().skip(1).map(quoted).collect();
    let binary = std::env::var(binary::OVERRIDE).map(|path| format!("{}={path} ", binary::OVERRIDE));
    format!("{}cargo run --release -p windlass-bench -- {}", binary.unwrap_or_default(), words.join(" "))
}
