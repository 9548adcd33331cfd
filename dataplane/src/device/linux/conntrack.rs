//! The kernel's own connections to UDP node ports: deleted where they contradict the rules.
//!
//! The kernel translates a flow as it did when it first saw it. A client that goes on sending from one port would
//! never reach a node port that is new, nor ever leave one that is gone. TCP ends by itself.
//!
//! Read first: linux/netfilter/nfnetlink_conntrack.h.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use libc::{NLM_F_ACK, NLM_F_DUMP};

use super::netlink::{Netlink, Request, address, attribute};
use crate::wire::flow::{Protocol, Vip};

/// Forgets UDP connections to `node_ports` that do not lead to one of `stand_ins`, and those that lead there
/// from anything else (F6). Valid ones stay (F7).
pub(super) fn forget_stale(node_ports: &BTreeSet<Vip>, stand_ins: &[IpAddr]) -> io::Result<()> {
    let netlink = Netlink::open_protocol(libc::NETLINK_NETFILTER)?;
    let mut stale = Vec::new();
    let all = Request::new(message(GET), NLM_F_DUMP, &[libc::AF_UNSPEC as u8, 0, 0, 0]);
    netlink.dump(all, |_, body| {
        if let Some(flow) = Flow::parse(body)
            && flow.asked.protocol == Protocol::UDP
            && node_ports.contains(&flow.asked) != stand_ins.contains(&flow.answers_from)
        {
            stale.push((body[0], flow.tuple.to_vec()));
        }
    })?;
    for (family, tuple) in stale {
        let request = Request::new(message(DELETE), NLM_F_ACK, &[family, 0, 0, 0]);
        match netlink.execute(request.attribute(TUPLE_ORIGINAL | NESTED, &tuple)) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// A connection of the kernel's.
struct Flow<'a> {
    /// Its original tuple, by which it is deleted.
    tuple: &'a [u8],
    /// What the client sends to.
    asked: Vip,
    /// Where its packets go.
    answers_from: IpAddr,
}

impl<'a> Flow<'a> {
    fn parse(body: &'a [u8]) -> Option<Self> {
        let attributes = body.get(FAMILY_HEADER_LEN..)?;
        let tuple = attribute(attributes, TUPLE_ORIGINAL)?;
        let (protocol, ip) = (attribute(tuple, TUPLE_PROTO)?, attribute(tuple, TUPLE_IP)?);
        let [high, low] = attribute(protocol, PROTO_DST_PORT)?.try_into().ok()?;
        let asked = Vip {
            addr: one_of(ip, [IP_V4_DST, IP_V6_DST])?,
            port: u16::from_be_bytes([high, low]),
            protocol: Protocol(*attribute(protocol, PROTO_NUMBER)?.first()?),
        };
        let reply = attribute(attribute(attributes, TUPLE_REPLY)?, TUPLE_IP)?;
        Some(Self { tuple, asked, answers_from: one_of(reply, [IP_V4_SRC, IP_V6_SRC])? })
    }
}

fn one_of(attributes: &[u8], kinds: [u16; 2]) -> Option<IpAddr> {
    kinds.into_iter().find_map(|kind| attribute(attributes, kind)).and_then(address)
}

fn message(kind: u16) -> u16 {
    CTNETLINK << 8 | kind
}

const CTNETLINK: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;
const FAMILY_HEADER_LEN: usize = 4;
const NESTED: u16 = 0x8000;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const IP_V4_SRC: u16 = 1;
const IP_V4_DST: u16 = 2;
const IP_V6_SRC: u16 = 3;
const IP_V6_DST: u16 = 4;
const PROTO_NUMBER: u16 = 1;
const PROTO_DST_PORT: u16 = 3;
