//! The printed report.

use std::fmt::Write as _;

use super::Report;
use super::gaps::{Evenness, LIMIT};

/// How it was measured, for whoever doubts the figures.
const METHOD: [&str; 5] = [
    "Bytes of objects and of what is compiled are what this process grew by; those of the tables are their entries added up.",
    "A change is followed from the EndpointSlice's change at an API server in this process, over HTTP, through the same \
     source and compiler as `windlass run` has, to the end of the last worker's first batch by the new tables.",
    "Workers forward batches of 64 packets of 64 bytes, of 1,024 UDP flows to services, without rest. A gap is the time \
     from one batch's end to the next one's: no packet waits longer.",
    "Own gaps are without the time in which the kernel gave the worker's thread no core (/proc/thread-self/schedstat). \
     What a hypervisor takes is in both.",
    "Nothing is pinned: workers, the API server, what makes the changes and what compiles them share the cores.",
];

/// Everything, as plain text.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    let (size, first, saving) = (report.size, &report.first, &report.saving);
    line(
        &mut text,
        &format!("{} nodes, {} services, {} endpoints\n", size.nodes, size.services, size.endpoints),
    );
    line(&mut text, "| | |");
    line(&mut text, "|---|---:|");
    let mut row = |what: &str, value: String| line(&mut text, &format!("| {what} | {value} |"));
    row("objects in memory", megabytes(first.objects_bytes));
    row("compiler and tables", megabytes(first.compiled_bytes));
    row("of that, entries of the tables", megabytes(first.tables_bytes as u64));
    let tables = first.tables_s;
    let range = format!("{:.0} ms [{:.0}-{:.0}]", tables.median * 1e3, tables.min * 1e3, tables.max * 1e3);
    row("first tables from objects in memory (goal: 1 s)", range);
    row("all objects listed from the API server", format!("{:.1} s", report.listed_s));
    for events in &report.events {
        let (workers, rate) = (workers(events.workers), report.changes_per_second);
        let value = format!("{:.1} / {:.1} / {:.1} ms", events.p50_ms, events.p99_ms, events.longest_ms);
        row(
            &format!("EndpointSlice to all workers, {workers}, {rate}/s: p50 / p99 (goal: 10 ms) / max"),
            value,
        );
        row(
            &format!("of that, until published, {workers}: p99"),
            format!("{:.1} ms", events.published_p99_ms),
        );
    }
    row(
        &format!("snapshot of {} connections: copied / written / file", saving.connections),
        format!("{:.2} s / {:.2} s / {}", saving.gathered_s, saving.written_s, megabytes(saving.file_bytes)),
    );
    row("those connections in memory", megabytes(saving.memory_bytes));
    line(&mut text, &format!("\nGaps in forwarding, us (goal: own gaps of {} at most)\n", LIMIT.as_micros()));
    line(&mut text, "| | Mpps | p50 | p99.99 | longest | over the goal | own longest | own over the goal |");
    line(&mut text, "|---|---:|---:|---:|---:|---:|---:|---:|");
    for events in &report.events {
        gaps(&mut text, &format!("{}, still", workers(events.workers)), &events.still);
        gaps(&mut text, &format!("{}, changing", workers(events.workers)), &events.changing);
    }
    gaps(&mut text, "1 worker beside the connections, still", &saving.still);
    gaps(&mut text, "1 worker, snapshot under way", &saving.saving);
    line(&mut text, "\nMethod");
    for sentence in report.machine.lines().iter().map(String::as_str).chain(METHOD) {
        line(&mut text, &format!("- {sentence}"));
    }
    text
}

fn workers(count: usize) -> String {
    if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") }
}

fn gaps(text: &mut String, what: &str, even: &Evenness) {
    let Evenness { mpps, p50_us, p99_99_us, longest_us, over_limit, longest_own_us, over_limit_own } = even;
    line(
        text,
        &format!(
            "| {what} | {mpps:.1} | {p50_us:.0} | {p99_99_us:.0} | {longest_us:.0} | {over_limit} | \
             {longest_own_us:.0} | {over_limit_own} |"
        ),
    );
}

#[allow(clippy::cast_precision_loss)]
fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

fn line(text: &mut String, line: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}
