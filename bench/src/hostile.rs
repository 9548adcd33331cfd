//! `hostile`: what is left of honest pods' traffic while somebody attacks, of Windlass and of the kernel.
//!
//! Every [`attack`] is made twice, at a rate that leaves the machine time for both, and as fast as it goes; meanwhile
//! the [`legitimate`] traffic runs, and afterwards the [`victim`] is asked what it holds and what it dropped. With
//! `--engine` the same kinds of packets go through the engine in memory ([`in_memory`]), and the flood's connections are
//! forgotten beside a flow that waits for that ([`expiry`]).

pub mod attack;
pub mod expiry;
pub mod in_memory;
pub mod legitimate;
mod table;
pub mod victim;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use windlass_tests::binary;
use windlass_tests::netns::{missing_ability, scratch_folder, sweep_dead_runs};
use windlass_tests::node::WindlassNode;
use windlass_tests::process::{Guarded, run as run_command};
use windlass_tests::topology::Topology;

use self::attack::{Attack, From};
use self::legitimate::Kept;
use crate::contestants::{self, Contestant};
use crate::cpu::Ticks;
use crate::interrupt;
use crate::stand::Stand;

/// Who is attacked unless others are named.
const ATTACKED: [&str; 2] = ["windlass-vip-1", "kernel-nft-1"];
/// An address of the underlay that is no node's.
const OUTSIDER: &str = "192.168.1.9/24";
const WARM_UP: Duration = Duration::from_millis(500);
/// Beyond the span, for connections that no longer answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of `hostile`.
#[derive(Args, Debug)]
pub struct HostileArgs {
    /// Only these attacks
    #[arg(long, value_enum, value_delimiter = ',')]
    attacks: Vec<Attack>,
    /// Contestants of `compare`, by their keys, in place of Windlass and the kernel with nftables
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Packets per second of an attack that leaves time for both
    #[arg(long, default_value_t = 30_000.0)]
    attack_rate: f64,
    /// Datagrams per second of the legitimate flow
    #[arg(long, default_value_t = 10_000.0)]
    rate: f64,
    /// Legitimate connections that stay open
    #[arg(long, default_value_t = 200)]
    connections: usize,
    /// How long each is measured
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// The engine alone, in memory, without namespaces and root
    #[arg(long)]
    engine: bool,
    /// Write the raw figures there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// How fast an attack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Speed {
    /// At a rate that leaves time for both.
    Paced,
    /// As fast as the generator can.
    Full,
}

/// One attack on one contestant.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Who.
    pub contestant: &'static str,
    /// By what; nothing for none.
    pub attack: Option<String>,
    /// How fast.
    pub speed: Speed,
    /// Thousands of attacking packets a second.
    pub attack_kpps: f64,
    /// What became of the legitimate traffic.
    pub kept: Kept,
    /// Mean number of busy cores.
    pub busy_cores: f64,
    /// Bytes of memory that the attacked process held before and after.
    pub resident: Option<(u64, u64)>,
    /// What it dropped meanwhile, the most first.
    pub drops: Vec<(String, u64)>,
}

