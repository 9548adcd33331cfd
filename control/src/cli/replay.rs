//! `windlass replay`: a capture through this node's tables, offline; every packet's verdict.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{ArgMatches, Args};
use serde::Serialize;
use windlass_control::capture::write::{Direction, PcapngWriter, Record};
use windlass_control::capture::{Captured, packets};
use windlass_control::config::{ConfigError, SettingsArgs};
use windlass_control::replay::{Replay, Replayed, Summary, Verdict};
use windlass_dataplane::drop_reason::DropReason;

use super::offline;
use super::print::{Output, document, print};

/// The capture, and what to do with it.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// A pcap or pcapng file of this node's packets: of its overlay device, of its underlay, or of both
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Write what was captured, with the verdict as comment, and after each packet what was sent for it
    #[arg(long, value_name = "FILE.pcapng")]
    out: Option<PathBuf>,

    /// Drops for this reason are expected and do not make the exit code 1
    #[arg(long, value_name = "REASON", value_delimiter = ',', value_parser = reasons())]
    allow: Vec<String>,

    /// Format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,

    #[command(flatten)]
    settings: SettingsArgs,
}

fn reasons() -> clap::builder::PossibleValuesParser {
    DropReason::ALL.iter().map(|reason| reason.name()).collect::<Vec<_>>().into()
}

/// One packet of the report.
#[derive(Serialize)]
struct Row {
    /// Its number in the file, from 1.
    number: usize,
    /// Seconds since the first one.
    seconds: f64,
    #[serde(flatten)]
    replayed: Replayed,
}

/// What is printed.
#[derive(Serialize)]
struct Report {
    packets: Vec<Row>,
    summary: Summary,
}

/// Replays the file; the result says whether everything was sent.
pub(crate) fn run(args: &ReplayArgs, arguments: &ArgMatches) -> anyhow::Result<ExitCode> {
    let (node, notes) = offline::node(arguments)?;
    for note in notes {
        eprintln!("note: {note}");
    }
    if node.origin.settings.is_bridge() {
        let text = "replay knows routed packets alone, not frames of segments; leave out --device-kind tap";
        return Err(ConfigError::Arguments(text.to_owned()).into());
    }
    let named = || args.file.display().to_string();
    let file = std::fs::read(&args.file).with_context(|| format!("cannot read {}", named()))?;
    let captured = packets(&file, usize::MAX).with_context(named)?;
    let mut replay = Replay::new(node.compiled.tables, node.origin.settings, node.engine);
    let mut out = args.out.as_ref().map(Out::create).transpose()?;
    let mut rows = Vec::with_capacity(captured.len());
    for (packet, number) in captured.iter().zip(1..) {
        let replayed = replay.packet(packet)?;
        if let Some(out) = &mut out {
            out.add(packet, &replayed).context("cannot write the capture")?;
        }
        let seconds = packet.at.saturating_sub(captured[0].at).as_secs_f64();
        rows.push(Row { number, seconds, replayed });
    }
    if let Some(out) = out {
        out.writer.finish().context("cannot write the capture")?;
    }
    let mut summary = replay.summary();
    for row in &rows {
        *summary.verdicts.entry(row.replayed.verdict).or_default() += 1;
    }
    let is_allowed = |reason: &str| args.allow.iter().any(|allowed| allowed == reason);
    let failed = !summary.drops.keys().all(|reason| is_allowed(reason));
    print(&document(args.output, &Report { packets: rows, summary }, readable)?)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The capture that is written.
struct Out {
    writer: PcapngWriter<BufWriter<File>>,
}

const CAPTURED: u32 = 0;
const OVERLAY: u32 = 1;
const UNDERLAY: u32 = 2;

impl Out {
    fn create(path: &PathBuf) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let interfaces = ["captured", "to the overlay device", "to the underlay"];
        Ok(Self { writer: PcapngWriter::new(BufWriter::new(file), &interfaces)? })
    }

    fn add(&mut self, captured: &Captured<'_>, replayed: &Replayed) -> std::io::Result<()> {
        let reason = replayed.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        let comment = format!("{}{reason}", replayed.verdict.name());
        // A frame that is no IP packet has no place in a file of IP packets.
        if let Ok(ip) = captured.ip_packet() {
            let link_len = captured.bytes.len() - ip.len();
            self.write(captured, CAPTURED, ip, captured.original_len - link_len as u32, &comment)?;
        }
        for packet in &replayed.to_overlay {
            self.write(captured, OVERLAY, packet, packet.len() as u32, "")?;
        }
        for packet in &replayed.to_underlay {
            self.write(captured, UNDERLAY, packet, packet.len() as u32, "")?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        captured: &Captured<'_>,
        interface: u32,
        bytes: &[u8],
        original_len: u32,
        comment: &str,
    ) -> std::io::Result<()> {
        let direction = if interface == CAPTURED { Direction::Inbound } else { Direction::Outbound };
        self.writer.packet(&Record { interface, at: captured.at, bytes, original_len, direction, comment })
    }
}

fn readable(report: &Report) -> String {
    let mut text = String::new();
    for Row { number, seconds, replayed } in &report.packets {
        let Replayed { packet, verdict, reason, sent, .. } = replayed;
        let reason = reason.as_ref().map_or_else(String::new, |reason| format!(" {reason}"));
        text += &format!(
            "{number:>5} {seconds:>11.6} {packet}\n      {}{reason}\n",
            verdict.name().to_uppercase()
        );
        for sent in sent {
            text += &format!("      {sent}\n");
        }
    }
    let Summary { verdicts, drops, received, generated, sent, dropped } = &report.summary;
    let verdicts: Vec<_> = verdicts
        .iter()
        .map(|(verdict, count): (&Verdict, &u64)| format!("{count} {}", verdict.name()))
        .collect();
    text += &format!("\n{} packets: {}\n", report.packets.len(), verdicts.join(", "));
    text += &format!("{received} received + {generated} generated = {sent} sent + {dropped} dropped\n");
    for (reason, count) in drops {
        text += &format!("  {count:>6} {reason}\n");
    }
    text
}
