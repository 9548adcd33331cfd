//! The harness itself: what the kernel does between two stock nodes must work before Windlass is judged by it.

use anyhow::Result;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::topology::{FAMILIES, Topology};
use windlass_tests::traffic::{PORT, ping_sizes};

use crate::{TCP_BYTES, traffic};

#[test]
fn harness_kernel_peers_talk() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (first, second) = (topology.host(0)?, topology.host(1)?);
    let _peers = [KernelPeer::new(first, &topology.specs())?, KernelPeer::new(second, &topology.specs())?];
    let (near, far) = (Pods::with_pods(first, 1)?, Pods::with_pods(second, 1)?);
    let (near, far) = (near.pod(0)?, far.pod(0)?);
    for family in FAMILIES {
        let _server = traffic.serve(&far.netns, far.ip(family), PORT)?;
        ping_sizes(&near.netns, far.ip(family))?;
        traffic.exchange(&near.netns, far.ip(family), PORT, TCP_BYTES)?;
        traffic.exchange(&first.netns, far.ip(family), PORT, TCP_BYTES)?;
        let _on_node = traffic.serve(&second.netns, second.spec.pod_base(family), PORT)?;
        traffic.exchange(&near.netns, second.spec.pod_base(family), PORT, TCP_BYTES)?;
        ping_sizes(&near.netns, second.spec.underlay(family))?;
    }
    Ok(())
}
