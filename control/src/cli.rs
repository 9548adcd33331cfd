//! Subcommands, and how they end: 0 well, 1 failed, 2 wrong usage or configuration.

mod capture;
mod check;
mod cleanup;
mod completions;
mod demo;
mod input;
mod log;
mod man;
mod offline;
mod print;
mod replay;
mod run;
#[cfg(windows)]
mod service;
mod show;
mod tables;
mod trace;
mod view;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use windlass_control::config::{ConfigError, SettingsArgs};
use windlass_control::node::NodeError;
use windlass_control::source::kube::SourceError;
use windlass_control::source::manifests::ManifestError;

const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

/// A userspace VXLAN dataplane for Kubernetes nodes, compatible with flannel's vxlan backend
#[derive(Debug, Parser)]
#[command(name = "windlass", version, propagate_version = true, term_width = 0)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Join this node to the overlay and forward packets until SIGINT or SIGTERM
    #[command(after_help = AFTER_RUN)]
    Run {
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Print what `run` would program, from the manifests alone; touches nothing
    Tables(tables::TablesArgs),
    /// Show what a running node has: tables, connections, counters, drops, device
    Show(show::ShowArgs),
    /// Tell step by step what happens to one packet and to its reply; sends nothing
    #[command(after_help = AFTER_TRACE)]
    Trace(trace::TraceArgs),
    /// Record packets of a running node into a pcapng file, with drop reasons as comments
    #[command(after_help = AFTER_CAPTURE)]
    Capture(capture::CaptureArgs),
    /// Run a capture through this node's tables, offline, and tell every packet's verdict
    #[command(after_help = AFTER_REPLAY)]
    Replay(replay::ReplayArgs),
    /// Print shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the man page, in roff: windlass man | man -l -
    Man,
    /// Find what would keep this node from running, and touch nothing
    #[command(after_help = AFTER_CHECK)]
    Check {
        #[command(flatten)]
        settings: SettingsArgs,

        /// How findings are printed
        #[arg(short, long, value_enum, default_value_t = check::Output::Table, value_name = "FORMAT")]
        output: check::Output,
    },
    /// Remove what runs with --persist, or killed ones, have left: device, routes, rules, settings
    #[command(after_help = AFTER_CLEANUP)]
    Cleanup,
    /// Run as a service of Windows: install, uninstall, start, stop, status
    #[cfg(windows)]
    Service(service::ServiceArgs),
    /// Show two nodes, pods and service VIPs at work in this process, without root
    Demo(demo::DemoArgs),
}

const AFTER_RUN: &str = "\
A flag wins over its environment variable, that over the file of --config, that over the default.
Lists are repeated flags or comma separated; in the file they are YAML lists.
Exit codes: 0 well, 1 failed, 2 wrong usage or configuration.";

const AFTER_TRACE: &str = "\
A running node is asked over its admin socket; with --manifests on the command line, none is needed.
Exit codes: 0 sent or answered, 1 dropped or rejected, 2 wrong usage or configuration.";
const AFTER_CAPTURE: &str = "\
Asks over the admin socket. What does not fit into the node's 8 MB between two questions is counted as lost: forwarding
never waits for a capture. Outer headers are written down anew; a sent datagram's source port is one of the pool's.
Exit codes: 0 well, 1 failed, 2 wrong usage or configuration.";

const AFTER_REPLAY: &str = "\
Needs --manifests and --node. Packets from this node's pods and addresses enter by the device, VXLAN datagrams to its
underlay address by the underlay; all others are passed over. The clock is the capture's, and the node begins without
connections.
Exit codes: 0 nothing was dropped but for reasons that --allow names, 1 something was, 2 wrong usage or configuration.";

const AFTER_CLEANUP: &str = "\
Refuses while a run lives. The files of --state-dir and subnet.env stay.
Exit codes: 0 nothing is left, 1 something is.";

const AFTER_CHECK: &str = "\
`windlass run` makes the same checks first. An error keeps it from running, unless --ignore names the check.
Exit codes: 0 nothing worse than warnings, 1 an error was found, 2 wrong usage or configuration.";

/// Runs the command line of this process.
pub(crate) fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let arguments = matches.subcommand().map(|(_, arguments)| arguments);
    let succeeded = |()| ExitCode::SUCCESS;
    let result = match (cli.command, arguments) {
        (Command::Run { .. }, Some(arguments)) => run::begin(arguments).map(succeeded),
        (Command::Check { output, .. }, Some(arguments)) => check::run(arguments, output),
        (Command::Tables(args), Some(arguments)) => tables::run(&args, arguments).map(succeeded),
        (Command::Show(args), Some(arguments)) => show::run(&args, arguments).map(succeeded),
        (Command::Trace(args), Some(arguments)) => trace::run(&args, arguments),
        (Command::Capture(args), Some(arguments)) => capture::run(&args, arguments).map(succeeded),
        (Command::Replay(args), Some(arguments)) => replay::run(&args, arguments),
        (Command::Completions { shell }, _) => completions::run(Cli::command(), shell).map(succeeded),
        (Command::Man, _) => man::run(Cli::command()).map(succeeded),
        (Command::Cleanup, _) => cleanup::run().map(succeeded),
        #[cfg(windows)]
        (Command::Service(args), _) => service::run(args),
        (Command::Demo(args), _) => demo::run(&args).map(succeeded),
        (_, None) => Ok(ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", told(&error));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// An error and its causes, without a cause that the text before it already holds.
fn told(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |told, cause| {
        let cause = cause.to_string();
        match told.is_empty() {
            true => cause,
            false if told.contains(&cause) => told,
            false => format!("{told}: {cause}"),
        }
    })
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let objects = error.downcast_ref::<check::Refused>().is_some_and(|refused| refused.objects);
    let access = matches!(error.downcast_ref(), Some(SourceError::Access(_)));
    let wrong = objects
        || access
        || error.is::<ConfigError>()
        || error.is::<ManifestError>()
        || error.is::<NodeError>();
    if wrong { WRONG_USAGE } else { FAILED }
}
