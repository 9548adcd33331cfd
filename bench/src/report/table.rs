//! The printed report: figures measure by measure, then the table of ratios.

use std::fmt::Write;

use super::{METHOD, Report, Row, absent, key, range};
use crate::figures::Figure;
use crate::measure::Measure;
use crate::programming::Programming;

/// Everything, as plain text.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    figures(&mut text, report);
    programming(&mut text, report);
    goals(&mut text, report);
    method(&mut text, report);
    ratios(&mut text, report);
    text
}

fn figures(text: &mut String, report: &Report) {
    for (measure, figure) in report.figures() {
        line(text, &format!("\n{}: {}, {}", measure.title, figure.title, figure.unit));
        for row in report.rows.iter().filter(|row| row.skipped.is_none()) {
            let key = key(measure, figure);
            let value = row.summaries.get(&key).map_or_else(|| absent(row), range);
            let ratio = row.ratios.get(&key).map_or_else(String::new, |ratio| format!("{}x", range(ratio)));
            line(text, &format!("  {:<46} {value:<28} {ratio}", row.contestant.title));
        }
    }
}

fn programming(text: &mut String, report: &Report) {
    for (index, programming) in report.programming.iter().enumerate() {
        if index == 0 {
            line(text, "\nServices, until they are in force, s (once per run)");
        }
        let Programming { title, all_s, one_more_s, change_one_s, spans, .. } = programming;
        let seconds = format!("{all_s:.4}, one more {one_more_s:.4}, one changed {change_one_s:.4}");
        line(text, &format!("  {title:<46} {seconds:<46} {spans}"));
    }
}

fn goals(text: &mut String, report: &Report) {
    for goal in &report.goals {
        line(text, &format!("\n{}: {}", goal.title, goal.verdict()));
    }
}

fn method(text: &mut String, report: &Report) {
    let (machine, settings) = (&report.machine, &report.settings);
    line(text, "\nMethod");
    for fact in machine.lines() {
        line(text, &format!("- {fact}"));
    }
    line(text, &format!("- {}; TCP in the pods: {}", settings.line(), report.congestion_control()));
    for sentence in METHOD {
        line(text, &format!("- {sentence}"));
    }
    for row in &report.rows {
        line(text, &format!("- set up, {}: {}", row.contestant.key, row.contestant.how()));
        for device in &row.devices {
            line(text, &format!("- device, {}: {device}", row.contestant.key));
        }
        for failure in &row.failures {
            line(text, &format!("- FAILED, {}: {failure}", row.contestant.key));
        }
    }
}

/// One line per contestant, one column per headline figure: the base's own values, then ratios to it.
fn ratios(text: &mut String, report: &Report) {
    let columns: Vec<_> = report.figures().filter(|(_, figure)| figure.headline).collect();
    line(text, "\nRatios to the kernel's vxlan, medians of the rounds' ratios\n");
    let mut head = vec!["contestant".to_owned()];
    head.extend(columns.iter().map(|(measure, figure)| column_title(measure, figure)));
    let mut lines = vec![head];
    for row in &report.rows {
        lines.extend(cells(report, row, &columns));
    }
    for (index, cells) in lines.iter().enumerate() {
        line(text, &format!("| {} |", cells.join(" | ")));
        if index == 0 {
            line(text, &format!("|---|{}", "---:|".repeat(cells.len() - 1)));
        }
    }
    for row in &report.rows {
        if let Some(why) = &row.skipped {
            line(text, &format!("\nSKIPPED: {}: {why}", row.contestant.title));
        }
    }
    for left_out in &report.left_out {
        line(text, &format!("\nSKIPPED: {left_out}"));
    }
    line(text, &format!("\n{}", report.settings.command));
}

fn column_title(measure: &Measure, figure: &Figure) -> String {
    format!("{} {}", measure.short, figure.title)
}

fn cells(report: &Report, row: &Row, columns: &[(&Measure, &'static Figure)]) -> Vec<Vec<String>> {
    let line_of = |title: String, cell: &dyn Fn(&str, &Figure) -> String| {
        let mut cells = vec![title];
        cells.extend(columns.iter().map(|(measure, figure)| cell(&key(measure, figure), figure)));
        cells
    };
    let title = row.contestant.title.to_owned();
    if row.skipped.is_some() {
        return vec![line_of(title, &|_, _| "SKIPPED".to_owned())];
    }
    let value = |key: &str, figure: &Figure| {
        let summary = row.summaries.get(key);
        summary.map_or_else(|| "-".to_owned(), |it| format!("{} {}", super::number(it.median), figure.unit))
    };
    if row.contestant.key == report.base {
        return vec![line_of(title, &value)];
    }
    let ratio = |key: &str, figure: &Figure| match (figure.key, row.ratios.get(key)) {
        // A share of what was sent is compared by itself: the base's is often 0.
        ("loss" | "lost", _) | (_, None) => value(key, figure),
        (_, Some(ratio)) => format!("{:.2}x", ratio.median),
    };
    vec![line_of(title, &ratio)]
}

fn line(text: &mut String, line: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use crate::report::tests::sample;

    #[test]
    fn the_ratio_table_shows_values_of_the_base_and_ratios_of_the_others() {
        let text = super::render(&sample());
        assert!(text.contains("| kernel vxlan | 15.0 Gbit/s |"), "{text}");
        assert!(text.contains("| Windlass, 1 worker | 0.80x |"), "{text}");
        assert!(text.contains("| OVS userspace, AF_PACKET | SKIPPED |"), "{text}");
        assert!(text.trim_end().ends_with("compare --quick"), "{text}");
    }
}
