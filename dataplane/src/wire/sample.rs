//! Packets for tests, built and checked with etherparse so that nothing here checks itself.

use etherparse::{
    IpHeaders, IpNumber, Ipv4Header, Ipv4Options, Ipv6Extensions, Ipv6FragmentHeader, Ipv6Header,
    Ipv6RawExtHeader, NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TransportSlice, icmpv4, icmpv6,
};
use proptest::prelude::*;

/// The transport of a sample.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    Tcp { flags: u8, option_words: usize },
    Udp,
    Echo { reply: bool },
    Unreachable,
    Other,
}

/// A packet to build.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) ipv6: bool,
    /// IPv4 option words, or how many IPv6 extension headers of three kinds.
    pub(crate) extras: usize,
    pub(crate) tos: u8,
    pub(crate) dont_fragment: bool,
    pub(crate) ident: u16,
    pub(crate) ports: (u16, u16),
    pub(crate) transport: Transport,
    pub(crate) payload: Vec<u8>,
}

pub(crate) const V4: ([u8; 4], [u8; 4]) = ([10, 244, 1, 7], [10, 244, 2, 9]);
pub(crate) const V6: ([u8; 16], [u8; 16]) = (
    [0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7],
    [0xfd, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9],
);

/// A plain packet with that transport and payload.
pub(crate) fn plain(ipv6: bool, transport: Transport, payload: &[u8]) -> Sample {
    Sample {
        ipv6,
        extras: 0,
        tos: 0,
        dont_fragment: true,
        ident: 0x1234,
        ports: (4000, 80),
        transport,
        payload: payload.to_vec(),
    }
}

/// Packets of every kind.
pub(crate) fn samples(payload_len: std::ops::Range<usize>) -> impl Strategy<Value = Sample> {
    let transport = prop_oneof![
        (any::<u8>(), 0usize..=10).prop_map(|(flags, option_words)| Transport::Tcp { flags, option_words }),
        Just(Transport::Udp),
        any::<bool>().prop_map(|reply| Transport::Echo { reply }),
        Just(Transport::Unreachable),
        Just(Transport::Other),
    ];
    let ip = (any::<bool>(), 0usize..4, any::<u8>(), any::<bool>(), any::<u16>());
    (ip, any::<(u16, u16)>(), transport, prop::collection::vec(any::<u8>(), payload_len)).prop_map(
        |((ipv6, extras, tos, dont_fragment, ident), ports, transport, payload)| Sample {
            ipv6,
            extras,
            tos,
            dont_fragment,
            ident,
            ports,
            transport,
            payload,
        },
    )
}

impl Sample {
    /// Its bytes, with right checksums.
    pub(crate) fn build(&self) -> Vec<u8> {
        let builder = PacketBuilder::ip(self.ip());
        let mut out = Vec::new();
        let (src, dst) = self.ports;
        match self.transport {
            Transport::Tcp { flags, option_words } => {
                builder.tcp_header(self.tcp(flags, option_words)).write(&mut out, &self.payload)
            }
            Transport::Udp => builder.udp(src, dst).write(&mut out, &self.payload),
            Transport::Echo { reply: false } if self.ipv6 => {
                builder.icmpv6_echo_request(src, 1).write(&mut out, &self.payload)
            }
            Transport::Echo { reply: true } if self.ipv6 => {
                builder.icmpv6_echo_reply(src, 1).write(&mut out, &self.payload)
            }
            Transport::Echo { reply: false } => {
                builder.icmpv4_echo_request(src, 1).write(&mut out, &self.payload)
            }
            Transport::Echo { reply: true } => {
                builder.icmpv4_echo_reply(src, 1).write(&mut out, &self.payload)
            }
            Transport::Unreachable if self.ipv6 => {
                let code = icmpv6::DestUnreachableCode::Port;
                builder
                    .icmpv6(etherparse::Icmpv6Type::DestinationUnreachable(code))
                    .write(&mut out, &self.payload)
            }
            Transport::Unreachable => {
                let kind = icmpv4::DestUnreachableHeader::Port;
                builder
                    .icmpv4(etherparse::Icmpv4Type::DestinationUnreachable(kind))
                    .write(&mut out, &self.payload)
            }
            Transport::Other => builder.write(&mut out, IpNumber(132), &self.payload),
        }
        .unwrap();
        out
    }

