//! Open vSwitch with its userspace datapath (`datapath_type=netdev`) as a node's overlay: `ovsdb-server` and
//! `ovs-vswitchd` in the node's namespace with folders of their own, no system service.
//!
//! `br-phy` has the underlay device and address, and ends the tunnels; `br-int` has the pod and a VXLAN port, and
//! OpenFlow rules that route between them, as the kernel does for its own vxlan device. This datapath takes no
//! superpackets and no partial checksums (ovs-vswitchd.conf.db(5), userspace-tso-enable: not with tunnels), so the
//! pod's device makes neither.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use windlass_tests::netns::{on_path, scratch_folder};
use windlass_tests::pod::Pod;
use windlass_tests::process::{Guarded, run, wait_until};
use windlass_tests::topology::{Family, Host, NodeSpec, VNI, VXLAN_PORT};

use crate::veth;

const PROGRAMS: [&str; 5] = ["ovsdb-server", "ovs-vswitchd", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const START_LIMIT: Duration = Duration::from_secs(10);
/// What the pods take for their gateway's MAC, and packets toward them come from.
const ROUTER_MAC: &str = "02:00:0a:f4:00:01";

/// Why it cannot run here, if it cannot.
#[must_use]
pub fn missing() -> Option<String> {
    let absent = PROGRAMS.iter().find(|program| !on_path(program));
    absent.map(|program| format!("openvswitch-switch is not installed: no `{program}`"))
}

/// A node that runs Open vSwitch; its processes and files go when it is dropped.
#[derive(Debug)]
pub struct OvsNode {
    switch: Guarded,
    _database: Guarded,
    folder: tempfile::TempDir,
}

impl OvsNode {
    /// Takes the pod's port from `cni0` and the underlay address from `eth0`, and joins both by Open vSwitch with
    /// ports of that type; ports that are polled are polled on that core.
    ///
    /// # Errors
    /// When a program refuses a step.
    pub fn start(host: &Host, pod: &Pod, remote: &NodeSpec, port_type: &str, core: usize) -> Result<Self> {
        let folder = scratch_folder("ovs")?;
        let database = start_database(host, folder.path())?;
        let switch = start_switch(host, folder.path())?;
        let node = Self { switch, _database: database, folder };
        node.configure(&format!("set Open_vSwitch . other_config:pmd-cpu-mask={:#x}", 1_u64 << (core % 64)))?;
        node.take_underlay(host, port_type)?;
        node.take_pod(host, pod, remote, port_type)?;
        Ok(node)
    }

    /// Sends `ovs-vswitchd` a signal by its name, as `STOP` and `CONT`.
    ///
    /// # Errors
    /// When it cannot be delivered.
    pub fn signal(&self, name: &str) -> Result<()> {
        self.switch.signal(name)
    }

    fn take_underlay(&self, host: &Host, port_type: &str) -> Result<()> {
        self.configure(&format!(
            "add-br br-phy -- set bridge br-phy datapath_type=netdev fail-mode=standalone \
             -- add-port br-phy eth0 -- set interface eth0 type={port_type}"
        ))?;
        let (netns, address) = (&host.netns, host.spec.underlay(Family::V4));
        netns.ip(&format!("addr del {address}/24 dev eth0"))?;
        netns.ip(&format!("addr add {address}/24 dev br-phy"))?;
        netns.ip("link set br-phy up").map(drop)
    }

    fn take_pod(&self, host: &Host, pod: &Pod, remote: &NodeSpec, port_type: &str) -> Result<()> {
        let port = veth::pod_ports(&host.netns)?.pop().context("a pod's port on cni0")?;
        host.netns.ip(&format!("link set {port} nomaster"))?;
        pod.netns.exec("ethtool -K eth0 tx off")?;
        let gateway = host.spec.gateway(Family::V4);
        pod.netns.ip(&format!("neigh replace {gateway} lladdr {ROUTER_MAC} dev eth0 nud permanent"))?;
        let (tunnel, vtep) = ("vxlan0", remote.underlay(Family::V4));
        self.configure(&format!(
            "add-br br-int -- set bridge br-int datapath_type=netdev fail-mode=secure \
             -- add-port br-int {port} -- set interface {port} type={port_type} \
             -- add-port br-int {tunnel} -- set interface {tunnel} type=vxlan \
                options:remote_ip={vtep} options:key={VNI} options:dst_port={VXLAN_PORT}"
        ))?;
        let mac = pod.netns.exec("cat /sys/class/net/eth0/address")?;
        for rule in [
            format!("ip,nw_dst={},actions=dec_ttl,output:{tunnel}", remote.pod_cidr(Family::V4)),
            format!(
                "ip,nw_dst={},actions=mod_dl_src:{ROUTER_MAC},mod_dl_dst:{},dec_ttl,output:{port}",
                pod.ip(Family::V4),
                mac.trim()
            ),
        ] {
            let bridge = format!("unix:{}", self.path("br-int.mgmt").display());
            run(Command::new("ovs-ofctl").args(["add-flow", &bridge, &rule]))?;
        }
        Ok(())
    }

    fn configure(&self, words: &str) -> Result<()> {
        configure(self.folder.path(), words)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }
}

fn start_database(host: &Host, folder: &Path) -> Result<Guarded> {
    let file = folder.join("conf.db");
    run(Command::new("ovsdb-tool").arg("create").arg(&file).arg(SCHEMA))?;
    let socket = folder.join("db.sock");
    let mut command = daemon(host, folder, "ovsdb-server");
    command.arg(file).arg(format!("--remote=punix:{}", socket.display()));
    let database = Guarded::spawn(&mut command)?;
    wait_until("ovsdb-server", START_LIMIT, || Ok(socket.exists()))?;
    configure(folder, "--no-wait init")?;
    Ok(database)
}

fn start_switch(host: &Host, folder: &Path) -> Result<Guarded> {
    let mut command = daemon(host, folder, "ovs-vswitchd");
    Guarded::spawn(command.arg(database_of(folder)))
}

/// A program of Open vSwitch in the node's namespace, which keeps all its files in that folder.
fn daemon(host: &Host, folder: &Path, program: &str) -> Command {
    let mut command = host.netns.command(program);
    for variable in ["OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, folder);
    }
    command.arg(format!("--unixctl={}", folder.join(format!("{program}.ctl")).display()));
    command.arg(format!("--log-file={}", folder.join(format!("{program}.log")).display()));
    command.args(["-vconsole:off"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Waits, at most 10 s, until the switch has carried it out.
fn configure(folder: &Path, words: &str) -> Result<()> {
    let mut command = Command::new("ovs-vsctl");
    command.arg(format!("--db={}", database_of(folder))).arg("--timeout=10").args(words.split_whitespace());
    run(&mut command).map(drop)
}

fn database_of(folder: &Path) -> String {
    format!("unix:{}", folder.join("db.sock").display())
}
