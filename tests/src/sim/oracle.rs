//! The judge of one node: compares every packet that goes in with what comes out, by the objects that the node was
//! told of and by the packets before. It knows nothing of tables, caches or connections.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use etherparse::{SlicedPacket, TransportSlice};
use windlass_control::node::NodeSettings;
use windlass_dataplane::device::memory::MemoryDatagram;
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::FlowKey;

use super::invariant::{Invariant, Violation};
use super::process::{Input, Outputs};
use super::tracked::Tracked;
use super::view::View;
use crate::packets::verified_flow;

/// VXLAN and Ethernet headers.
const HEADERS_LEN: usize = 22;

/// Longer than any connection is kept.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(8_000);

/// What was seen of a node's flows.
#[derive(Debug, Default)]
pub struct Oracle {
    /// By the client's flow.
    tracked: BTreeMap<FlowKey, Tracked>,
    /// The client's flow by that of the backend's replies.
    replies: BTreeMap<FlowKey, FlowKey>,
    /// Flows that may have been opened by a packet that then found no route.
    unsure: BTreeMap<FlowKey, Instant>,
    /// Whether the connection table has ever been as good as full.
    was_full: bool,
}

/// One packet under judgement.
struct Case<'a> {
    settings: &'a NodeSettings,
    view: &'a View,
    /// The inner packet that went in.
    packet: &'a [u8],
    flow: FlowKey,
    flags: u8,
    outputs: &'a Outputs,
    now: Instant,
}

type Verdict = Result<(), Violation>;

fn violated(invariant: Invariant, text: String) -> Verdict {
    Err(Violation::new(invariant, text))
}

impl Oracle {
    /// The node called `own` goes by `view` from now on: UDP leaves backends that do not serve.
    pub fn tables_changed(&mut self, own: &str, view: &View) {
        use windlass_dataplane::wire::flow::Protocol;
        let stays = |tracked: &Tracked| {
            let backends = view.backends(own, &tracked.original);
            tracked.original.protocol == Protocol::TCP
                || backends.is_some_and(|backends| backends.serving.contains(&tracked.backend()))
        };
        self.tracked.retain(|_, tracked| stays(tracked));
        self.replies.retain(|_, original| self.tracked.contains_key(original));
    }

    /// The connection table begins to let go of flows that nobody answers.
    pub fn table_is_full(&mut self) {
        self.was_full = true;
    }

    /// Lets go of what no node remembers.
    pub fn forget_old(&mut self, now: Instant) {
        let is_recent = |at: Instant| now.since(at) < FORGOTTEN_AFTER;
        self.tracked.retain(|_, tracked| is_recent(tracked.last_seen()));
        self.replies.retain(|_, original| self.tracked.contains_key(original));
        self.unsure.retain(|_, at| is_recent(*at));
    }

