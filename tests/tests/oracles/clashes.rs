//! What the kernel does where a flow straight to a backend and a flow through its VIP would look alike to the backend:
//! one client port, one backend, and so one reply for both. Whichever comes second leaves with another source port
//! (Linux, net/netfilter/nf_nat_core.c: `nf_nat_used_tuple` in `get_unique_tuple`, for null bindings too), so that every
//! reply is translated back as its own flow wants it.

use anyhow::{Context, Result};
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::{flow, socket};
use windlass_tests::packets::{opened, udp, verified_flow};

use crate::kernel::{Case, KernelNode, Side, can_run, case, from_peer, udp_of};

const VIP: &str = "10.96.0.21:80";
const BACKEND: &str = "10.244.2.15:8080";

/// The inner flow with which one packet of the client comes out to the peer.
fn sent(node: &KernelNode, client: &str, to: &str) -> Result<FlowKey> {
    let came = came(node, case("sent", Side::Pod, udp_of(client, to)))?;
    Ok(verified_flow(&opened(&came).inner))
}

/// The flow with which the peer's answer to `sent` reaches the client.
fn answered(node: &KernelNode, sent: &FlowKey) -> Result<FlowKey> {
    let answer = udp(&sent.reversed(), b"answer");
    Ok(verified_flow(&came(node, case("answered", from_peer(0), answer))?))
}

fn came(node: &KernelNode, case: Case) -> Result<Vec<u8>> {
    let name = case.name;
    let [came] = &mut node.runs(&[case])?[..] else { anyhow::bail!("one packet, one answer") };
    Ok(came.take().with_context(|| format!("nothing came out: {name}"))?.bytes)
}

#[test]
fn d3_the_kernel_gives_the_second_of_two_flows_with_one_reply_another_port() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    if !can_run() {
        return Ok(());
    }
    let node = KernelNode::new()?;
    for (client, first, second) in [("10.244.0.14:41000", VIP, BACKEND), ("10.244.0.14:42000", BACKEND, VIP)]
    {
        let flows = [first, second].map(|to| flow(Protocol::UDP, client, to));
        let through = [sent(&node, client, first)?, sent(&node, client, second)?];
        assert_eq!(through.map(|flow| flow.dst), [socket(BACKEND).ip(); 2]);
        assert_eq!(through[0].src_port, flows[0].src_port, "the first keeps its port");
        assert_ne!(through[1].src_port, flows[1].src_port, "{second} after {first}");
        for (flow, through) in flows.iter().zip(&through) {
            assert_eq!(answered(&node, through)?, flow.reversed(), "{flow}, which left as {through}");
        }
    }
    Ok(())
}
