//! IP fragments of a datagram to a VIP, in any order, overlapping, repeated or missing (D8).
//!
//! Input: family, the datagram's length in units of 16 bytes, then for each fragment its offset and its length in
//! units of 8 bytes.

use std::time::Duration;

use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::{EngineNode, Outcome, flow};
use windlass_tests::packets::{Tcp, tcp, udp};

use crate::input::Input;
use crate::node::a;
use crate::sample::{fragment, payload};
use crate::{Seed, check};

const MAX_FRAGMENTS: usize = 16;
const IDENT: u16 = 0x4711;

/// No fragment waits longer for its first one.
const LONG_ENOUGH: Duration = Duration::from_secs(2);

/// Once the first fragment has come, each one leaves for the same backend, changed only in its addresses; none leaves
/// before. What does not leave is held for a while, and dropped with a reason.
///
/// # Panics
/// When it is not so.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let ipv6 = input.flag();
    let body = payload(usize::from(input.byte()) * 16);
    let [whole, expected] = datagrams(ipv6, &body);
    let header_len = if ipv6 { 40 } else { 20 };
    let l4_header_len = if ipv6 { 20 } else { 8 };
    let mut node = a();
    let (mut begun, mut offered, mut gone) = (false, Vec::new(), 0);
    for _ in 0..MAX_FRAGMENTS {
        if input.is_empty() {
            break;
        }
        let (offset, len) = (usize::from(input.byte()) * 8, usize::from(input.byte() % 160) * 8);
        if offset >= whole.len() - header_len || offset == 0 && len >= whole.len() - header_len {
            continue;
        }
        let outcome = node.encap(&fragment(&whole, offset, len, IDENT));
        begun |= offset == 0 && len >= l4_header_len;
        offered.push(fragment(&expected, offset, len, IDENT));
        for sent in &outcome.datagrams {
            check::datagram(sent);
            let inner = &sent.payload[check::HEADERS_LEN..];
            assert!(begun && offered.iter().any(|piece| piece == inner), "not one of them: {inner:02x?}");
        }
        gone += outcome.datagrams.len() as u64 + dropped(&outcome);
        assert_eq!(outcome.packets, []);
    }
    let alone = |node: &EngineNode| node.counters().dropped(DropReason::FragmentAlone);
    let before = alone(&node);
    node.now = node.now + LONG_ENOUGH;
    node.expire();
    gone += alone(&node) - before;
    assert_eq!(
        (gone, node.counters().totals().difference()),
        (offered.len() as u64, 0),
        "none is held for ever"
    );
}

/// How many were dropped, for reasons that may be.
fn dropped(outcome: &Outcome) -> u64 {
    let may_be =
        [DropReason::FragmentAlone, DropReason::FragmentOverlap, DropReason::Malformed, DropReason::TooBig];
    assert!(outcome.drops.iter().all(|(reason, _)| may_be.contains(reason)), "{:?}", outcome.drops);
    outcome.drops.iter().map(|(_, count)| count).sum()
}

/// The packet as the client sends it and as the backend is to see it; over IPv6 the service is a TCP one.
fn datagrams(ipv6: bool, body: &[u8]) -> [Vec<u8>; 2] {
    let made = |flow: &FlowKey| if ipv6 { tcp(flow, Tcp::Ack, body) } else { udp(flow, body) };
    if ipv6 {
        let client = "[fd00:10:244::14]:40000";
        ["[fd00:10:96::21]:80", "[fd00:10:244:2::15]:8080"].map(|to| made(&flow(Protocol::TCP, client, to)))
    } else {
        let client = "10.244.0.14:40000";
        ["10.96.0.21:80", "10.244.2.15:8080"].map(|to| made(&flow(Protocol::UDP, client, to)))
    }
}

/// In order, out of order, overlapping, repeated.
pub fn seeds() -> Vec<Seed> {
    vec![
        ("v4-in-order", vec![0, 100, 0, 100, 100, 100, 200, 100]),
        ("v4-last-first", vec![0, 100, 100, 150, 0, 100, 100, 150]),
        ("v4-overlap", vec![0, 20, 0, 20, 10, 20, 0, 20]),
        ("v4-tiny", vec![0, 20, 0, 1, 1, 1, 2, 1, 3, 1]),
        ("v6-in-order", vec![1, 100, 0, 100, 100, 100, 200, 100]),
        ("v6-first-missing", vec![1, 100, 100, 100, 200, 100]),
        ("v6-first-without-all-of-tcp", vec![1, 20, 0, 2, 2, 10, 0, 3]),
    ]
}
