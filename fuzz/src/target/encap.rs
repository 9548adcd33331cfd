//! Any packet from the overlay device.
//!
//! Input: a byte whose lowest bit makes the checksum partial, where that starts and its field's offset, the segment
//! size (two bytes), then the packet.

use windlass_dataplane::packet::{Checksum, MAX_PACKET_LEN};
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::{addr, flow};
use windlass_tests::packets::{Tcp, partial, ping, tcp, udp};

use crate::input::Input;
use crate::node::with_connections;
use crate::{Seed, captured, check, sample};

/// Everything that leaves is for node b, under right headers, within the MTU; what returns is a whole packet.
///
/// # Panics
/// When something of that does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (is_partial, start, offset) = (input.flag(), input.byte().into(), input.byte().into());
    let segment_len = input.number();
    let packet = input.rest();
    if packet.len() > MAX_PACKET_LEN {
        return;
    }
    let checksum = if is_partial { Checksum::Partial { start, offset } } else { Checksum::Complete };
    let mut node = with_connections();
    // The second time the flow cache may know it.
    for _ in 0..2 {
        let outcome = node.encap_with(packet, checksum, segment_len);
        outcome.datagrams.iter().for_each(check::datagram);
        for returned in &outcome.packets {
            let flow = check::whole(&returned.bytes).flow;
            let answers_a_vip = check::is_to_vip(&flow.reversed());
            assert!(!check::is_to_vip(&flow) || answers_a_vip, "untranslated: {flow}");
        }
    }
}

/// One for each way a packet can go.
pub fn seeds() -> Vec<Seed> {
    let plain = [0; 5];
    let seed = |name, head: [u8; 5], packet: Vec<u8>| (name, [&head[..], &packet].concat());
    let to = |dst| udp(&flow(Protocol::UDP, "10.244.0.14:40000", dst), b"data");
    let syn = |src, dst| tcp(&flow(Protocol::TCP, src, dst), Tcp::Syn, b"");
    let whole = to("10.244.2.15:80");
    let big = tcp(&flow(Protocol::TCP, "10.244.0.14:40000", "10.96.0.21:80"), Tcp::Ack, &[5; 3_000]);
    let mut seeds = vec![
        seed("pod", plain, to("10.244.2.15:80")),
        seed("vip-of-the-peer", plain, syn("10.244.0.14:41000", "10.96.0.21:80")),
        seed("vip-of-this-node", plain, syn("10.244.0.14:41000", "10.96.0.20:80")),
        seed("vip-hairpin", plain, syn("10.244.0.14:41000", "10.96.0.1:443")),
        seed("vip-v6", plain, syn("[fd00:10:244::14]:41000", "[fd00:10:96::21]:80")),
        seed("vip-ping", plain, ping(addr("10.244.0.14"), addr("10.96.0.21"), 3)),
        seed("vip-without-endpoints", plain, syn("10.244.0.14:41000", "10.96.0.30:80")),
        seed("vip-unserved-port", plain, to("10.96.0.21:81")),
        seed("no-such-service", plain, to("10.96.9.9:80")),
        seed("own-pod", plain, to("10.244.0.15:80")),
        seed("outside", plain, to("192.0.2.1:80")),
        seed("too-big", plain, udp(&flow(Protocol::UDP, "10.244.0.14:1", "10.244.2.15:2"), &[0; 1_500])),
        seed("partial-superpacket", [1, 20, 16, 5, 0x82], partial(big).0),
        seed("first-fragment", plain, sample::fragment(&whole, 0, 8, 7)),
        seed("later-fragment", plain, sample::fragment(&whole, 8, 8, 7)),
    ];
    seeds.extend(captured::headed(captured::inner(), &plain));
    seeds
}
