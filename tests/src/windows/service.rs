//! windlass.exe as a service of wine's service manager.

use std::fs::{self, File};

use anyhow::{Context, Result};

use super::{
    BRIDGE_PORT, START_LIMIT, STOP_LIMIT, carry_out, expect_nothing_left, folder, forward, node_folder,
    recorded, start_bridge, wine,
};
use crate::objects::Objects;
use crate::process::{Guarded, wait_until};
use crate::topology::Host;

/// Where a service of wine finds the port of the stand-in for wintun.dll: it has the computer's environment alone.
const ENVIRONMENT: &str = r"HKLM\System\CurrentControlSet\Control\Session Manager\Environment";

/// A namespace with a wine in which windlass.exe can be a service. Dropped, it takes wine's processes along, and shows the
/// log unless all went well.
#[derive(Debug)]
pub struct WindowsService<'a> {
    host: &'a Host,
    root: tempfile::TempDir,
    _bridge: Guarded,
    is_well: bool,
}

impl<'a> WindowsService<'a> {
    /// Makes the namespace's wine, and the file of the service's settings. Nothing is installed.
    ///
    /// # Errors
    /// When wine cannot be set up.
    pub fn prepare(host: &'a Host, objects: &Objects, bridge_program: &str) -> Result<Self> {
        let root = node_folder(objects)?;
        let node = host.spec.name;
        // A relative path begins at the folder of the file. The bridge has made the adapter's interface already.
        let settings =
            format!("manifests: [manifests]\nnode: {node}\nignore: [device-name]\nstate-dir: /state\n");
        fs::write(root.path().join("node.yaml"), settings)?;
        let bridge = start_bridge(host, bridge_program)?;
        let service = Self { host, root, _bridge: bridge, is_well: false };
        let environment = ["reg", "add", ENVIRONMENT, "/v", "WINTUN_STAND_IN_PORT", "/d", BRIDGE_PORT, "/f"];
        service.wine("wine", &environment)?;
        // The service manager reads the environment when it starts.
        service.wine("wineserver", &["-k"])?;
        // Else wine ends between two commands, and starts the service by itself at the next.
        service.wine("wineserver", &["-p"])?;
        Ok(service)
    }

    /// Runs `windlass service` with this subcommand; gives its exit code and what it said.
    ///
    /// # Errors
    /// When it cannot be run, or does not end.
    pub fn ask(&self, subcommand: &str) -> Result<(i32, String)> {
        let program = folder()?.join("windlass.exe");
        let program = program.to_str().context("a path in UTF-8")?;
        let mut arguments = vec![program, "service", subcommand];
        let settings = self.root.path().join("node.yaml");
        if subcommand == "install" {
            arguments.extend(["--config", settings.to_str().context("a path in UTF-8")?]);
        }
        self.wine("wine", &arguments)
    }

    /// The log that the service has written beside its settings.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.root.path().join("node.log")).unwrap_or_default()
    }

    /// Waits until it forwards, and carries out what IP Helper was asked for.
    ///
    /// # Errors
    /// When it does not within two minutes.
    pub fn wait_until_up(&self) -> Result<()> {
        wait_until("the service to forward", START_LIMIT, || {
            Ok(self.log().lines().any(|line| line.contains("forwarding") && line.contains("node=")))
        })?;
        forward(self.host)?;
        recorded(&self.log()).iter().try_for_each(|call| carry_out(&self.host.netns, call))
    }

    /// After it was stopped: carries out what `up` calls have not seen yet, and expects nothing left on the adapter.
    ///
    /// # Errors
    /// When an address or a route is left.
    pub fn expect_undone(&mut self, up: usize) -> Result<()> {
        recorded(&self.log())[up..].iter().try_for_each(|call| carry_out(&self.host.netns, call))?;
        expect_nothing_left(self.host)?;
        self.is_well = true;
        Ok(())
    }

    /// Everything that IP Helper was asked for.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        recorded(&self.log())
    }

    /// wine's own processes inherit the outputs and live on, so these are files and no pipes.
    fn wine(&self, program: &str, arguments: &[&str]) -> Result<(i32, String)> {
        let said = self.root.path().join("said");
        let file = File::create(&said)?;
        let mut command = wine(self.host, self.root.path(), program);
        command.args(arguments).stdout(file.try_clone()?).stderr(file);
        let code = Guarded::spawn(&mut command)?.wait(START_LIMIT + STOP_LIMIT)?;
        Ok((code, fs::read_to_string(said)?))
    }
}

impl Drop for WindowsService<'_> {
    fn drop(&mut self) {
        if !self.is_well {
            eprintln!("--- log of the service on {}:\n{}", self.host.spec.name, self.log());
        }
        if let Err(error) = self.wine("wineserver", &["-k"]) {
            eprintln!("wine goes on: {error:#}");
        }
    }
}
