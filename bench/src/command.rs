//! The command line.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use ipnet::IpNet;
use windlass_bench::hostile::{self, attack, legitimate};
use windlass_bench::{compare, measure, scale, serve};
use windlass_dataplane::device::PodTuning;

/// Measures Windlass beside the kernel's vxlan device, in network namespaces.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Measure all contestants side by side (needs root)
    Compare(compare::CompareArgs),
    /// Measure what a large cluster costs: memory, time until tables follow, and what packets feel of it
    Scale(scale::ScaleArgs),
    /// Measure what is left of legitimate traffic under attack (needs root, but for `--engine`)
    Hostile(hostile::HostileArgs),
    /// Send one kind of hostile packets
    Attack(attack::AttackArgs),
    /// Make the legitimate traffic beside an attack toward a `serve`
    Legitimate(legitimate::LegitimateArgs),
    /// Serve all kinds of traffic on one address, TCP and UDP
    Serve {
        /// The address and port to bind
        address: SocketAddr,
    },
    /// Let the host-side veths of this namespace's pods aggregate, as `windlass run --tune-pods` does
    TunePods {
        /// Where the pods' addresses are
        pod_cidr: IpNet,
    },
    /// Make one measure's traffic toward a `serve`, and print its figures as JSON
    Measure(measure::MeasureArgs),
}

pub(super) fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("windlass-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(action: Action) -> Result<()> {
    match action {
        Action::Compare(args) => compare::run(&args),
        Action::Scale(args) => scale::run(&args),
        Action::Hostile(args) => hostile::run(&args),
        Action::Attack(args) => attack::run(&args),
        Action::Legitimate(args) => legitimate::run(&args),
        Action::Serve { address } => serve::serve(address),
        Action::TunePods { pod_cidr } => {
            PodTuning::begin(vec![pod_cidr], None)?.keep();
            Ok(())
        }
        Action::Measure(args) => measure::run(&args),
    }
}
