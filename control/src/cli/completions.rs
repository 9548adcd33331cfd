//! `windlass completions`: a shell's completions from the command line's own definition.

use clap_complete::Shell;

use super::print::print;

/// Prints the completions of `command` for `shell`.
pub(crate) fn run(mut command: clap::Command, shell: Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "windlass", &mut text);
    print(&String::from_utf8_lossy(&text))
}
