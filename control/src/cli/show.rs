//! `windlass show`: what a running node has, asked over its admin socket.

use std::io::IsTerminal;
use std::path::Path;
use std::thread;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{ArgMatches, Args, ValueEnum};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use windlass_control::admin::client::ask;
use windlass_control::config::{Config, Settings};
use windlass_control::inspect::connections::{Connections, Filter, state_names};
use windlass_control::inspect::rows::{DeviceRow, DropRow, Tables, meaning};
use windlass_dataplane::drop_reason::DropReason;

use super::print::{Output, columns, document, list, maybe, print};
use super::tables::{TableName, text};
use super::view::{Wanted, expect_applies};

/// What to show.
#[derive(Args, Clone, Debug)]
pub(crate) struct ShowArgs {
    /// What to show
    #[arg(value_name = "WHAT")]
    what: What,

    /// Format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,

    #[command(flatten)]
    wanted: Wanted,

    /// Only connections in this state
    #[arg(long, value_name = "STATE", value_parser = PossibleValuesParser::new(state_names()))]
    state: Option<String>,

    /// Show it again every so many seconds, until Ctrl-C
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,

    #[command(flatten)]
    socket: SocketArgs,
}

/// Which node to ask.
#[derive(Args, Clone, Debug)]
pub(crate) struct SocketArgs {
    /// YAML file with settings, of which admin-socket is used
    #[arg(long, env = "WINDLASS_CONFIG", value_name = "FILE", hide_env_values = true)]
    config: Option<std::path::PathBuf>,

    /// Unix socket of the running node [default: /run/windlass/admin.sock, on Windows \\.\pipe\windlass-admin]
    #[arg(long, env = "WINDLASS_ADMIN_SOCKET", value_name = "PATH", hide_env_values = true)]
    admin_socket: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// VTEPs of the other nodes, and what each may send; stations of L2 segments
    Fdb,
    /// Gateways and their MACs
    Neighbors,
    /// Prefixes and where they lead
    Routes,
    /// VIPs and their backends
    Services,
    /// L2 segments and their VTEPs
    Segments,
    /// This node itself
    Local,
    /// Translated flows
    Connections,
    /// Packets and bytes by side, and what the engine counts
    Counters,
    /// Dropped packets by reason, and what each reason means
    Drops,
    /// The overlay device and the sockets
    Device,
}

/// Shows it once, or again and again.
pub(crate) fn run(args: &ShowArgs, arguments: &ArgMatches) -> anyhow::Result<()> {
    expect_filters_apply(args)?;
    // Only the socket's path is wanted: this need not be a node.
    let config = Config::new(&Settings::from_matches(arguments)?, || Some("localhost".to_owned()))?;
    loop {
        let text = shown(args, &config.admin_socket)?;
        let Some(seconds) = args.watch else { return print(&text) };
        let clear = args.output == Output::Table && std::io::stdout().is_terminal();
        print(&format!("{}{text}", if clear { CLEAR } else { "" }))?;
        thread::sleep(Duration::from_secs(seconds));
    }
}

/// A filter that would be ignored is a mistake of whoever asks.
fn expect_filters_apply(args: &ShowArgs) -> anyhow::Result<()> {
    let what = args.what.to_possible_value();
    let what = what.as_ref().map_or("", |what| what.get_name());
    args.wanted.expect_apply(what)?;
    Ok(expect_applies("--state", args.state.is_some(), what, &["connections"])?)
}

/// ECMA-48: the cursor home, and everything erased.
const CLEAR: &str = "\x1b[H\x1b[2J";

fn shown(args: &ShowArgs, socket: &Path) -> anyhow::Result<String> {
    let table = match args.what {
        What::Fdb => TableName::Fdb,
        What::Neighbors => TableName::Neighbors,
        What::Routes => TableName::Routes,
        What::Services => TableName::Services,
        What::Segments => TableName::Segments,
        What::Local => TableName::Local,
        What::Connections => return connections(args, socket),
        What::Counters => return counters(args, socket),
        What::Drops => return drops(args, socket),
        What::Device => return device(args, socket),
    };
    let tables: Tables = get(socket, "/tables")?;
    text(Some(table), args.output, &args.wanted, tables)
}

