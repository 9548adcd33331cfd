//! What subcommands print on standard output: tables with plain columns, JSON, YAML.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde::Serialize;

/// How an answer is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Columns, for people
    #[default]
    Table,
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
}

/// Writes `text`, which ends in a newline. A reader that has gone (`| head`) is no failure.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// A document in the wanted format; `table` makes the one for people.
pub(crate) fn document<T: Serialize>(
    output: Output,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<String> {
    Ok(match output {
        Output::Table => table(value),
        Output::Json => serde_json::to_string_pretty(value)? + "\n",
        Output::Yaml => serde_saphyr::to_string(value)?,
    })
}

/// Rows under a header, or `nothing` when there is none.
pub(crate) fn columns(header: &[&str], rows: Vec<Vec<String>>, nothing: &str) -> String {
    if rows.is_empty() {
        return format!("{nothing}\n");
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().map(ToString::to_string));
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n") + "\n"
}

/// Texts after each other, or a dash.
pub(crate) fn list<T: ToString>(items: &[T]) -> String {
    let texts: Vec<_> = items.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

/// A text, or a dash.
pub(crate) fn maybe<T: ToString>(item: Option<&T>) -> String {
    item.map_or_else(|| "-".to_owned(), ToString::to_string)
}
