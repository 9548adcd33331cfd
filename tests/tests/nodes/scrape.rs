//! E11, G14: whoever scrapes slowly, holds connections open or sends garbage disturbs nobody's packets.

use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::process::{run, wait_until};
use windlass_tests::scrapers::{bash, hostile};
use windlass_tests::topology::{Family, Topology};
use windlass_tests::traffic::{PORT, ping};

use crate::services::WEB;
use crate::{TCP_BYTES, traffic};

#[test]
fn e11_g14_slow_and_hostile_scrapers_disturb_no_packet() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (pod, far, family) = (near.pod(0)?, far.pod(0)?, Family::V4);
    let objects =
        Objects::cluster(&topology.specs()).with_service(&WEB, &[(far.ip(family), stock.spec.name)]);
    let node = WindlassNode::start(ours, &objects, &[])?;
    let _server = traffic().serve(&far.netns, far.ip(family), PORT)?;
    ping(&pod.netns, far.ip(family))?;

    let hostile = hostile(&ours.netns)?;
    thread::scope(|scope| -> Result<()> {
        let pings =
            scope.spawn(|| pod.netns.exec(&format!("ping -q -n -i 0.02 -c 150 -W 2 {}", far.ip(family))));
        traffic().tcp(&pod.netns, WEB.vip(family), WEB.port, TCP_BYTES)?;
        let said = pings.join().map_err(|_| anyhow!("the ping thread panicked"))??;
        ensure!(said.contains(" 0% packet loss"), "{said}");
        Ok(())
    })?;
    drop(hostile);

    // Connections are counted at most every 10 s, and a hostile scrape may have asked for a count just before.
    let mut metrics = String::new();
    let mut missing = None;
    wait_until("every figure to be served", Duration::from_secs(30), || {
        metrics = run(&mut bash(&ours.netns, ASK)).unwrap_or_default();
        missing = FIGURES.iter().find(|line| !metrics.contains(**line));
        Ok(missing.is_none())
    })
    .map_err(|e| anyhow!("{e}; no {missing:?} in\n{metrics}"))?;
    node.stop()
}

const FIGURES: [&str; 7] = [
    "windlass_unaccounted_packets 0",
    "windlass_table_entries{table=\"services\"} 4",
    "windlass_connections{protocol=\"tcp\",state=\"closed\"} 1",
    "windlass_reloads_total{result=\"failure\"} 0",
    "windlass_reload_duration_seconds 0",
    "# TYPE windlass_reload_duration_seconds gauge",
    "# TYPE windlass_drops_total counter",
];

const ASK: &str = r"exec 3<>$AT; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; timeout 2 cat <&3";