fn get<T: DeserializeOwned>(socket: &Path, target: &str) -> anyhow::Result<T> {
    Ok(serde_json::from_slice(&ask(socket, target, None)?)?)
}

fn connections(args: &ShowArgs, socket: &Path) -> anyhow::Result<String> {
    let Wanted { addr, service } = args.wanted.clone();
    let filter = Filter { addr, service, state: args.state.clone() };
    let answer = ask(socket, "/connections", Some(&serde_json::to_vec(&filter)?))?;
    document(args.output, &serde_json::from_slice(&answer)?, connection_rows)
}

fn connection_rows(found: &Connections) -> String {
    let row = |row: &windlass_control::inspect::connections::ConnectionRow| {
        vec![
            row.original.clone(),
            maybe(row.service.as_ref()),
            row.backend.clone(),
            row.translated.clone(),
            row.state.clone(),
            format!("{} s", row.age_seconds),
            format!("{} s", row.idle_seconds),
            format!("{} s", row.expires_seconds),
        ]
    };
    let header = ["ORIGINAL", "SERVICE", "BACKEND", "TRANSLATED", "STATE", "AGE", "IDLE", "EXPIRES IN"];
    let mut text = columns(&header, found.rows.iter().map(row).collect(), "no such connection");
    text += &format!("{} of {} connections\n", found.rows.len(), found.total);
    if found.truncated {
        text += "more match: narrow it with --addr, --service or --state\n";
    }
    text
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Counted {
    name: String,
    labels: std::collections::BTreeMap<String, String>,
    value: u64,
}

fn counters(args: &ShowArgs, socket: &Path) -> anyhow::Result<String> {
    let counted: Vec<Counted> = get(socket, "/counters")?;
    document(args.output, &counted, |counted| {
        let row = |counted: &Counted| {
            let labels: Vec<_> = counted.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            vec![counted.name.clone(), list(&labels), counted.value.to_string()]
        };
        // Drops that never happened say nothing; `show drops` has them all in JSON.
        let worth = |counted: &&Counted| counted.name != DROPS || counted.value > 0;
        columns(&["COUNTER", "OF", "VALUE"], counted.iter().filter(worth).map(row).collect(), "no counter")
    })
}

const DROPS: &str = "windlass_drops_total";

fn drops(args: &ShowArgs, socket: &Path) -> anyhow::Result<String> {
    let counted: Vec<Counted> = get(socket, "/counters")?;
    let packets = |reason: &DropReason| {
        let of = |counted: &&Counted| {
            counted.name == DROPS && counted.labels.get("reason").is_some_and(|name| name == reason.name())
        };
        counted.iter().filter(of).map(|counted| counted.value).sum()
    };
    let row = |reason: &DropReason| DropRow {
        reason: reason.name().to_owned(),
        packets: packets(reason),
        meaning: meaning(*reason),
    };
    let mut rows: Vec<DropRow> = DropReason::ALL.iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.packets));
    document(args.output, &rows, |rows| {
        let row = |row: &DropRow| vec![row.reason.clone(), row.packets.to_string(), row.meaning.clone()];
        let seen = rows.iter().filter(|row| row.packets > 0).map(row).collect();
        columns(&["REASON", "PACKETS", "MEANING"], seen, "nothing was dropped")
    })
}

fn device(args: &ShowArgs, socket: &Path) -> anyhow::Result<String> {
    let device: DeviceRow = get(socket, "/device")?;
    let value: Value = json!(device);
    document(args.output, &value, |_| {
        let line = |name: &str, value: String| vec![name.to_owned(), value];
        let mut rows = vec![
            line("device", device.name.clone()),
            line("MTU", device.mtu.to_string()),
            line("workers", device.workers.to_string()),
            line("CPUs", if device.cpus.is_empty() { "any".to_owned() } else { list(&device.cpus) }),
            line("source ports", list(&device.source_ports)),
        ];
        rows.extend(device.facts.iter().map(|fact| line("", fact.clone())));
        columns(&["DEVICE", ""], rows, "")
    })
}