    /// Judges what a node made of one packet.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn judge(
        &mut self,
        settings: &NodeSettings,
        view: &View,
        input: &Input,
        outputs: &Outputs,
        now: Instant,
    ) -> Verdict {
        for datagram in &outputs.datagrams {
            right_vtep(settings, view, datagram)?;
        }
        if outputs.packets.len() + outputs.datagrams.len() > 1 {
            return violated(Invariant::Sums, format!("one packet became {outputs:?}"));
        }
        let packet = match input {
            Input::Overlay(packet) => packet.as_slice(),
            Input::Underlay { payload, from, .. } => {
                let is_in_order = belongs_here(settings, view, payload, from.ip());
                if !is_in_order && (!outputs.packets.is_empty() || !outputs.datagrams.is_empty()) {
                    let text = format!("let in from {from}: {}", hex(payload));
                    return violated(Invariant::RightNetwork, text);
                }
                if !is_in_order {
                    return Ok(());
                }
                &payload[HEADERS_LEN..]
            }
        };
        let Some((flow, flags)) = flow_of(packet) else { return Ok(()) };
        let case = Case { settings, view, packet, flow, flags, outputs, now };
        if self.replies.contains_key(&flow) {
            self.judge_reply(&case)
        } else if matches!(input, Input::Underlay { .. }) {
            self.judge_received(&case)
        } else if contains(&settings.service_cidrs, flow.dst) {
            self.judge_to_vip(&case)
        } else {
            self.judge_direct(&case)
        }
    }

    /// A packet to a VIP.
    fn judge_to_vip(&mut self, case: &Case<'_>) -> Verdict {
        let backends = case.view.backends(&case.settings.node, &case.flow);
        let chosen = backends.as_ref().map(|backends| &backends.chosen);
        if case.is_refused() {
            return match chosen {
                Some(chosen) if !chosen.is_empty() => {
                    let (flow, drops) = (case.flow, &case.outputs.drops);
                    violated(Invariant::NotRefused, format!("{flow} ends as {drops:?}, with {chosen:?}"))
                }
                _ => Ok(()),
            };
        }
        let Some(out) = case.output() else {
            self.unsure.insert(case.flow, case.now);
            return Ok(());
        };
        let forward = case.translation(out)?;
        if let Some(known) = self.tracked.get_mut(&case.flow) {
            if known.forward == forward {
                known.saw(false, case.flags, case.now);
                return Ok(());
            }
            if known.must_be_known(case.now, self.was_full) && known.must_keep(case.flags, backends.as_ref())
            {
                let text = format!("{} went to {} and goes to {forward}", case.flow, known.forward);
                return violated(Invariant::KeepsBackend, text);
            }
        }
        let backend = std::net::SocketAddr::new(forward.dst, forward.dst_port);
        let is_unsure = self.unsure.contains_key(&case.flow);
        if !is_unsure && !chosen.is_some_and(|chosen| chosen.contains(&backend)) {
            let text = format!("{} goes to {backend}, and {chosen:?} serve", case.flow);
            return violated(Invariant::ServedBackend, text);
        }
        self.track(case, forward)
    }

    fn track(&mut self, case: &Case<'_>, forward: FlowKey) -> Verdict {
        let reply = forward.reversed();
        let holder = self.replies.get(&reply).filter(|holder| **holder != case.flow);
        if let Some(other) = holder.and_then(|holder| self.tracked.get(holder))
            && other.must_be_known(case.now, self.was_full)
        {
            let text = format!("{} and {} are both {forward}", case.flow, other.original);
            return violated(Invariant::NeverCrossed, text);
        }
        let mut tracked = Tracked::new(case.flow, forward, case.now);
        tracked.saw(false, case.flags, case.now);
        if let Some(before) = self.tracked.insert(case.flow, tracked) {
            self.replies.remove(&before.forward.reversed());
        }
        if let Some(holder) = self.replies.insert(reply, case.flow).filter(|holder| *holder != case.flow) {
            self.tracked.remove(&holder);
        }
        Ok(())
    }

    /// A packet that is a reply of a translated flow.
    fn judge_reply(&mut self, case: &Case<'_>) -> Verdict {
        let known = self.replies.get(&case.flow).and_then(|original| self.tracked.get_mut(original));
        let Some(known) = known else { return Ok(()) };
        let must_be_known = known.must_be_known(case.now, self.was_full);
        let Some(out) = case.output() else {
            return match case.outputs.drops.contains(&DropReason::NoConnection) && must_be_known {
                true => violated(Invariant::ReplyCarriesVip, format!("{} is dropped as unknown", case.flow)),
                false => Ok(()),
            };
        };
        let out_flow = verified_flow(out);
        if out_flow == known.original.reversed() {
            known.saw(true, case.flags, case.now);
            return same_content(case.packet, out);
        }
        if !must_be_known {
            return Ok(());
        }
        let text = format!("{} of {} leaves as {out_flow}", case.flow, known.original);
        violated(Invariant::ReplyCarriesVip, text)
    }

    /// A packet from a peer that is no reply.
    fn judge_received(&mut self, case: &Case<'_>) -> Verdict {
        let Some(out) = case.output() else { return Ok(()) };
        if out == case.packet {
            return Ok(());
        }
        let out_flow = verified_flow(out);
        if self.unsure.contains_key(&out_flow.reversed()) {
            return Ok(());
        }
        violated(Invariant::RightTranslation, format!("{} is delivered as {out_flow}", case.flow))
    }

    /// A packet of a pod to a pod, or to a source VIP that expects nothing.
    fn judge_direct(&mut self, case: &Case<'_>) -> Verdict {
        let Some(out) = case.output() else { return Ok(()) };
        let is_remote = !case.outputs.datagrams.is_empty();
        let out_flow = verified_flow(out);
        let is_of_unsure = self.unsure.contains_key(&out_flow.reversed());
        if is_remote && out == case.packet || is_of_unsure {
            return Ok(());
        }
        violated(Invariant::RightTranslation, format!("{} leaves as {out_flow}", case.flow))
    }
}

impl Case<'_> {
    /// The inner packet that came out, unless it is the answer of the node itself to one that was dropped.
    fn output(&self) -> Option<&[u8]> {
        let datagram = self.outputs.datagrams.first().map(|datagram| &datagram.payload[HEADERS_LEN..]);
        let packet = self.outputs.packets.first().map(Vec::as_slice);
        datagram.or(packet).filter(|_| self.outputs.drops.is_empty())
    }

    fn is_refused(&self) -> bool {
        use DropReason::{NoEndpoint, NoLocalEndpoint, NoSuchService, UnservedPort};
        let reasons = [NoEndpoint, NoLocalEndpoint, NoSuchService, UnservedPort];
        self.outputs.drops.iter().any(|reason| reasons.contains(reason))
    }

    /// What a packet to a VIP has become; the rest of it must be as it was.
    fn translation(&self, out: &[u8]) -> Result<FlowKey, Violation> {
        let forward = verified_flow(out);
        let settings = self.settings;
        let is_here = self.outputs.datagrams.is_empty();
        let source = match (is_here, self.flow.src.is_ipv4()) {
            (true, true) => settings.source_vip_v4.into(),
            (true, false) => settings.source_vip_v6.into(),
            (false, _) => self.flow.src,
        };
        let is_own = contains(&settings.pod_cidrs, forward.dst);
        if forward.src != source || is_here != is_own || contains(&settings.service_cidrs, forward.dst) {
            let text = format!("{} leaves as {forward}", self.flow);
            return Err(Violation::new(Invariant::RightTranslation, text));
        }
        same_content(self.packet, out).map(|()| forward)
    }
}

