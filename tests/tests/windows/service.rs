//! windlass.exe as a service of wine's service manager. wine's netsh and its event log say yes and do nothing, and it does
//! not start a service again that has failed.

use anyhow::{Result, ensure};
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::topology::{FAMILIES, Topology};
use windlass_tests::traffic::{PORT, ping};
use windlass_tests::windows::WindowsService;

use crate::{BRIDGE, TCP_BYTES, start, traffic};

#[test]
fn a_service_is_installed_forwards_stops_cleanly_and_is_uninstalled() -> Result<()> {
    let Some(_permit) = start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (near, far) = (near.pod(0)?, far.pod(0)?);
    let mut service = WindowsService::prepare(ours, &Objects::cluster(&topology.specs()), BRIDGE)?;
    let expect = |service: &WindowsService<'_>, subcommand: &str, code: i32, words: &str| -> Result<()> {
        let (ended, said) = service.ask(subcommand)?;
        ensure!(ended == code && said.contains(words), "service {subcommand} ended with {ended}: {said}");
        Ok(())
    };

    expect(&service, "status", 1, "not installed")?;
    expect(&service, "start", 1, "windlass service install")?;
    expect(&service, "install", 0, "node.log")?;
    expect(&service, "install", 1, "creating the service")?;
    expect(&service, "status", 1, "Stopped")?;
    expect(&service, "start", 0, "started")?;
    service.wait_until_up()?;
    expect(&service, "status", 0, "Running")?;
    let up = service.calls().len();
    for family in FAMILIES {
        let _server = traffic().serve(&far.netns, far.ip(family), PORT)?;
        ping(&near.netns, far.ip(family))?;
        traffic().tcp(&near.netns, far.ip(family), PORT, TCP_BYTES)?;
    }

    expect(&service, "stop", 0, "stopped")?;
    expect(&service, "status", 1, "no error")?;
    service.expect_undone(up)?;
    // A service that runs is stopped before it is removed.
    expect(&service, "start", 0, "started")?;
    expect(&service, "uninstall", 0, "uninstalled")?;
    expect(&service, "status", 1, "not installed")
}
