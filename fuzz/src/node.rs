//! Nodes of the worked example, new for every input: what one input does must not depend on those before it.

use windlass_dataplane::engine::Settings;
use windlass_dataplane::tables::TableSet;
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::{EngineNode, flow, worked_example};
use windlass_tests::packets::{Tcp, tcp, udp};

/// Underlay address of node a.
pub const UNDERLAY_A: &str = "192.168.1.40";
/// Underlay address of node b.
pub const UNDERLAY_B: &str = "192.168.1.51";

thread_local! {
    static TABLES: [TableSet; 2] = ["a", "b"].map(worked_example);
}

/// Node a.
pub fn a() -> EngineNode {
    of(0)
}

/// Node b.
pub fn b() -> EngineNode {
    of(1)
}

/// Node a with connections to VIPs open: of a pod to backends on node b, over TCP and UDP, IPv4 and IPv6.
pub fn with_connections() -> EngineNode {
    let mut node = a();
    for (client, vip) in
        [("10.244.0.14:40000", "10.96.0.21:80"), ("[fd00:10:244::14]:40000", "[fd00:10:96::21]:80")]
    {
        node.encap(&tcp(&flow(Protocol::TCP, client, vip), Tcp::Syn, b""));
    }
    node.encap(&udp(&flow(Protocol::UDP, "10.244.0.14:40000", "10.96.0.21:80"), b"query"));
    node
}

/// Node a's tables.
pub fn tables() -> TableSet {
    TABLES.with(|[a, _]| a.clone())
}

fn of(index: usize) -> EngineNode {
    // A cache of the usual size costs more to make than all the packets of an input.
    let settings = Settings { flow_cache_entries: 64, ..Settings::default() };
    EngineNode::new(TABLES.with(|tables| tables[index].clone()), settings)
}
