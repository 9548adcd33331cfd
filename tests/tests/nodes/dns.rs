//! Cluster DNS: a real server in a pod behind the VIP 10.96.0.10.

use anyhow::Result;
use windlass_tests::dns::{self, KUBE_DNS, NAME, serve_dns};
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::topology::{FAMILIES, Family, Topology};
use windlass_tests::traffic::{Transport, ping};

use crate::services::WEB;
use crate::traffic;

#[test]
fn dns_is_answered_through_its_vip_by_udp_and_tcp() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    if let Some(why) = dns::missing_ability() {
        windlass_tests::skipped(&why);
        return Ok(());
    }
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 2)?, Pods::with_pods(stock, 1)?);
    let (client, near, far) = (near.pod(0)?, near.pod(1)?, far.pod(0)?);
    let backends: Vec<_> = FAMILIES
        .into_iter()
        .flat_map(|family| [(near.ip(family), ours.spec.name), (far.ip(family), stock.spec.name)])
        .collect();
    let objects = Objects::cluster(&topology.specs()).with_service(&KUBE_DNS, &backends);
    let answer = (NAME, WEB.vip);
    let _servers = [serve_dns(near, &traffic, answer)?, serve_dns(far, &traffic, answer)?];
    let node = WindlassNode::start(ours, &objects, &[])?;
    let answer_by = |transport| {
        FAMILIES.into_iter().try_for_each(|family| {
            for from in [&client.netns, &ours.netns] {
                ping(from, far.ip(family))?;
                for _ in 0..8 {
                    let answer = traffic.dns(from, KUBE_DNS.vip(family), NAME, transport)?;
                    assert_eq!(answer, WEB.vip(Family::V4));
                }
            }
            Ok::<_, anyhow::Error>(())
        })
    };
    answer_by(Transport::Udp)?;
    answer_by(Transport::Tcp)?;
    node.stop()
}
