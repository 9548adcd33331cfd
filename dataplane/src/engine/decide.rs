//! The slow path: what the tables and the connections say about one packet. Pure: nothing is changed here,
//! so that `trace` can ask the same question. `commit` applies what was decided.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::observe::{Observer, Step};
use super::verdict::{DropReason, Egress, Encapsulation, Verdict};
use crate::flow_cache::Dependencies;
use crate::lb::conntrack::{Connection, Conntrack, FlowDirection};
use crate::lb::fragment::{FragmentKey, Piece};
use crate::lb::icmp_error::ErrorTranslation;
use crate::lb::rewrite::Rewrite;
use crate::tables::{ClientAddress, ForwardingTables, NextHop, Service, Slot, Table, WhenEmpty};
use crate::time::Instant;
use crate::wire::flow::{FlowKey, Vip};
use crate::wire::inner::{Fragment, InnerPacket};
use crate::wire::protocol::{L4, Protocol};
use crate::wire::quoted::Quoted;
use crate::wire::tcp::{ACK, RST, SYN};
use crate::wire::vxlan::Vni;

/// Where a packet came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ingress {
    /// From a pod of this node or from the host, through the overlay device.
    Overlay,
    /// From a peer, having passed every admission check.
    Underlay {
        /// Network.
        vni: Vni,
        /// The peer's underlay address.
        source: IpAddr,
    },
}

/// A packet, how it came, and when.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// The packet.
    pub packet: &'a InnerPacket,
    /// What else tells where it belongs.
    pub related: &'a Related,
    /// Where it came in.
    pub ingress: Ingress,
    /// When.
    pub now: Instant,
}

/// Whether a new connection's reply flow may be another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyFlow {
    /// It is looked up.
    LookedUp,
    /// It is taken for nobody's, as nearly every one is: `commit` notices when that is wrong.
    PresumedFree,
}

/// What is to become of a packet, what it rests on, and what `commit` must do.
#[derive(Clone, Debug)]
pub struct Decision<'t> {
    /// The end.
    pub verdict: Verdict<'t>,
    /// The connection it belongs to or opens.
    pub tracked: Tracked,
    /// A connection whose place it takes.
    pub replaces: Option<Arc<Connection>>,
    /// The table entries it rests on.
    pub dependencies: Dependencies,
}

/// How a packet relates to the connection table.
#[derive(Clone, Debug)]
pub enum Tracked {
    /// Not at all.
    No,
    /// Part of a known connection.
    Known(Arc<Connection>, FlowDirection),
    /// Opens one. Where the client is to stay with its backend: by which address that is remembered, and for how
    /// long.
    New(Arc<Connection>, Option<(Vip, Duration)>),
}

impl Decision<'_> {
    /// To drop a packet, whatever the tables say.
    pub(super) fn drop(reason: DropReason) -> Self {
        let (verdict, dependencies) = (Verdict::Drop(reason), Dependencies::default());
        Self { verdict, tracked: Tracked::No, replaces: None, dependencies }
    }

    /// The connection the packet belongs to, and which way it goes.
    pub fn connection(&self) -> Option<(&Arc<Connection>, FlowDirection)> {
        match &self.tracked {
            Tracked::No => None,
            Tracked::Known(connection, direction) => Some((connection, *direction)),
            Tracked::New(connection, _) => Some((connection, FlowDirection::Original)),
        }
    }
}

impl Tracked {
    /// The connection, and which way the packet goes.
    pub fn into_connection(self) -> Option<(Arc<Connection>, FlowDirection)> {
        match self {
            Self::No => None,
            Self::Known(connection, direction) => Some((connection, direction)),
            Self::New(connection, _) => Some((connection, FlowDirection::Original)),
        }
    }
}

/// What else than its own flow tells where a packet belongs.
#[derive(Clone, Debug)]
pub enum Related {
    /// Nothing.
    Nothing,
    /// An ICMP error quotes another packet.
    Quotes(Quoted),
    /// A first fragment: the later ones will have no ports.
    Begins(FragmentKey, Piece),
    /// A later fragment of a packet whose first one belonged to a connection.
    PartOf(Arc<Connection>, FlowDirection),
}