/// A datagram's VNI, MACs and VTEP must be those of its destination.
fn right_vtep(settings: &NodeSettings, view: &View, datagram: &MemoryDatagram) -> Verdict {
    let payload = &datagram.payload;
    let vni = u32::from_be_bytes([0, payload[4], payload[5], payload[6]]);
    let (dst_mac, inner) = (&payload[8..14], &payload[HEADERS_LEN..]);
    let Some((_, dst)) = addresses(inner) else {
        return violated(Invariant::RightTranslation, format!("a datagram without IP: {}", hex(payload)));
    };
    if contains(&settings.service_cidrs, dst) {
        return violated(Invariant::RightTranslation, format!("a packet to the VIP {dst} leaves for a VTEP"));
    }
    if vni != settings.vni.get() {
        return violated(Invariant::RightNetwork, format!("a packet to {dst} leaves with VNI {vni}"));
    }
    let vteps = view.vteps_of(dst);
    let remote = datagram.remote.ip();
    match vteps.iter().any(|(addr, mac)| *addr == remote && mac.0 == dst_mac) {
        true => Ok(()),
        false => {
            let text = format!("a packet to {dst} goes to {remote}, {}, not {vteps:?}", hex(dst_mac));
            violated(Invariant::RightVtep, text)
        }
    }
}

/// Whether a datagram may be let in: our VNI, our MAC, a known VTEP, a source behind it, a destination here.
fn belongs_here(settings: &NodeSettings, view: &View, payload: &[u8], from: IpAddr) -> bool {
    let Some((header, frame)) = payload.split_at_checked(8) else { return false };
    let vni = u32::from_be_bytes([0, header[4], header[5], header[6]]);
    let Some((mac, inner)) = frame.get(..6).zip(frame.get(14..)) else { return false };
    let Some((src, dst)) = addresses(inner) else { return false };
    let own_mac = settings.mac_v4.is_some_and(|own| own.0 == mac);
    vni == settings.vni.get()
        && own_mac
        && SlicedPacket::from_ip(inner).is_ok()
        && view.may_come_from(from, src)
        && contains(&settings.pod_cidrs, dst)
}

fn contains(cidrs: &[ipnet::IpNet], addr: IpAddr) -> bool {
    cidrs.iter().any(|cidr| cidr.contains(&addr))
}

/// Source and destination of an IP packet.
pub fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    fn read<const N: usize>(packet: &[u8], at: usize) -> Option<[u8; N]> {
        packet.get(at..at + N)?.try_into().ok()
    }
    match packet.first()? >> 4 {
        4 => Some((read::<4>(packet, 12)?.into(), read::<4>(packet, 16)?.into())),
        6 => Some((read::<16>(packet, 8)?.into(), read::<16>(packet, 24)?.into())),
        _ => None,
    }
}

/// The flow and the TCP flags of a TCP or UDP packet.
pub fn flow_of(packet: &[u8]) -> Option<(FlowKey, u8)> {
    let sliced = SlicedPacket::from_ip(packet).ok()?;
    let flags = match sliced.transport? {
        TransportSlice::Tcp(tcp) => tcp.slice()[13],
        TransportSlice::Udp(_) => 0,
        _ => return None,
    };
    Some((verified_flow(packet), flags))
}

/// Two packets that differ in addresses, ports and checksums alone.
fn same_content(before: &[u8], after: &[u8]) -> Verdict {
    match blanked(before) == blanked(after) {
        true => Ok(()),
        false => {
            let text = format!("{} became {}", hex(before), hex(after));
            violated(Invariant::RightTranslation, text)
        }
    }
}

fn blanked(packet: &[u8]) -> Vec<u8> {
    let mut blank = packet.to_vec();
    let (l4_offset, addresses, protocol) =
        if packet[0] >> 4 == 4 { (20, 10..20, packet[9]) } else { (40, 8..40, packet[6]) };
    let checksum = l4_offset + if protocol == 6 { 16 } else { 6 };
    for range in [addresses, l4_offset..l4_offset + 4, checksum..checksum + 2] {
        blank[range].fill(0);
    }
    blank
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
