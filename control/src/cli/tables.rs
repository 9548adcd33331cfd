//! `windlass tables`: what `run` would program, from the manifests alone.

use clap::{ArgMatches, Args, ValueEnum};
use serde_json::{Value, json};
use windlass_control::config::SettingsArgs;
use windlass_control::inspect::rows::Tables;

use super::print::{Output, document, print};
use super::{offline, view};

/// What to print.
#[derive(Args, Clone, Debug)]
pub(crate) struct TablesArgs {
    /// One table; all of them unless given
    #[arg(value_name = "TABLE")]
    pub(crate) table: Option<TableName>,

    /// Format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,

    #[command(flatten)]
    pub(crate) wanted: view::Wanted,

    #[command(flatten)]
    settings: SettingsArgs,
}

/// A table's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableName {
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
}

/// Prints the tables; what was left out goes to standard error.
pub(crate) fn run(args: &TablesArgs, arguments: &ArgMatches) -> anyhow::Result<()> {
    if let Some(table) = args.table.and_then(|table| table.to_possible_value()) {
        args.wanted.expect_apply(table.get_name())?;
    }
    let (inspection, notes) = offline::inspection(arguments)?;
    for note in notes {
        eprintln!("note: {note}");
    }
    let tables = Tables::of(&inspection);
    print(&text(args.table, args.output, &args.wanted, tables)?)
}

/// The wanted rows of one table, or of all, in the wanted format.
pub(crate) fn text(
    table: Option<TableName>,
    output: Output,
    wanted: &view::Wanted,
    mut tables: Tables,
) -> anyhow::Result<String> {
    wanted.keep(&mut tables);
    let value = match table {
        None => serde_json::to_value(&tables)?,
        Some(name) => part(name, &tables),
    };
    document(output, &value, |_| readable(table, &tables, wanted))
}

fn part(name: TableName, tables: &Tables) -> Value {
    match name {
        TableName::Fdb if !tables.segments.is_empty() => json!(tables.stations),
        TableName::Fdb => json!(tables.fdb),
        TableName::Segments => json!(tables.segments),
        TableName::Neighbors => json!(tables.neighbors),
        TableName::Routes => json!(tables.routes),
        TableName::Services => json!(tables.services),
        TableName::Local => json!(tables.local),
    }
}

fn readable(table: Option<TableName>, tables: &Tables, wanted: &view::Wanted) -> String {
    match table {
        Some(TableName::Fdb) if !tables.segments.is_empty() => view::stations(&tables.stations),
        Some(TableName::Fdb) => view::fdb(&tables.fdb),
        Some(TableName::Segments) => view::segments(&tables.segments),
        Some(TableName::Neighbors) => view::neighbors(&tables.neighbors),
        Some(TableName::Routes) => view::routes(&tables.routes),
        Some(TableName::Services) => view::services(&tables.services, wanted),
        Some(TableName::Local) => view::local(&tables.local),
        None if !tables.segments.is_empty() => [
            view::local(&tables.local),
            view::segments(&tables.segments),
            format!("FDB\n{}", view::stations(&tables.stations)),
        ]
        .join("\n"),
        None => [
            view::local(&tables.local),
            format!("FDB\n{}", view::fdb(&tables.fdb)),
            format!("NEIGHBORS\n{}", view::neighbors(&tables.neighbors)),
            format!("ROUTES\n{}", view::routes(&tables.routes)),
            format!("SERVICES\n{}", view::services(&tables.services, wanted)),
        ]
        .join("\n"),
    }
}