    fn tcp(&self, flags: u8, option_words: usize) -> TcpHeader {
        let mut header = TcpHeader::new(self.ports.0, self.ports.1, 0xffff_ff00, 1024);
        let has = |bit: u8| flags & bit != 0;
        (header.fin, header.syn, header.rst, header.psh) = (has(1), has(2), has(4), has(8));
        (header.ack, header.urg, header.ece, header.cwr) = (has(16), has(32), has(64), has(128));
        header.acknowledgment_number = 77;
        header.set_options_raw(&vec![1; option_words * 4]).unwrap();
        header
    }

    fn ip(&self) -> IpHeaders {
        if self.ipv6 {
            let header = Ipv6Header {
                traffic_class: self.tos,
                hop_limit: 64,
                source: V6.0,
                destination: V6.1,
                ..Default::default()
            };
            IpHeaders::Ipv6(header, self.extensions())
        } else {
            let mut header = Ipv4Header::new(0, 64, IpNumber::UDP, V4.0, V4.1).unwrap();
            header.dscp = (self.tos >> 2).try_into().unwrap();
            header.ecn = (self.tos & 3).try_into().unwrap();
            header.identification = self.ident;
            header.dont_fragment = self.dont_fragment;
            header.options = Ipv4Options::try_from(&vec![1; self.extras * 4][..]).unwrap();
            IpHeaders::Ipv4(header, Default::default())
        }
    }

    fn extensions(&self) -> Ipv6Extensions {
        let raw = |len| Ipv6RawExtHeader::new_raw(IpNumber::UDP, &vec![0; len]).unwrap();
        let fragment = Ipv6FragmentHeader::new(IpNumber::UDP, 0.try_into().unwrap(), false, 9);
        Ipv6Extensions {
            hop_by_hop_options: (self.extras > 0).then(|| raw(6)),
            destination_options: (self.extras > 1).then(|| raw(14)),
            fragment: (self.extras > 2).then_some(fragment),
            ..Default::default()
        }
    }
}

/// Asserts that etherparse finds every checksum of a packet right.
pub(crate) fn assert_checksums(packet: &[u8]) {
    let sliced = SlicedPacket::from_ip(packet).unwrap();
    let (v4, v6) = match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 header");
            (Some((header.source, header.destination)), None)
        }
        NetSlice::Ipv6(ip) => (None, Some((ip.header().source(), ip.header().destination()))),
        _ => panic!("no IP"),
    };
    match (sliced.transport, v4, v6) {
        (Some(TransportSlice::Tcp(tcp)), Some((src, dst)), _) => {
            assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv4(src, dst).unwrap(), "TCP");
        }
        (Some(TransportSlice::Tcp(tcp)), _, Some((src, dst))) => {
            assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv6(src, dst).unwrap(), "TCP");
        }
        (Some(TransportSlice::Udp(udp)), Some((src, dst)), _) => {
            let expected = udp.to_header().calc_checksum_ipv4_raw(src, dst, udp.payload()).unwrap();
            assert_eq!(udp.checksum(), expected, "UDP");
        }
        (Some(TransportSlice::Udp(udp)), _, Some((src, dst))) => {
            let expected = udp.to_header().calc_checksum_ipv6_raw(src, dst, udp.payload()).unwrap();
            assert_eq!(udp.checksum(), expected, "UDP");
        }
        (Some(TransportSlice::Icmpv4(icmp)), ..) => {
            assert_eq!(icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()), "ICMP");
        }
        (Some(TransportSlice::Icmpv6(icmp)), _, Some((src, dst))) => {
            assert!(icmp.is_checksum_valid(src, dst), "ICMPv6");
        }
        _ => {}
    }
}
