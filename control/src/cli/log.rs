//! Log lines, on standard error or in a file.

use std::io::{self, IsTerminal};
use std::sync::Mutex;

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use windlass_control::config::{Config, LogFormat};
use windlass_control::log_file::LogFile;

/// Sends log lines where the configuration says, from now on. What the API client's libraries say of failures is
/// said by us, with the remedy.
pub(crate) fn start(config: &Config) -> anyhow::Result<()> {
    let level = match config.verbose {
        0 => "info,kube_client=off",
        1 => "debug,kube_client=info,hyper_util=info,rustls=info,tower=info",
        _ => "trace",
    };
    let writer = match &config.log_file {
        None => BoxMakeWriter::new(io::stderr),
        Some(path) => {
            let file = LogFile::open(path)
                .with_context(|| format!("cannot open the log file {}", path.display()))?;
            BoxMakeWriter::new(Mutex::new(file))
        }
    };
    let is_terminal = config.log_file.is_none() && io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(level))
        .with_writer(writer)
        .with_target(config.verbose > 0);
    match config.log_format {
        LogFormat::Json => lines.json().flatten_event(true).init(),
        LogFormat::Text => lines.with_ansi(is_terminal).init(),
    }
    Ok(())
}