/// Attacks everybody in turn and prints the tables.
///
/// # Errors
/// When it cannot run here, or a contestant cannot be set up.
pub fn run(args: &HostileArgs) -> Result<()> {
    if args.engine {
        print!("{}\n{}", in_memory::render(&in_memory::measure()?), expiry::measure()?);
        return Ok(());
    }
    interrupt::listen()?;
    if let Some(why) = missing_ability() {
        bail!("cannot attack here: {why}; `--engine` needs no privilege");
    }
    sweep_dead_runs()?;
    binary::windlass()?;
    let contestants = args.contestants()?;
    let topologies: Vec<Topology> = contestants.iter().map(|_| Topology::pair()).collect::<Result<_>>()?;
    let mut stands = Vec::new();
    for (contestant, topology) in contestants.into_iter().zip(&topologies) {
        let mut stand = Stand::new(contestant, topology, true)?;
        stand.add_client_pod()?;
        topology.wire().ip(&format!("addr add {OUTSIDER} dev br0"))?;
        stands.push((stand, topology));
    }
    let mut outcomes = Vec::new();
    for (attack, speed) in args.rounds() {
        for (stand, topology) in &stands {
            interrupt::check()?;
            let outcome = args.attack(stand, topology, attack, speed)?;
            eprintln!("{}", table::line(&outcome));
            outcomes.push(outcome);
        }
    }
    stands.into_iter().for_each(|(stand, _)| stand.end());
    print!("{}", table::render(&outcomes));
    if let Some(file) = &args.json {
        fs::write(file, serde_json::to_vec_pretty(&outcomes)?).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

impl HostileArgs {
    fn contestants(&self) -> Result<Vec<Contestant>> {
        let default = || ATTACKED.iter().map(ToString::to_string).collect();
        let keys: Vec<String> = if self.only.is_empty() { default() } else { self.only.clone() };
        let found = keys.iter().map(|key| {
            contestants::all()
                .find(|contestant| contestant.key == key)
                .with_context(|| format!("no contestant {key:?}; `compare --list` names them"))
        });
        found.collect()
    }

    /// Nobody attacks first, for comparison; the floods that fill tables come before what must not be hurt by that.
    fn rounds(&self) -> Vec<(Option<Attack>, Speed)> {
        let attacks: Vec<Attack> =
            if self.attacks.is_empty() { Attack::value_variants().to_vec() } else { self.attacks.clone() };
        let both = |attack| [(Some(attack), Speed::Paced), (Some(attack), Speed::Full)];
        std::iter::once((None, Speed::Paced)).chain(attacks.into_iter().flat_map(both)).collect()
    }

    fn attack(
        &self,
        stand: &Stand<'_>,
        topology: &Topology,
        attack: Option<Attack>,
        speed: Speed,
    ) -> Result<Outcome> {
        let attacked = match attack.map(Attack::from) {
            Some(From::Underlay) => stand.windlass(1),
            _ => stand.windlass(0),
        };
        let before = attacked.map(State::read).transpose()?;
        let folder = scratch_folder("hostile")?;
        let report = folder.path().join("kept.json");
        let duration = Duration::from_millis(self.duration_ms);
        let mut legitimate = stand.client_pod(0)?.netns.command(std::env::current_exe()?);
        legitimate.arg("legitimate").arg(stand.target().to_string()).arg(&report);
        legitimate.args(["--rate", &self.rate.to_string(), "--connections", &self.connections.to_string()]);
        legitimate.args(["--duration-ms", &duration.as_millis().to_string()]);
        legitimate.args(["--warm-up-ms", &WARM_UP.as_millis().to_string()]);
        let mut legitimate = Guarded::spawn_ready(&mut legitimate)?;
        let ticks = Ticks::read()?;
        let attack_kpps = match attack {
            Some(attack) => self.send(stand, topology, attack, speed)? / 1e3,
            None => {
                std::thread::sleep(WARM_UP + duration);
                0.0
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let busy_cores = Ticks::read()?.busy_cores_since(ticks, cores);
        legitimate.wait(PATIENCE)?;
        let after = attacked.map(State::read).transpose()?;
        let kept = fs::read(&report).context("what became of the legitimate traffic")?;
        let states = before.zip(after);
        Ok(Outcome {
            contestant: stand.contestant().key,
            attack: attack.map(Attack::name),
            speed,
            attack_kpps,
            kept: serde_json::from_slice(&kept)?,
            busy_cores,
            resident: states.as_ref().map(|(before, after)| (before.resident, after.resident)),
            drops: states.map_or_else(Vec::new, |(before, after)| victim::since(&before.drops, &after.drops)),
        })
    }

    /// Makes the attack, which outlasts the span, and gives its packets per second.
    fn send(&self, stand: &Stand<'_>, topology: &Topology, attack: Attack, speed: Speed) -> Result<f64> {
        let from = match attack.from() {
            From::Pod => &stand.client_pod(1)?.netns,
            From::Underlay => topology.wire(),
        };
        let mut command = from.command(std::env::current_exe()?);
        command.args(["attack", &attack.name(), &stand.server()?.address.to_string()]);
        let whole = WARM_UP + Duration::from_millis(self.duration_ms);
        command.args(["--duration-ms", &whole.as_millis().to_string()]);
        if speed == Speed::Paced {
            command.args(["--rate", &self.attack_rate.to_string()]);
        }
        let said = run_command(&mut command)?;
        said.trim().parse().with_context(|| format!("a rate in {said:?}"))
    }
}

/// A node at one time.
struct State {
    resident: u64,
    drops: victim::Drops,
}

impl State {
    fn read(node: &WindlassNode<'_>) -> Result<Self> {
        Ok(Self { resident: victim::resident(node)?, drops: victim::drops(node)? })
    }
}
