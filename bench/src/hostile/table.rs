//! The printed report, as Markdown.

use std::fmt::Write;

use clap::ValueEnum;

use super::attack::Attack;
use super::{Outcome, Speed};

const REASONS_SHOWN: usize = 3;
const MEGABYTE: f64 = 1e6;

/// One outcome in a line, while it is measured.
pub(super) fn line(outcome: &Outcome) -> String {
    format!("{:<16} {}", outcome.contestant, cells(outcome).join("  "))
}

/// One table per contestant, one line per attack and speed.
pub(super) fn render(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let mut contestants: Vec<&str> = outcomes.iter().map(|outcome| outcome.contestant).collect();
    contestants.dedup();
    contestants.sort_unstable_by_key(|key| outcomes.iter().position(|outcome| outcome.contestant == *key));
    contestants.dedup();
    for contestant in contestants {
        let of_it = outcomes.iter().filter(|outcome| outcome.contestant == contestant);
        push(
            &mut text,
            &format!(
                "\n{contestant}\n\n| {} |\n|---{}|",
                HEADS.join(" | "),
                "|---:".repeat(HEADS.len() - 2) + "|---"
            ),
        );
        of_it.for_each(|outcome| push(&mut text, &format!("| {} |", cells(outcome).join(" | "))));
    }
    push(&mut text, "");
    for attack in Attack::value_variants() {
        push(&mut text, &format!("{}: {}", attack.name(), attack.title()));
    }
    text
}

const HEADS: [&str; 10] = [
    "attack",
    "k packets/s",
    "busy cores",
    "paced flow kept",
    "connections alive",
    "exchange p99",
    "new connections",
    "fragmented",
    "memory",
    "dropped or answered",
];

fn cells(outcome: &Outcome) -> Vec<String> {
    let Outcome { attack, speed, kept, .. } = outcome;
    let speed = if *speed == Speed::Full { "full" } else { "paced" };
    let attack = attack.as_ref().map_or_else(|| "none".to_owned(), |attack| format!("{attack}, {speed}"));
    let memory = outcome.resident.map_or_else(
        || "-".to_owned(),
        |(before, after)| format!("{:.0} to {:.0} MB", before as f64 / MEGABYTE, after as f64 / MEGABYTE),
    );
    let reasons = outcome.drops.iter().take(REASONS_SHOWN);
    let reasons: Vec<_> = reasons.map(|(reason, count)| format!("{reason} {count}")).collect();
    vec![
        attack,
        format!("{:.0}", outcome.attack_kpps),
        format!("{:.2}", outcome.busy_cores),
        format!("{:.1} %", kept.paced),
        format!("{} of {}", kept.alive, kept.connections),
        format!("{:.1} ms", kept.exchange_p99_ms),
        format!("{:.0} %", kept.new),
        format!("{:.0} %", kept.fragmented),
        memory,
        reasons.join(", "),
    ]
}

fn push(text: &mut String, line: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}