/// Decides one packet.
pub fn decide<'t, O: Observer>(
    tables: &'t ForwardingTables,
    connections: &Conntrack,
    arrived: &Arrived<'_>,
    reply_flow: ReplyFlow,
    observer: &mut O,
) -> Decision<'t> {
    let Arrived { packet, related, ingress, now } = *arrived;
    let mut decider = Decider {
        tables,
        connections,
        packet,
        ingress,
        now,
        reply_flow,
        observer,
        dependencies: Dependencies::default(),
        tracked: Tracked::No,
        replaces: None,
    };
    decider.depend(Table::Local, Slot::LOCAL);
    if let Ingress::Underlay { vni, source } = ingress
        && let Some(slot) = tables.fdb().source_slot(vni, source)
    {
        decider.depend(Table::Source, slot);
    }
    let verdict = match related {
        Related::Quotes(quoted) => match connections.lookup(&quoted.flow.reversed()) {
            Some((connection, direction)) => decider.error_about(&connection, direction),
            None => decider.decide(),
        },
        Related::PartOf(connection, direction) => decider.follow(Arc::clone(connection), *direction),
        Related::Nothing | Related::Begins(..) => decider.decide(),
    };
    let verdict = verdict.unwrap_or_else(Verdict::from);
    if let Verdict::Drop(reason) | Verdict::Reject(reason) = &verdict {
        decider.observer.observe(Step::Dropped(*reason));
    }
    Decision {
        verdict,
        tracked: decider.tracked,
        replaces: decider.replaces,
        dependencies: decider.dependencies,
    }
}

struct Decider<'t, 'a, O> {
    tables: &'t ForwardingTables,
    connections: &'a Conntrack,
    packet: &'a InnerPacket,
    ingress: Ingress,
    now: Instant,
    reply_flow: ReplyFlow,
    observer: &'a mut O,
    dependencies: Dependencies,
    tracked: Tracked,
    replaces: Option<Arc<Connection>>,
}

/// Ends the journey early.
#[derive(Clone, Copy)]
enum Stop {
    Drop(DropReason),
    Reject(DropReason),
}

impl From<Stop> for Verdict<'_> {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Drop(reason) => Self::Drop(reason),
            Stop::Reject(reason) => Self::Reject(reason),
        }
    }
}

type Outcome<'t> = Result<Verdict<'t>, Stop>;

fn dropped<T>(reason: DropReason) -> Result<T, Stop> {
    Err(Stop::Drop(reason))
}

