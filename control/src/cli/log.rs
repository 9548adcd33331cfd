//! Log lines, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use windlass_control::config::{Config, LogFormat};

/// Sends log lines where the configuration says, from now on. What the API client's libraries say of failures is
/// said by us, with the remedy.
pub(crate) fn start(config: &Config) {
    let level = match config.verbose {
        0 => "info,kube_client=off",
        1 => "debug,kube_client=info,hyper_util=info,rustls=info,tower=info",
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
