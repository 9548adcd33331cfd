//! `windlass trace`: what would happen to one packet, told by a running node or from manifests.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use windlass_control::admin::client::{AskError, ask};
use windlass_control::capture::{self, UdpDatagram};
use windlass_control::config::{Config, ConfigError, Settings, SettingsArgs};
use windlass_control::inspect::packet::{self, PacketError, from_hex};
use windlass_control::inspect::trace::{self, Arrival, End, Report, Request, TraceError, Way};
use windlass_dataplane::engine::decap::Frame;

use super::offline;
use super::print::{Output, document, print};

/// The packet, and who is asked.
#[derive(Args, Clone, Debug)]
pub(crate) struct TraceArgs {
    /// 'tcp 10.244.0.14:40000 > 10.96.0.10:53', with 'flags syn|ack' and 'len 60' if need be; in an L2 segment 'frame
    /// MAC > MAC' or 'arp MAC IP > IP'
    #[arg(value_name = "PACKET", num_args = 1..)]
    packet: Vec<String>,

    /// The packet as hexadecimal digits, from its IP header on (with --decap also from its VXLAN header on), in an L2
    /// segment from its destination MAC on (with --decap from its VXLAN header on)
    #[arg(long, value_name = "DIGITS", conflicts_with_all = ["packet", "pcap"])]
    hex: Option<String>,

    /// A packet of a pcap or pcapng file, the first unless N is given
    #[arg(long, value_name = "FILE[:N]", conflicts_with = "packet")]
    pcap: Option<String>,

    /// The packet comes from the underlay, not from a pod or the host
    #[arg(long)]
    decap: bool,

    /// Outer source: the underlay address of the node that sends it [default: the captured packet's]
    #[arg(long, value_name = "VTEP", requires = "decap")]
    from: Option<IpAddr>,

    /// VNI that it carries, or of the L2 segment that it is in [default: this node's]
    #[arg(long, value_name = "VNI")]
    packet_vni: Option<u32>,

    /// Inner destination MAC [default: this node's]
    #[arg(long, value_name = "MAC", requires = "decap")]
    mac: Option<String>,

    /// Format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,

    #[command(flatten)]
    settings: SettingsArgs,
}

/// Traces it; the result says whether it would be sent.
pub(crate) fn run(args: &TraceArgs, arguments: &ArgMatches) -> anyhow::Result<ExitCode> {
    let request = request(args)?;
    let is_offline = ["manifests", "kubeconfig"]
        .map(|id| arguments.value_source(id))
        .contains(&Some(ValueSource::CommandLine));
    let report = if is_offline {
        let (inspection, notes) = offline::inspection(arguments)?;
        for note in notes {
            eprintln!("note: {note}");
        }
        trace::trace(&inspection, &request).map_err(wrong)?
    } else {
        asked(arguments, &request)?
    };
    print(&document(args.output, &report, readable)?)?;
    Ok(if report.forward.end.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn asked(arguments: &ArgMatches, request: &Request) -> anyhow::Result<Report> {
    let config = Config::new(&Settings::from_matches(arguments)?, || Some("localhost".to_owned()))?;
    let answer = ask(&config.admin_socket, "/trace", Some(&serde_json::to_vec(request)?));
    match answer {
        Ok(answer) => serde_json::from_slice(&answer).context("the answer is not understood"),
        Err(AskError::Refused { status: 400, said }) => Err(ConfigError::Arguments(said).into()),
        Err(error @ AskError::NotRunning { .. }) => Err(anyhow::Error::new(error)
            .context("to trace without a running node, give --manifests or --kubeconfig")),
        Err(error) => Err(error.into()),
    }
}

fn wrong(error: TraceError) -> ConfigError {
    ConfigError::Arguments(error.to_string())
}

fn request(args: &TraceArgs) -> anyhow::Result<Request> {
    let usage = |error: PacketError| ConfigError::Arguments(error.to_string());
    let mut request = Request::default();
    let mut from = args.from;
    if let Some(place) = &args.pcap {
        let (file, number) = file_and_number(place)?;
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let mut packet = capture::ip_packet(&bytes, number).with_context(|| file.display().to_string())?;
        if args.decap
            && let Some(datagram) = UdpDatagram::in_packet(&packet)
            && (from.is_none() || Frame::parse(datagram.payload).is_ok())
        {
            from = from.or(Some(datagram.source));
            packet = datagram.payload.to_vec();
        }
        request.hex = Some(packet.iter().map(|byte| format!("{byte:02x}")).collect());
    } else if let Some(hex) = &args.hex {
        from_hex(hex).map_err(usage)?;
        request.hex = Some(hex.clone());
    } else if args.packet.is_empty() {
        bail!(ConfigError::Arguments(NO_PACKET.to_owned()));
    } else {
        let flow = args.packet.join(" ");
        if !trace::is_frame(&flow) {
            packet::parse(&flow).map_err(usage)?;
        }
        request.flow = Some(flow);
    }
    request.vni = args.packet_vni;
    if args.decap {
        let Some(from) = from else {
            let text = "--decap needs --from: the underlay address of the node that sends the packet";
            bail!(ConfigError::Arguments(text.to_owned()));
        };
        request.arrival = Some(Arrival { from, vni: args.packet_vni, mac: args.mac.clone(), tos: 0 });
    }
    Ok(request)
}

const NO_PACKET: &str =
    "trace needs a packet: 'udp 10.244.0.14:40000 > 10.96.0.10:53', or --hex DIGITS, or --pcap FILE[:N]";

/// `FILE:N`; a colon that no number follows belongs to the name.
fn file_and_number(place: &str) -> Result<(PathBuf, usize), ConfigError> {
    match place.rsplit_once(':').map(|(file, number)| (file, number.parse::<usize>())) {
        Some((file, Ok(0))) => {
            let text = format!("--pcap {place}: packets are counted from 1; give {file}:1 for the first");
            Err(ConfigError::Arguments(text))
        }
        Some((file, Ok(number))) => Ok((file.into(), number)),
        _ => Ok((place.into(), 1)),
    }
}

fn readable(report: &Report) -> String {
    let mut text = way("PACKET", &report.forward);
    for line in &report.advice {
        text += &format!("  why: {line}\n");
    }
    if let Some(reply) = &report.reply {
        text += &format!("\n{}", way("REPLY", reply));
    }
    text
}

fn way(title: &str, way: &Way) -> String {
    let mut text = format!("{title}  {}\n  comes {}\n", way.packet, way.ingress);
    for (number, row) in way.steps.iter().enumerate() {
        text += &format!("  {:>2}. {:<11}  {}\n", number + 1, row.step, row.text);
    }
    let end = match way.end {
        End::Sent => "SENT",
        End::Answered => "ANSWERED",
        End::Rejected => "REJECTED",
        End::Dropped => "DROPPED",
    };
    let reason = way.reason.as_ref().map_or_else(String::new, |reason| format!(" {reason}"));
    text + &format!("  {end}{reason}: {}\n", way.text)
}
