//! `compare`: sets every contestant up, goes through the rounds, and reports.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use windlass_tests::netns::{missing_ability, sweep_dead_runs};
use windlass_tests::topology::Topology;

use crate::contestants::{BASE, CONTESTANTS, Contestant, windlass_help};
use crate::interrupt;
use crate::machine::Machine;
use crate::measure::{Figures, MEASURES, Measure, Span};
use crate::programming::{self, Programming};
use crate::report::{Report, Row, Settings, html, json, table};
use crate::stand::Stand;
use crate::veth;

/// Arguments of `compare`.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Number of rounds; each takes every measure of every contestant once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each measure counts
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// Two minutes: three rounds of short measures, and fewer contestants
    #[arg(long)]
    quick: bool,
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
        let wanted = |contestant: &Contestant| match (args.only.is_empty(), args.smoke) {
            (false, _) => contestant.key == BASE || args.only.iter().any(|key| key == contestant.key),
            (_, true) => [BASE, "windlass-1w"].contains(&contestant.key),
            _ => contestant.quick || !args.quick,
        };
        let given = args.windlass.iter().map(|given| Contestant::given(given)).collect::<Result<Vec<_>>>()?;
        check_keys(&args.only, CONTESTANTS.iter().map(|contestant| contestant.key))?;
        check_keys(&args.measures, MEASURES.iter().map(|measure| measure.key))?;
        Ok(Self {
            contestants: CONTESTANTS.into_iter().filter(wanted).chain(given).collect(),
            measures: MEASURES
                .into_iter()
                .filter(|measure| {
                    args.measures.is_empty() || args.measures.iter().any(|key| key == measure.key)
                })
                .collect(),
            rounds,
            span: Span {
                warm_up: Duration::from_millis(warm_up_ms),
                duration: Duration::from_millis(duration_ms),
            },
            tunnel_segmentation: !args.no_tunnel_gso,
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
                Err(error) if contestant.key == BASE || interrupt::interrupted() => return Err(error),
                Err(error) => skip(&mut rows, contestant, &format!("cannot be set up: {error:#}")),
            }
        }
        let mut programming: Vec<_> =
            stands.iter().filter_map(|stand| stand.programming().cloned()).collect();
        programming.extend(self.program_windlass()?);
        let measured = self.measure(&stands, &mut rows);
        for stand in stands {
            stand.end();
        }
        measured?;
        let report = Report::new(machine, self.settings(), self.measures.clone(), rows);
        Ok(Report { programming, ..report })
    }

    /// On a topology of its own, which goes before the first round; nothing in the smallest form.
    fn program_windlass(&self) -> Result<Option<Programming>> {
        if self.contestants.len() <= 2 {
            return Ok(None);
        }
        interrupt::check()?;
        match programming::windlass(&Topology::pair()?) {
            Ok(programming) => Ok(Some(programming)),
            Err(error) => {
                eprintln!("FAILED: programming services: {error:#}");
                Ok(None)
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
            for index in [0, 1] {
                let host = topology.host(index)?;
                let lines = veth::offloads(&host.netns)?;
                row.devices.extend(lines.into_iter().map(|line| format!("{} {line}", host.spec.name)));
            }
        }
        eprintln!("set up in {:.1} s: {}", begun.elapsed().as_secs_f64(), contestant.title);
        Ok(stand)
    }

    /// Round by round, measure by measure, and then the contestants, each round beginning with another.
    fn measure(&self, stands: &[Stand<'_>], rows: &mut [Row]) -> Result<()> {
        for round in 0..self.rounds {
            for measure in &self.measures {
                let begun = Instant::now();
                let (late, early) = stands.split_at(round % stands.len().max(1));
                for stand in early.iter().chain(late) {
                    interrupt::check()?;
                    let taken = stand.take(measure, self.span);
                    interrupt::check()?;
                    record(rows, stand.contestant(), measure, round, taken);
                }
                let took = begun.elapsed().as_secs_f64();
                eprintln!("round {} of {}: {} ({took:.1} s)", round + 1, self.rounds, measure.title);
            }
        }
        Ok(())
    }

    fn settings(&self) -> Settings {
        Settings {
            command: command(),
            rounds: self.rounds,
            duration_ms: self.span.duration.as_millis(),
            warm_up_ms: self.span.warm_up.as_millis(),
            tunnel_segmentation: self.tunnel_segmentation,
        }
    }
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

/// The command as one would type it in the repository.
fn command() -> String {
    let quoted = |word: String| if word.contains(' ') { format!("'{word}'") } else { word };
    let words: Vec<String> = std::env::args().skip(1).map(quoted).collect();
    format!("cargo run --release -p windlass-bench -- {}", words.join(" "))
}
