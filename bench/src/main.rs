//! `windlass-bench`: `compare` measures side by side, `scale` large clusters; `serve` and `measure` are the traffic that it sends.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod command;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    command::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("windlass-bench: whole nodes are measured in network namespaces, which need Linux");
    ExitCode::FAILURE
}
