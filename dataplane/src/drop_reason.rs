//! Why packets are dropped. The ground floor, so that counters need not know the engine.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $reason:ident = $name:literal,)+) => {
        /// Why a packet was not sent. Each has a counter of its own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $reason,)+
        }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$reason,)+];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name that counters and traces show.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$reason => $name,)+ }
            }

            /// What it means, for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$reason => concat!($($doc),+),)+ }
            }
        }
    };
}

drop_reasons! {
    /// A datagram shorter than VXLAN and Ethernet headers.
    VxlanTruncated = "vxlan_truncated",
    /// The VXLAN I flag is not set (RFC 7348 section 5).
    VxlanNoVni = "vxlan_no_vni",
    /// Reserved VXLAN bits are set, and the strict setting is on.
    VxlanReservedBits = "vxlan_reserved_bits",
    /// A VNI this node does not serve.
    UnknownVni = "unknown_vni",
    /// The outer source address is no known VTEP of this VNI.
    UnknownVtep = "unknown_vtep",
    /// The inner destination MAC is not ours on this VNI; with an L2 device: that of a station elsewhere.
    InnerMacNotOurs = "inner_mac_not_ours",
    /// The inner frame has an 802.1Q tag, and the setting does not pass over it (RFC 7348 section 6.1).
    InnerVlan = "inner_vlan",
    /// The inner frame carries neither IPv4 nor IPv6.
    InnerEthertype = "inner_ethertype",
    /// A length, version or header length that cannot be.
    Malformed = "malformed",
    /// Outer CE on a packet that is not ECN-capable (RFC 6040 section 4.2).
    EcnIllegal = "ecn_illegal",
    /// The inner source lies outside the prefixes of the VTEP it came from.
    SourceSpoofed = "source_spoofed",
    /// The inner source is ours, loopback, multicast, broadcast or 0/8.
    SourceInvalid = "source_invalid",
    /// The inner destination is loopback, link-local, multicast, broadcast or unspecified.
    DestinationInvalid = "destination_invalid",
    /// A packet from a peer for an address that is not on this node.
    DestinationNotLocal = "destination_not_local",
    /// No route to the destination.
    NoRoute = "no_route",
    /// A packet from the device for a pod of this node: the host has no local route for it and would loop.
    LocalPodNotOnHost = "local_pod_not_on_host",
    /// A packet from the device for an address outside the overlay: it would loop.
    OutsideOverlay = "outside_overlay",
    /// The route's gateway has no neighbor entry.
    NoNeighbor = "no_neighbor",
    /// The neighbor's MAC is in no FDB entry.
    NoFdbEntry = "no_fdb_entry",
    /// This node has no VTEP MAC on the route's VNI.
    NoLocalVtep = "no_local_vtep",
    /// Longer than the overlay or the path to the VTEP carries; the sender was told.
    TooBig = "too_big",
    /// Longer than the path carries, and IPv4 without DF: not fragmented.
    TooBigMayFragment = "too_big_may_fragment",
    /// An address of the service CIDR that no service has.
    NoSuchService = "no_such_service",
    /// A port that the service at this address does not have.
    UnservedPort = "unserved_port",
    /// The service has no endpoint.
    NoEndpoint = "no_endpoint",
    /// The service's traffic policy is Local and no endpoint is here.
    NoLocalEndpoint = "no_local_endpoint",
    /// The client is in none of the service's loadBalancerSourceRanges.
    SourceNotAllowed = "source_not_allowed",
    /// A protocol other than TCP, UDP and ICMP echo to a service address.
    UnsupportedProtocol = "unsupported_protocol",
    /// A later IP fragment whose first one did not come in time, so that nobody knows its flow; or a first fragment of an
    /// ICMP echo to a service address.
    FragmentAlone = "fragment_alone",
    /// A later IP fragment that overlaps another one of its packet, or leaves too many gaps (RFC 5722).
    FragmentOverlap = "fragment_overlap",
    /// A packet of a translated flow that is not (or no longer) known.
    NoConnection = "no_connection",
    /// The connection table is full.
    ConnectionTableFull = "connection_table_full",
    /// Every source port toward the backend is in use, or workers kept colliding.
    NoSourcePort = "no_source_port",
    /// No room for a packet the engine wanted to generate or to grow.
    NoBuffer = "no_buffer",
    /// The frame's source MAC is a group's, or none at all (L2 device).
    SourceMacInvalid = "source_mac_invalid",
    /// The frame's source MAC has a static entry at another place than where the frame comes from (L2 device).
    SourceMacSpoofed = "source_mac_spoofed",
    /// An ARP or ND message that gives an address another MAC than its static entry (L2 device).
    NeighborSpoofed = "neighbor_spoofed",
    /// A frame from an L2 device to, or a question about, a station that is behind the same device.
    DestinationOnDevice = "destination_on_device",
    /// A frame from an L2 device to a MAC that no entry has, where the segment does not flood those.
    UnknownUnicast = "unknown_unicast",
    /// A frame from an L2 device for everybody, and the segment has no other VTEP.
    NoOtherVtep = "no_other_vtep",
    /// A frame from an L2 device that is longer than the path to a VTEP carries, and nobody can be told: it is flooded,
    /// or no IP packet.
    FrameTooLong = "frame_too_long",
    /// The overlay device's queue was full.
    OverlayQueueFull = "overlay_queue_full",
    /// The overlay device refused the packet.
    OverlayRefused = "overlay_refused",
    /// The underlay socket's queue was full.
    UnderlayQueueFull = "underlay_queue_full",
    /// The kernel calls the datagram too long for the path.
    UnderlayTooLong = "underlay_too_long",
    /// The underlay socket refused the datagram.
    UnderlayRefused = "underlay_refused",
}
