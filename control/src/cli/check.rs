//! `windlass check`: what would keep `windlass run` from running here, or make it run badly.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ArgMatches;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use windlass_control::admin::AdminError;
use windlass_control::check::{self, About, Facts, Finding, Severity, Subject};
use windlass_control::cluster::{ClusterState, Problem};
use windlass_control::compile::compile;
use windlass_control::config::{Config, Settings};
use windlass_control::node::{self, NodeSettings};
use windlass_control::system;
use windlass_dataplane::device::{self, DeviceError, Survey};

use super::input::Input;

/// How findings are printed.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Output {
    /// For people.
    Table,
    /// One JSON object.
    Json,
}

/// Prints what the checks find: exit code 1 when one of them would keep the node from running.
pub(super) fn run(arguments: &ArgMatches, output: Output) -> anyhow::Result<ExitCode> {
    let config = Config::new(&Settings::from_matches(arguments)?, system::node_name)?;
    let host = device::survey(&check::tcp_ports(&config));
    let (findings, complete) = look(&config, host);
    let refused = !check::refusals(&findings, &config).is_empty();
    match output {
        Output::Table => println!("{}", report(&findings, &config, complete)),
        Output::Json => println!("{}", serde_json::to_string_pretty(&Report::new(&findings, &config))?),
    }
    Ok(if refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The errors that keep `windlass run` from running. Warnings are logged.
///
/// # Errors
/// When there are any that are not ignored by name.
pub(super) fn gate(config: &Config, cluster: &ClusterState, node: &NodeSettings) -> Result<(), Refused> {
    let host = device::survey(&check::tcp_ports(config));
    let subject = Subject { config, cluster, node: Some(node) };
    let findings = check::findings(&subject, &facts(config, host, Some(node)));
    let refusals = check::refusals(&findings, config);
    for (finding, more) in few(&findings) {
        let (name, text) = (finding.check.name, counted(finding, more));
        match finding.severity {
            Severity::Error if refusals.contains(&finding) => {}
            Severity::Error => tracing::warn!(check = name, "ignored: {text}"),
            Severity::Warning => tracing::warn!(check = name, "{text}"),
            Severity::Unseen => tracing::debug!(check = name, "{text}"),
            Severity::Note => tracing::info!(check = name, "{text}"),
        }
    }
    if refusals.is_empty() {
        return Ok(());
    }
    Err(Refused {
        objects: refusals.iter().any(|finding| finding.check.about == About::Objects),
        lines: few(refusals.iter().copied())
            .map(|(finding, more)| format!("{}: {}", finding.check.name, counted(finding, more)))
            .collect(),
        way_out: way_out(&refusals),
    })
}

/// The checks that this node fails.
#[derive(Debug, thiserror::Error)]
#[error(
    "this node fails {}:\n  {}\n`windlass check` says why each matters{}",
    if lines.len() == 1 { "a check" } else { "checks" },
    lines.join("\n  "),
    way_out
)]
pub(super) struct Refused {
    /// Whether objects or flags are to be mended, not only the host.
    pub(super) objects: bool,
    lines: Vec<String>,
    /// What lets the node run in spite of them.
    way_out: String,
}

/// What would let a node run in spite of its errors; nothing does when one of them is of what running takes.
fn way_out(refusals: &[&Finding]) -> String {
    if refusals.iter().any(|finding| !finding.check.ignorable) {
        return String::new();
    }
    let mut names: Vec<_> = refusals.iter().map(|finding| finding.check.name).collect();
    names.sort_unstable();
    names.dedup();
    let flags: Vec<_> = names.into_iter().map(|name| format!("--ignore {name}")).collect();
    format!("; {} lets the node run in spite of that", flags.join(" "))
}

/// At most so many findings of one check and severity are shown; a whole cluster may have one trouble.
const SHOWN: usize = 5;

/// The first findings of each check and severity, the last of them with the number of those that follow.
fn few<'a>(
    findings: impl IntoIterator<Item = &'a Finding> + Clone,
) -> impl Iterator<Item = (&'a Finding, usize)> {
    let mut counts: BTreeMap<(&str, Severity), usize> = BTreeMap::new();
    for finding in findings.clone() {
        *counts.entry((finding.check.name, finding.severity)).or_default() += 1;
    }
    let mut seen: BTreeMap<(&str, Severity), usize> = BTreeMap::new();
    findings.into_iter().filter_map(move |finding| {
        let kind = (finding.check.name, finding.severity);
        let number = seen.entry(kind).or_default();
        *number += 1;
        match *number {
            SHOWN => Some((finding, counts.get(&kind).map_or(0, |count| count - SHOWN))),
            number => (number < SHOWN).then_some((finding, 0)),
        }
    })
}