impl<'t, O: Observer> Decider<'t, '_, O> {
    fn decide(&mut self) -> Outcome<'t> {
        if let Some((connection, direction)) = self.known_connection() {
            return self.follow(connection, direction);
        }
        let dst = self.packet.flow.dst;
        let local = self.tables.local();
        if self.ingress == Ingress::Overlay {
            let vip = self.packet.flow.vip();
            if let Some((slot, service)) = self.tables.services().find(vip) {
                return self.balance(slot, service);
            }
            if self.tables.services().is_vip(dst) {
                return self.unserved();
            }
            if dst == local.source_vip(dst) {
                return dropped(DropReason::NoConnection);
            }
            if is_never_a_destination(dst) {
                return dropped(DropReason::DestinationInvalid);
            }
            if local.in_service_cidr(dst) {
                return dropped(DropReason::NoSuchService);
            }
        }
        let next_hop = self.route(dst)?;
        match (self.ingress, next_hop) {
            (Ingress::Overlay, NextHop::Overlay) => dropped(DropReason::LocalPodNotOnHost),
            (Ingress::Overlay, NextHop::Host) if local.in_cluster_cidr(dst) => dropped(DropReason::NoRoute),
            (Ingress::Overlay, NextHop::Host) => dropped(DropReason::OutsideOverlay),
            (Ingress::Overlay, NextHop::Remote { .. }) => self.forward(None, next_hop),
            (Ingress::Underlay { .. }, NextHop::Overlay) => self.forward(None, next_hop),
            (Ingress::Underlay { .. }, NextHop::Host) if local.addresses.contains(&dst) => {
                self.forward(None, next_hop)
            }
            (Ingress::Underlay { .. }, _) => dropped(DropReason::DestinationNotLocal),
        }
    }

    /// An error about a translated packet goes to whoever sent that packet. It neither refreshes nor ends the
    /// connection.
    fn error_about(&mut self, connection: &Connection, direction: FlowDirection) -> Outcome<'t> {
        self.observer.observe(Step::Connection(connection, direction));
        let translation = ErrorTranslation::new(connection, direction, self.packet.flow.src);
        let next_hop = self.route(translation.dst)?;
        let egress = self.egress(next_hop)?;
        Ok(Verdict::ForwardError { translation, egress })
    }

    /// The connection this packet belongs to. One that is over, or whose UDP backend is gone, is left to be
    /// replaced.
    fn known_connection(&mut self) -> Option<(Arc<Connection>, FlowDirection)> {
        if !is_trackable(self.packet) {
            return None;
        }
        let (connection, direction) = self.connections.lookup(&self.packet.flow)?;
        if direction == FlowDirection::Original && self.must_be_reopened(&connection) {
            self.observer.observe(Step::ConnectionOver(&connection));
            self.replaces = Some(connection);
            return None;
        }
        self.observer.observe(Step::Connection(&connection, direction));
        Some((connection, direction))
    }

    /// UDP leaves a backend that no longer serves; an established TCP connection never does (kube-proxy's
    /// conntrack clean-up deletes UDP entries alone).
    fn must_be_reopened(&mut self, connection: &Connection) -> bool {
        let service = self.tables.services().find(connection.vip);
        let serves = service.is_some_and(|(slot, service)| {
            self.depend(Table::Service, slot);
            let is_inside = || self.tables.local().is_inside(connection.original.src);
            service.seen_from(is_inside).serves(connection.backend())
        });
        match self.packet.l4 {
            L4::Tcp { flags } if flags & (SYN | ACK) == SYN => {
                connection.tcp_state().is_over() || !connection.is_replied() && !serves
            }
            L4::Tcp { .. } => false,
            _ => !serves,
        }
    }

    fn follow(&mut self, connection: Arc<Connection>, direction: FlowDirection) -> Outcome<'t> {
        let to = connection.translated(direction);
        self.tracked = Tracked::Known(connection, direction);
        let next_hop = self.route_translated(to.dst)?;
        self.forward(Some(to), next_hop)
    }

    /// The VIP has no service for this packet.
    fn unserved(&self) -> Outcome<'t> {
        match (self.packet.fragment, self.packet.l4) {
            (Fragment::Later, _) => dropped(DropReason::FragmentAlone),
            (Fragment::Whole, L4::EchoRequest) => Ok(Verdict::EchoReply),
            (Fragment::First, L4::EchoRequest) => dropped(DropReason::FragmentAlone),
            (_, L4::Tcp { .. } | L4::Udp) => Err(Stop::Reject(DropReason::UnservedPort)),
            (_, L4::EchoReply | L4::IcmpError | L4::Icmp | L4::Other) => {
                dropped(DropReason::UnsupportedProtocol)
            }
        }
    }

    fn balance(&mut self, slot: Slot, service: &'t Service) -> Outcome<'t> {
        let (packet, tables) = (self.packet, self.tables);
        if packet.fragment == Fragment::Later {
            return dropped(DropReason::FragmentAlone);
        }
        let service = service.seen_from(|| tables.local().is_inside(packet.flow.src));
        self.observer.observe(Step::Service(service));
        self.depend(Table::Service, slot);
        if matches!(packet.l4, L4::Tcp { flags } if flags & RST != 0) {
            return dropped(DropReason::NoConnection);
        }
        if !service.admits(packet.flow.src) {
            return dropped(DropReason::SourceNotAllowed);
        }
        let backend = self.choose(service)?;
        self.open(service, backend)
    }

    fn choose(&mut self, service: &Service) -> Result<SocketAddr, Stop> {
        let flow = &self.packet.flow;
        if service.affinity.is_some()
            && let Some(backend) = self.connections.affinity(flow.src, service.stays_at, self.now)
            && service.backends.binary_search(&backend).is_ok()
        {
            self.observer.observe(Step::Affinity(backend));
            return Ok(backend);
        }
        match service.select(flow.fixed_hash()) {
            Some(backend) => {
                self.observer.observe(Step::Backend(backend));
                Ok(backend)
            }
            None => Err(match service.when_empty {
                WhenEmpty::Reject => Stop::Reject(DropReason::NoEndpoint),
                WhenEmpty::Drop => Stop::Drop(DropReason::NoLocalEndpoint),
            }),
        }
    }

    fn open(&mut self, service: &Service, backend: SocketAddr) -> Outcome<'t> {
        let next_hop = self.route_translated(backend.ip())?;
        let source = self.translated_source(service.client_address, next_hop);
        let reply = self.free_reply(backend, source)?;
        let connection = Arc::new(Connection::new(self.packet.flow, reply, self.now));
        let to = connection.translated(FlowDirection::Original);
        self.tracked = Tracked::New(connection, service.affinity.map(|lasts| (service.stays_at, lasts)));
        self.forward(Some(to), next_hop)
    }

    /// The reply must come back through us. From a pod of this node or from any host it would not, unless it
    /// is addressed to the source VIP or the host knows that it has to; from another node's pod it does if the
    /// source is one of the overlay's.
    fn translated_source(&self, wanted: ClientAddress, next_hop: NextHop) -> IpAddr {
        let src = self.packet.flow.src;
        let local = self.tables.local();
        match (next_hop, wanted) {
            (NextHop::Overlay | NextHop::Host, ClientAddress::Kept) => src,
            (NextHop::Overlay | NextHop::Host, _) => local.source_vip(src),
            (NextHop::Remote { .. }, ClientAddress::WhereRepliesReturn) if local.in_cluster_cidr(src) => src,
            (NextHop::Remote { .. }, _) => local.base(src).unwrap_or(src),
        }
    }

    /// The first reply flow that no other connection has: the client's own source port if it can be.
    fn free_reply(&self, backend: SocketAddr, source: IpAddr) -> Result<FlowKey, Stop> {
        let flow = &self.packet.flow;
        let mut reply = FlowKey {
            src: backend.ip(),
            src_port: backend.port(),
            dst: source,
            dst_port: flow.src_port,
            protocol: flow.protocol,
        };
        if self.reply_flow == ReplyFlow::PresumedFree {
            return Ok(reply);
        }
        let seed = flow.fixed_hash() as u16;
        let replaced = self.replaces.as_ref().map(|connection| connection.reply);
        for i in 0..SOURCE_PORT_TRIES {
            if replaced == Some(reply) || !self.connections.is_taken(&reply) {
                return Ok(reply);
            }
            reply.dst_port = FIRST_SOURCE_PORT | seed.wrapping_add(i.wrapping_mul(7_919));
        }
        dropped(DropReason::NoSourcePort)
    }

    /// The host would give a pod's address that no node has right back to us.
    fn route_translated(&mut self, dst: IpAddr) -> Result<NextHop, Stop> {
        let next_hop = self.route(dst)?;
        let local = self.tables.local();
        let comes_back = next_hop == NextHop::Host && local.in_cluster_cidr(dst);
        if comes_back && !local.addresses.contains(&dst) {
            dropped(DropReason::NoRoute)
        } else {
            Ok(next_hop)
        }
    }

    fn route(&mut self, dst: IpAddr) -> Result<NextHop, Stop> {
        let Some((slot, prefix, next_hop)) = self.tables.routes().find(dst) else {
            return dropped(DropReason::NoRoute);
        };
        self.observer.observe(Step::Route(prefix, next_hop));
        self.depend(Table::Route, slot);
        Ok(next_hop)
    }

    fn forward(&mut self, to: Option<FlowKey>, next_hop: NextHop) -> Outcome<'t> {
        let egress = self.egress(next_hop)?;
        let rewrite = to.map(|to| {
            self.observer.observe(Step::Translated(to));
            Rewrite::new(&self.packet.flow, &to)
        });
        Ok(Verdict::Forward { rewrite, egress })
    }

    fn egress(&mut self, next_hop: NextHop) -> Result<Egress<'t>, Stop> {
        Ok(match next_hop {
            NextHop::Overlay | NextHop::Host => Egress::Overlay,
            NextHop::Remote { vni, gateway } => Egress::Remote(self.encapsulation(vni, gateway)?),
        })
    }

    fn encapsulation(&mut self, vni: Vni, gateway: IpAddr) -> Result<Encapsulation<'t>, Stop> {
        let Some((slot, dst_mac)) = self.tables.neighbors().find(vni, gateway) else {
            return dropped(DropReason::NoNeighbor);
        };
        self.observer.observe(Step::Neighbor(vni, gateway, dst_mac));
        self.depend(Table::Neighbor, slot);
        let Some((slot, vtep)) = self.tables.fdb().find(vni, dst_mac) else {
            return dropped(DropReason::NoFdbEntry);
        };
        self.observer.observe(Step::Fdb(vni, dst_mac, vtep));
        self.depend(Table::Fdb, slot);
        let own = self.tables.local().vteps.get(&vni);
        let src_mac = own.and_then(|own| if gateway.is_ipv4() { own.mac_v4 } else { own.mac_v6 });
        let Some(src_mac) = src_mac else {
            return dropped(DropReason::NoLocalVtep);
        };
        Ok(Encapsulation { vni, dst_mac, src_mac, vtep })
    }

    fn depend(&mut self, table: Table, slot: Slot) {
        self.dependencies.push(self.tables.epochs().dependency(table, slot));
    }
}

