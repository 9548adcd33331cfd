//! The report as one HTML file that needs nothing else: tables, bars drawn as SVG, method and machine.

use std::fmt::Write;

use super::{METHOD, Report, Row, absent, key, number, range};
use crate::figures::{Better, Figure};
use crate::measure::Measure;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;\
color:#1b1f24;background:#fff}table{border-collapse:collapse;margin:.5rem 0 1.5rem;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .7rem;border-bottom:1px solid #d8dee4;text-align:right}th:first-child,td:first-child{text-align:left}\
h2{margin-top:2.5rem;border-bottom:2px solid #d8dee4}h3{margin-bottom:.3rem}.wide{overflow-x:auto}\
.skipped{color:#6e7781;font-style:italic}.better{color:#116329}.worse{color:#a40e26}code{background:#f3f4f6;padding:.1rem .3rem}\
svg text{font:12px system-ui,sans-serif;fill:#1b1f24}";

const LABEL_WIDTH: f64 = 300.0;
const BAR_WIDTH: f64 = 480.0;
const BAR_HEIGHT: f64 = 16.0;
const BAR_PITCH: f64 = 22.0;

/// The whole page.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut page = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    push(&mut page, &format!("<title>Windlass beside the kernel</title><style>{STYLE}</style></head><body>"));
    push(&mut page, "<h1>Windlass beside the kernel's vxlan</h1>");
    machine(&mut page, report);
    ratios(&mut page, report);
    for measure in &report.measures {
        self::measure(&mut page, report, measure);
    }
    programming(&mut page, report);
    goals(&mut page, report);
    contestants(&mut page, report);
    push(&mut page, "</body></html>");
    page
}

fn machine(page: &mut String, report: &Report) {
    let (machine, settings) = (&report.machine, &report.settings);
    push(page, &format!("<p><code>{}</code></p>", escape(&settings.command)));
    for line in machine.lines() {
        push(page, &format!("<p>{}.</p>", escape(&line)));
    }
    push(
        page,
        &format!("<p>{}; TCP in the pods: {}.</p>", settings.line(), escape(&report.congestion_control())),
    );
    push(page, "<h2>Method</h2><ul>");
    for sentence in METHOD {
        push(page, &format!("<li>{}</li>", escape(sentence)));
    }
    push(page, "</ul>");
}

fn ratios(page: &mut String, report: &Report) {
    let columns: Vec<_> = report.figures().filter(|(_, figure)| figure.headline).collect();
    push(page, "<h2>Ratios to the kernel's vxlan</h2><div class=\"wide\"><table><tr><th>contestant</th>");
    for (measure, figure) in &columns {
        push(page, &format!("<th>{} {}</th>", escape(measure.short), escape(figure.title)));
    }
    push(page, "</tr>");
    for row in &report.rows {
        push(page, &format!("<tr><td>{}</td>", escape(row.contestant.title)));
        match &row.skipped {
            Some(why) => push(
                page,
                &format!("<td class=\"skipped\" colspan=\"{}\">SKIPPED: {}</td>", columns.len(), escape(why)),
            ),
            None => columns.iter().for_each(|(measure, figure)| push(page, &ratio(row, measure, figure))),
        }
        push(page, "</tr>");
    }
    push(page, "</table></div>");
    for left_out in &report.left_out {
        push(page, &format!("<p class=\"skipped\">SKIPPED: {}</p>", escape(left_out)));
    }
}

fn ratio(row: &Row, measure: &Measure, figure: &Figure) -> String {
    let key = key(measure, figure);
    let Some(ratio) = row.ratios.get(&key) else {
        let value = row.summaries.get(&key).map_or_else(|| "-".to_owned(), |it| number(it.median));
        return format!("<td>{value}</td>");
    };
    let is_better = match figure.better {
        Better::Higher => ratio.median >= 1.0,
        Better::Lower => ratio.median <= 1.0,
    };
    let class = if is_better { "better" } else { "worse" };
    format!("<td class=\"{class}\">{:.2}x</td>", ratio.median)
}

fn measure(page: &mut String, report: &Report, measure: &Measure) {
    push(page, &format!("<h2>{}</h2>", escape(measure.title)));
    for figure in measure.figures.iter().filter(|figure| figure.headline) {
        chart(page, report, measure, figure);
    }
    push(page, "<div class=\"wide\"><table><tr><th>contestant</th>");
    for figure in measure.figures {
        push(page, &format!("<th>{}, {}</th><th>ratio</th>", escape(figure.title), escape(figure.unit)));
    }
    push(page, "</tr>");
    for row in report.rows.iter().filter(|row| row.skipped.is_none()) {
        push(page, &format!("<tr><td>{}</td>", escape(row.contestant.title)));
        for figure in measure.figures {
            let key = key(measure, figure);
            let value = row.summaries.get(&key).map_or_else(|| absent(row), range);
            let ratio = row.ratios.get(&key).map_or_else(String::new, |it| format!("{}x", range(it)));
            push(page, &format!("<td>{value}</td><td>{ratio}</td>"));
        }
        push(page, "</tr>");
    }
    push(page, "</table></div>");
}

/// A bar per contestant up to the median, with a whisker from the smallest to the largest value.
fn chart(page: &mut String, report: &Report, measure: &Measure, figure: &Figure) {
    let key = key(measure, figure);
    let bars: Vec<_> = report.rows.iter().filter_map(|row| Some((row, row.summaries.get(&key)?))).collect();
    let largest = bars.iter().map(|(_, summary)| summary.max).fold(f64::MIN_POSITIVE, f64::max);
    let better = match figure.better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    };
    push(page, &format!("<h3>{}, {} ({better})</h3>", escape(figure.title), escape(figure.unit)));
    let (width, mut top) = (LABEL_WIDTH + BAR_WIDTH + 170.0, 0.0);
    let mut drawn = String::new();
    for (row, summary) in bars {
        let x = |value: f64| LABEL_WIDTH + value / largest * BAR_WIDTH;
        let color = if row.contestant.key.starts_with("windlass") { "#2f6fde" } else { "#8c959f" };
        let (middle, text) = (top + BAR_HEIGHT / 2.0, top + BAR_HEIGHT - 4.0);
        let (length, low, high) = (x(summary.median) - LABEL_WIDTH, x(summary.min), x(summary.max));
        push(
            &mut drawn,
            &format!(
                "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{LABEL_WIDTH}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{color}\"/>\
                 <line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" stroke=\"#1b1f24\"/>\
                 <text x=\"{:.1}\" y=\"{text:.1}\">{}</text>",
                LABEL_WIDTH - 8.0,
                escape(row.contestant.title),
                high + 6.0,
                range(summary),
            ),
        );
        top += BAR_PITCH;
    }
    push(
        page,
        &format!(
            "<svg viewBox=\"0 0 {width} {top}\" width=\"{width}\" height=\"{top}\" role=\"img\">{drawn}</svg>"
        ),
    );
}

fn programming(page: &mut String, report: &Report) {
    if report.programming.is_empty() {
        return;
    }
    push(page, "<h2>Services, until they are in force (once per run)</h2><table><tr><th>who</th>");
    push(
        page,
        "<th>services</th><th>all, s</th><th>one more, s</th><th>one changed, s</th><th>what it spans</th></tr>",
    );
    for programming in &report.programming {
        push(
            page,
            &format!(
                "<tr><td>{}</td><td>{}</td><td>{:.4}</td><td>{:.4}</td><td>{:.4}</td><td>{}</td></tr>",
                escape(&programming.title),
                programming.services,
                programming.all_s,
                programming.one_more_s,
                programming.change_one_s,
                escape(programming.spans)
            ),
        );
    }
    push(page, "</table>");
}

fn goals(page: &mut String, report: &Report) {
    if report.goals.is_empty() {
        return;
    }
    push(page, "<h2>Goals between contestants</h2><ul>");
    for goal in &report.goals {
        let class = if goal.reached { "better" } else { "worse" };
        push(
            page,
            &format!("<li>{}: <span class=\"{class}\">{}</span></li>", escape(&goal.title), goal.verdict()),
        );
    }
    push(page, "</ul>");
}

fn contestants(page: &mut String, report: &Report) {
    push(page, "<h2>Contestants and the offloads of their devices</h2>");
    for row in &report.rows {
        push(page, &format!("<h3>{}</h3>", escape(row.contestant.title)));
        push(page, &format!("<p>{}</p>", escape(&row.contestant.how())));
        if let Some(why) = &row.skipped {
            push(page, &format!("<p class=\"skipped\">SKIPPED: {}</p>", escape(why)));
        }
        push(page, "<ul>");
        if !row.congestion_control.is_empty() {
            push(page, &format!("<li>TCP in the pods: {}</li>", escape(&row.congestion_control)));
        }
        for line in &row.devices {
            push(page, &format!("<li>{}</li>", escape(line)));
        }
        for failure in &row.failures {
            push(page, &format!("<li class=\"worse\">FAILED: {}</li>", escape(failure)));
        }
        push(page, "</ul>");
    }
}

fn push(page: &mut String, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(page, "{text}");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use crate::report::tests::sample;

    #[test]
    fn the_page_holds_bars_skips_and_no_raw_markup() {
        let page = super::render(&sample());
        assert!(page.contains("<svg") && page.contains("SKIPPED: openvswitch-switch is not installed"));
        assert!(page.contains("a &lt;fast&gt; processor") && !page.contains("<fast>"));
        assert!(page.contains("<td class=\"worse\">0.80x</td>"));
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = super::render(&sample());
        assert!(!page.contains("http") && !page.contains("src=") && !page.contains("<script"));
    }
}
