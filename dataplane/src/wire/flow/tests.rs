use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

#[test]
fn a_flow_is_written_with_its_protocol_and_both_ends() {
    assert_eq!(flow4(0x0af4_0107, 0x0af4_0209, 4000).to_string(), "tcp 10.244.1.7:4000 > 10.244.2.9:80");
    let flow = flow6(0xfd00 << 112 | 7, 0xfd00 << 112 | 9, 4000);
    assert_eq!(flow.reversed().to_string(), "udp [fd00::9]:53 > [fd00::7]:4000");
}

fn flow4(src: u32, dst: u32, src_port: u16) -> FlowKey {
    let (src, dst) = (Ipv4Addr::from(src).into(), Ipv4Addr::from(dst).into());
    FlowKey { src, dst, protocol: Protocol::TCP, src_port, dst_port: 80 }
}

fn flow6(src: u128, dst: u128, src_port: u16) -> FlowKey {
    let (src, dst) = (Ipv6Addr::from(src).into(), Ipv6Addr::from(dst).into());
    FlowKey { src, dst, protocol: Protocol::UDP, src_port, dst_port: 53 }
}

#[test]
fn ten_thousand_flows_spread_over_16_buckets_within_30_percent() {
    // A5, for clients that differ in the port, in the host, and in both ends alike.
    type Flows = fn(u32) -> FlowKey;
    let families: [Flows; 5] = [
        |n| flow4(0x0a00_0001, 0x0a00_0002, 20_000 + n as u16),
        |n| flow4(0x0a00_0000 + n, 0x0a60_0001, 40_000),
        |n| flow4(0x0a00_0000 + n, 0x0b00_0000 + n, 80),
        |n| flow6(0xfd00 << 112 | 7, 0xfd00 << 112 | 9, n as u16),
        |n| flow6(0xfd00 << 112 | u128::from(n), 0xfd01 << 112 | u128::from(n), 4000),
    ];
    for (family, flow) in families.iter().enumerate() {
        for hash in [|key: FlowKey| key.symmetric_hash(), |key: FlowKey| key.fixed_hash() as u32] {
            for shift in [0, 28] {
                let mut buckets = [0; 16];
                for n in 0..10_000 {
                    buckets[(hash(flow(n)) >> shift & 15) as usize] += 1;
                }
                let spread = buckets.iter().all(|count| (438..=812).contains(count));
                assert!(spread, "family {family}, bits from {shift}: {buckets:?}");
            }
        }
    }
}

#[test]
fn both_directions_share_the_symmetric_hash_only() {
    for flow in [flow4(1, 2, 3), flow6(1, 2, 3), flow4(7, 7, 80)] {
        assert_eq!(flow.symmetric_hash(), flow.reversed().symmetric_hash());
    }
    for flow in [flow4(1, 2, 3), flow6(1, 2, 3)] {
        assert_ne!(flow.fixed_hash(), flow.reversed().fixed_hash());
    }
}

/// Nodes of different releases must choose alike: if this fails, the hashes need a new version.
#[test]
fn version_1_of_the_hashes_is_fixed() {
    let (v4, v6) = (flow4(0x0a00_0001, 0x0a00_0002, 4000), flow6(0xfd00 << 112 | 1, 0xfd00 << 112 | 2, 4000));
    assert_eq!((v4.symmetric_hash(), v4.fixed_hash()), (0xe791_6f10, 0xef00_85da_e952_e9d5));
    assert_eq!((v6.symmetric_hash(), v6.fixed_hash()), (0x4377_c154, 0x1bb4_3c42_a10c_1228));
}