fn counted(finding: &Finding, more: usize) -> String {
    let remedy = if finding.remedy.is_empty() { String::new() } else { format!("; {}", finding.remedy) };
    let more = if more == 0 { String::new() } else { format!(" (and {more} more: see `windlass check`)") };
    format!("{}{remedy}{more}", finding.seen)
}

/// Everything that is found, and whether all that there is could be looked at.
fn look(config: &Config, host: Survey) -> (Vec<Finding>, bool) {
    let mut first = Vec::new();
    let mut problems: Vec<Problem> = Vec::new();
    let mut cluster = ClusterState::default();
    let mut node = None;
    match Input::open(config, Arc::default()).and_then(|mut input| input.read_untouched(config)) {
        Err(error) => first.push(Finding::of_source(&format!("{error:#}"))),
        Ok(read) => {
            problems.extend(read.problems);
            cluster = read.state;
            match node::resolve(&cluster, config, &host) {
                Err(error) => first.push(Finding::of_node(&error)),
                Ok((settings, found)) => {
                    problems.extend(found);
                    problems.extend(compile(&cluster, &settings).problems);
                    node = Some(settings);
                }
            }
        }
    }
    let facts = facts(config, host, node.as_ref());
    let subject = Subject { config, cluster: &cluster, node: node.as_ref() };
    let mut findings = first;
    findings.extend(check::findings(&subject, &facts));
    check::with_problems(&mut findings, &problems);
    (findings, node.is_some())
}

fn facts(config: &Config, host: Survey, node: Option<&NodeSettings>) -> Facts {
    let addresses = |node: &NodeSettings| node.underlay.iter().map(|choice| choice.addr).collect::<Vec<_>>();
    let probe = |node: &NodeSettings| {
        device::probe_vxlan_port(&addresses(node), node.port).map_err(|error: DeviceError| error.to_string())
    };
    let listen = |addr| {
        TcpListener::bind(addr)
            .map(drop)
            .map_err(|source| AdminError::Listen { what: "metrics", addr, source }.to_string())
    };
    Facts {
        vxlan_port: node.map(probe),
        metrics: config.metrics.map_or(Ok(()), listen),
        managed_by: device::managed_by(),
        host,
    }
}

#[derive(Serialize)]
struct Report<'a> {
    errors: usize,
    warnings: usize,
    unseen: usize,
    findings: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    check: &'static str,
    severity: Severity,
    ignored: bool,
    seen: &'a str,
    why: &'static str,
    remedy: &'a str,
}

impl<'a> Report<'a> {
    fn new(findings: &'a [Finding], config: &Config) -> Self {
        let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
        let line = |finding: &'a Finding| Line {
            check: finding.check.name,
            severity: finding.severity,
            ignored: config.ignore.contains(&finding.check.name),
            seen: &finding.seen,
            why: finding.check.why,
            remedy: &finding.remedy,
        };
        Self {
            errors: check::refusals(findings, config).len(),
            warnings: count(Severity::Warning),
            unseen: count(Severity::Unseen),
            findings: findings.iter().map(line).collect(),
        }
    }
}

/// Width of the table where the terminal does not say its own.
const WIDTH: u16 = 120;

fn report(findings: &[Finding], config: &Config, complete: bool) -> String {
    let mut text = String::new();
    if !findings.is_empty() {
        let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(WIDTH);
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        table.set_header(["", "check", "seen, why it matters, what to do"]);
        for (finding, more) in few(findings) {
            let mut told = told(finding);
            if more > 0 {
                told.push_str(&format!("\nand {more} more of this kind: see --output json"));
            }
            table.add_row([grade(finding, config), finding.check.name.to_owned(), told]);
        }
        text = format!("{table}\n");
    }
    text + &summary(findings, config, complete)
}

fn grade(finding: &Finding, config: &Config) -> String {
    let ignored = finding.severity == Severity::Error && config.ignore.contains(&finding.check.name);
    if ignored { "ignored".to_owned() } else { finding.severity.to_string() }
}

fn told(finding: &Finding) -> String {
    let mut told = format!("{}\nwhy: {}", finding.seen, finding.check.why);
    if !finding.remedy.is_empty() {
        told.push_str(&format!("\ndo:  {}", finding.remedy));
    }
    told
}

fn summary(findings: &[Finding], config: &Config, complete: bool) -> String {
    let refusals = check::refusals(findings, config);
    let report = Report::new(findings, config);
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut text = format!(
        "{} checks: {}, {}, {} could not be seen",
        check::ALL.len(),
        plural(report.errors, "error"),
        plural(report.warnings, "warning"),
        report.unseen
    );
    if !complete {
        text.push_str("; those that need this node's Node object were left out");
    }
    if refusals.is_empty() {
        return text + "\nwindlass run would run";
    }
    text.push_str("\nwindlass run would refuse");
    text + &way_out(&refusals)
}
