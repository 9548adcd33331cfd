//! A node that flanneld and kube-proxy had is taken over by what the DaemonSet runs first.

use anyhow::{Result, ensure};
use windlass_tests::netns::on_path;
use windlass_tests::node::{Hindrance, WindlassNode, run_refused};
use windlass_tests::objects::Objects;
use windlass_tests::topology::Topology;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../control/deploy/linux/take-over");

/// What flanneld and kube-proxy leave behind when they are stopped.
const LEFT: &str = "set -e
ip link add flannel.4096 type vxlan id 4096 dstport 4789 dev eth0
ip address add 10.244.0.0/32 dev flannel.4096
ip link set flannel.4096 up
ip route add 10.244.2.0/24 via 10.244.2.0 dev flannel.4096 onlink
iptables -N FLANNEL-FWD
iptables -A FORWARD -j FLANNEL-FWD
iptables -t nat -N FLANNEL-POSTRTG
iptables -t nat -A POSTROUTING -j FLANNEL-POSTRTG
iptables -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE
iptables -t nat -N KUBE-SERVICES
iptables -t nat -A PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES
iptables -t nat -A PREROUTING -p tcp --dport 8443 -j REDIRECT --to-ports 443
nft add table ip kube-proxy";

#[test]
fn what_flannel_and_kube_proxy_leave_is_removed_and_the_rest_stays() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    if !on_path("iptables-save") {
        windlass_tests::skipped("`iptables` is not installed");
        return Ok(());
    }
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let objects = Objects::cluster(&topology.specs());
    let shell = |script: &str| {
        let mut command = ours.netns.command("sh");
        windlass_tests::process::run(command.args(["-c", script]))
    };
    shell(LEFT)?;
    let refused = run_refused(ours, &objects, &[], Hindrance::None)?;
    ensure!(refused.code != 0 && refused.said.contains("flannel.4096"), "{}", refused.said);

    // A second time there is nothing to do.
    for _ in 0..2 {
        shell(SCRIPT)?;
        let left = shell("ip link; ip route; iptables-save; nft list tables")?;
        for gone in ["flannel", "FLANNEL", "KUBE", "kube-proxy"] {
            ensure!(!left.contains(gone), "{gone}: {left}");
        }
        ensure!(left.contains("--dport 8443"), "the rule of somebody else has gone: {left}");
    }
    WindlassNode::start(ours, &objects, &[])?.stop()
}
