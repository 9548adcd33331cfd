//! `windlass capture`: packets of a running node, into a file that Wireshark reads.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{ArgMatches, Args};
use tokio::sync::Notify;
use windlass_control::admin::client::{AskError, ask};
use windlass_control::capture::live::{self, Answer, Question};
use windlass_control::capture::write::{PcapngWriter, Record};
use windlass_control::config::{Config, ConfigError, Settings};
use windlass_control::inspect::packet::from_hex;
use windlass_control::system::Signals;

use super::show::SocketArgs;

/// What to capture, and where to.
#[derive(Args, Clone, Debug)]
pub(crate) struct CaptureArgs {
    /// Only these inner packets: 'tcp', 'udp', 'icmp', 'icmpv6', 'host ADDR', 'port N', all of which must hold
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,

    /// The file to write
    #[arg(long, value_name = "FILE.pcapng")]
    out: PathBuf,

    /// Packets of the overlay device, as pods and this host see them; with no such flag, both sides
    #[arg(long)]
    inner: bool,

    /// VXLAN datagrams, as other nodes see them
    #[arg(long)]
    outer: bool,

    /// Only what is dropped
    #[arg(long)]
    drops: bool,

    /// Stop after so many packets
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,

    /// Stop after so many seconds; without it Ctrl-C stops
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,

    /// Bytes kept of a packet
    #[arg(short, long, value_name = "BYTES", default_value_t = 65_535)]
    snaplen: u32,

    #[command(flatten)]
    socket: SocketArgs,
}

/// How often the node is asked.
const ASK_EVERY: Duration = Duration::from_millis(100);

const OVERLAY: u32 = 0;
const UNDERLAY: u32 = 1;

/// Captures until there is enough, the time is over, or a signal comes.
pub(crate) fn run(args: &CaptureArgs, arguments: &ArgMatches) -> anyhow::Result<()> {
    let config = Config::new(&Settings::from_matches(arguments)?, || Some("localhost".to_owned()))?;
    let question = question(args)?;
    let signals = Signals::install().context("cannot listen for SIGINT and SIGTERM")?;
    // The node is asked first: a file is made only when there is something to capture from.
    let first = asked(&config.admin_socket, &question)?;
    let mut out = Out::create(&args.out)?;
    out.add(&first, args.count)?;
    let ends_at = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut failed = None;
    signals.wait_while(ASK_EVERY, &Notify::new(), || {
        let went_on = asked(&config.admin_socket, &question).and_then(|answer| out.add(&answer, args.count));
        failed = went_on.err();
        let is_over = ends_at.is_some_and(|ends_at| Instant::now() >= ends_at);
        failed.is_none() && !is_over && !out.is_full(args.count)
    });
    if failed.is_none() {
        let last = asked(&config.admin_socket, &Question { last: true, ..question })?;
        out.add(&last, args.count)?;
    }
    eprintln!("{} packets written, {} lost: {}", out.written, out.lost, args.out.display());
    out.writer.finish()?;
    failed.map_or(Ok(()), Err)
}

fn question(args: &CaptureArgs) -> anyhow::Result<Question> {
    let filter = args.filter.join(" ");
    live::filter(&filter).map_err(ConfigError::Arguments)?;
    let both = args.inner == args.outer;
    Ok(Question {
        owner: std::process::id().into(),
        inner: both || args.inner,
        outer: both || args.outer,
        drops: args.drops,
        snap_len: args.snaplen,
        filter,
        last: false,
    })
}

fn asked(socket: &Path, question: &Question) -> anyhow::Result<Answer> {
    match ask(socket, "/capture", Some(&serde_json::to_vec(question)?)) {
        Ok(answer) => serde_json::from_slice(&answer).context("the answer is not understood"),
        Err(AskError::Refused { said, .. }) => anyhow::bail!(said),
        Err(error) => Err(error.into()),
    }
}

/// The file, and how much is in it.
struct Out {
    writer: PcapngWriter<BufWriter<File>>,
    written: u64,
    lost: u64,
}

impl Out {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let writer = PcapngWriter::new(BufWriter::new(file), &["overlay device", "underlay"])?;
        Ok(Self { writer, written: 0, lost: 0 })
    }

    fn is_full(&self, count: Option<u64>) -> bool {
        count.is_some_and(|count| self.written >= count)
    }

    fn add(&mut self, answer: &Answer, count: Option<u64>) -> anyhow::Result<()> {
        self.lost += answer.lost;
        for packet in &answer.packets {
            if self.is_full(count) {
                break;
            }
            let bytes = if packet.hex.is_empty() { Vec::new() } else { from_hex(&packet.hex)? };
            let comment = packet.dropped.as_ref().map(|reason| format!("dropped: {reason}"));
            let record = Record {
                interface: if packet.outer { UNDERLAY } else { OVERLAY },
                at: Duration::from_nanos(packet.at),
                bytes: &bytes,
                original_len: packet.original_len,
                direction: packet.direction,
                comment: comment.as_deref().unwrap_or_default(),
            };
            self.writer.packet(&record).context("cannot write the capture")?;
            self.written += 1;
        }
        Ok(())
    }
}