/// IANA's dynamic ports: what a translated source port is chosen from when the client's own is taken.
const FIRST_SOURCE_PORT: u16 = 0xc000;

/// Enough that a refusal means thousands of clients on one backend port.
const SOURCE_PORT_TRIES: u16 = 64;

fn is_trackable(packet: &InnerPacket) -> bool {
    packet.fragment != Fragment::Later && matches!(packet.flow.protocol, Protocol::TCP | Protocol::UDP)
}

/// Loopback, link-local, multicast, broadcast and unspecified addresses: a TUN device of a Linux host also
/// carries the host's own multicast (router solicitations, MLD reports).
fn is_never_a_destination(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => {
            addr.is_loopback()
                || addr.is_link_local()
                || addr.is_multicast()
                || addr.is_broadcast()
                || addr.octets()[0] == 0
        }
        IpAddr::V6(addr) => {
            addr.is_loopback() || addr.is_unicast_link_local() || addr.is_multicast() || addr.is_unspecified()
        }
    }
}

/// The same for inner sources (REQUIREMENTS E3).
pub(super) fn is_never_a_source(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => {
            addr.is_loopback() || addr.is_multicast() || addr.is_broadcast() || addr.octets()[0] == 0
        }
        IpAddr::V6(addr) => addr.is_loopback() || addr.is_multicast() || addr.is_unspecified(),
    }
}

/// What is wrong with the inner addresses of a packet from a peer (E3, E4), if anything.
pub(super) fn inner_addresses(tables: &ForwardingTables, flow: &FlowKey) -> Option<DropReason> {
    let local = tables.local();
    let is_ours = |addr: IpAddr| {
        local.addresses.contains(&addr) || local.pod_cidrs.iter().any(|cidr| cidr.contains(&addr))
    };
    if is_never_a_source(flow.src) || is_ours(flow.src) {
        return Some(DropReason::SourceInvalid);
    }
    (is_never_a_destination(flow.dst)).then_some(DropReason::DestinationInvalid)
}
