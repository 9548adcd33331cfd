//! `windlass service`: Windlass as a service of Windows.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use windlass_control::config::{Config, ConfigError, Settings};
use windlass_control::service::windows::{self, EventLog, System};
use windlass_control::service::{self, Plan};
use windlass_control::system;

/// What is asked of the service.
#[derive(Debug, Args)]
pub(super) struct ServiceArgs {
    #[command(subcommand)]
    command: ServiceCommand,
}

#[derive(Debug, Subcommand)]
enum ServiceCommand {
    /// Add the service, its firewall rule and its source in the event log; it starts with Windows from then on
    Install(ConfigFile),
    /// Stop the service and remove all that `install` has added
    Uninstall,
    /// Start the service
    Start,
    /// Stop the service, and wait until it has removed its adapter and routes
    Stop,
    /// Tell its state; exit code 0 when it runs, 1 when not
    Status,
    /// What the service manager calls
    #[command(hide = true)]
    Run(ConfigFile),
}

#[derive(Args, Clone, Debug)]
struct ConfigFile {
    /// YAML file with the settings of `windlass run`; relative paths in it begin at its folder
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Does what is asked.
pub(super) fn run(arguments: ServiceArgs) -> anyhow::Result<ExitCode> {
    match arguments.command {
        ServiceCommand::Install(file) => install(&file.config)?,
        ServiceCommand::Uninstall => uninstall()?,
        ServiceCommand::Start => {
            windows::start().context("the service windlass does not start; its log file says why")?;
            println!("started; `windlass show device` answers once it forwards");
        }
        ServiceCommand::Stop => match windows::stop().context("the service windlass does not stop")? {
            true => println!("stopped"),
            false => println!("it did not run"),
        },
        ServiceCommand::Status => return status(),
        ServiceCommand::Run(file) => windows::run(Box::new(move |events| body(&file.config, events)))
            .context(
                "this is for the service manager of Windows; use `windlass service start`, or `windlass run`",
            )?,
    }
    Ok(ExitCode::SUCCESS)
}

fn install(file: &Path) -> anyhow::Result<()> {
    let file = std::path::absolute(file).with_context(|| format!("finding {}", file.display()))?;
    let config = config(&file)?;
    let program = env::current_exe().context("finding windlass.exe")?;
    let plan = Plan { program, config_file: file, port: config.underlay_port };
    service::install(&mut System, &plan)?;
    println!(
        "installed; it starts with Windows, runs {} with {} and logs to {}\nstart it now with: windlass service start",
        plan.program.display(),
        plan.config_file.display(),
        log_file(&config, &plan.config_file).display()
    );
    Ok(())
}

fn uninstall() -> anyhow::Result<()> {
    match windows::stop() {
        // It may be half gone: what is left is removed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        outcome => drop(outcome.context("the service windlass does not stop, and stays")?),
    }
    service::uninstall(&mut System)?;
    println!("uninstalled; settings, logs and state stay where they are");
    Ok(())
}

fn status() -> anyhow::Result<ExitCode> {
    let Some(status) = windows::status().context("asking the service manager")? else {
        println!("not installed");
        return Ok(ExitCode::FAILURE);
    };
    for line in &status.lines {
        println!("{line}");
    }
    Ok(if status.is_running { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the node until the service is stopped. What goes wrong before there is a log file is in the event log alone.
fn body(file: &Path, events: &EventLog) -> u8 {
    let outcome = config(file).map_err(anyhow::Error::from).and_then(|mut config| {
        config.log_file = Some(log_file(&config, file));
        super::log::start(&config)?;
        events.information(&format!("started with {}", file.display()));
        super::run::run(&config)
    });
    match outcome {
        Ok(()) => {
            events.information("stopped");
            0
        }
        Err(error) => {
            tracing::error!("{}", super::told(&error));
            events.error(&super::told(&error));
            super::exit_code(&error)
        }
    }
}

/// The settings of the file alone: a service has no command line and no user's environment. Paths in it begin at its
/// folder, which the process enters.
fn config(file: &Path) -> Result<Config, ConfigError> {
    if let Some(folder) = file.parent() {
        env::set_current_dir(folder).map_err(|error| ConfigError::File {
            file: file.to_owned(),
            reason: format!("entering its folder: {error}"),
        })?;
    }
    Config::new(&Settings::from_file(file)?, system::node_name)
}

/// Unless configured, beside the settings.
fn log_file(config: &Config, file: &Path) -> PathBuf {
    config.log_file.clone().unwrap_or_else(|| file.with_extension("log"))
}
