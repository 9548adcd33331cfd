//! Log lines, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use windlass_control::config::{Config, LogFormat};

/// Sends log lines where the configuration says, from now on.
pub(crate) fn start(config: &Config) {
    let level = match config.verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(level))
        .with_writer(std::io::stderr)
        .with_target(config.verbose > 0);
    match config.log_format {
        LogFormat::Json => lines.json().flatten_event(true).init(),
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
    }
}
