//! `windlass man`: one man page for the command and all its subcommands.

use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::print::print;

/// Prints the page, in roff: `windlass man | man -l -`.
pub(crate) fn run(mut command: clap::Command) -> anyhow::Result<()> {
    command.build();
    let mut text = Vec::new();
    let subcommands: Vec<_> =
        command.get_subcommands().filter(|sub| sub.get_name() != "help").cloned().collect();
    Man::new(command).render(&mut text)?;
    for subcommand in subcommands {
        let heading = format!("windlass {}", subcommand.get_name()).to_uppercase();
        Roff::new().control("SH", [heading.as_str()]).text([roman("")]).to_writer(&mut text)?;
        let man = Man::new(subcommand);
        man.render_description_section(&mut text)?;
        man.render_synopsis_section(&mut text)?;
        man.render_options_section(&mut text)?;
    }
    print(&String::from_utf8_lossy(&text))
}
