//! How far a TCP connection has come, as seen from its flags alone.
//!
//! No window is tracked: an out-of-window RST cannot be told from a real one, so a RST only shortens the
//! timer, and any later traffic restores it. Timeouts are those of RFC 5382 section 5 (REQ-5).

use std::time::Duration;

use crate::wire::tcp::{ACK, FIN, RST, SYN};

/// Which way a packet of a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowDirection {
    /// As the first packet: client to VIP.
    Original,
    /// Backend to client.
    Reply,
}

/// State of a tracked TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum TcpState {
    /// Only the original side has spoken.
    #[default]
    Opening = 0,
    /// The reply side has answered.
    Replied = 1,
    /// Data may flow.
    Established = 2,
    /// The original side has sent a FIN: half-closed connections may live for hours.
    OriginalClosed = 3,
    /// The reply side has sent a FIN.
    ReplyClosed = 4,
    /// Both sides have sent a FIN.
    Closed = 5,
    /// A RST was seen.
    Reset = 6,
}

/// RFC 5382 REQ-5: not less than 2 hours 4 minutes.
pub const ESTABLISHED_TIMEOUT: Duration = Duration::from_secs(7_440);

/// RFC 5382 REQ-5: not less than 4 minutes.
pub const TRANSITORY_TIMEOUT: Duration = Duration::from_secs(240);

impl TcpState {
    /// The state whose number is `number`; unknown numbers are [`TcpState::Opening`].
    pub fn from_u8(number: u8) -> Self {
        match number {
            1 => Self::Replied,
            2 => Self::Established,
            3 => Self::OriginalClosed,
            4 => Self::ReplyClosed,
            5 => Self::Closed,
            6 => Self::Reset,
            _ => Self::Opening,
        }
    }

    /// The state after a packet with `flags` in `direction`.
    pub fn after(self, direction: FlowDirection, flags: u8) -> Self {
        use FlowDirection::{Original, Reply};
        if flags & RST != 0 {
            return Self::Reset;
        }
        if flags & FIN != 0 {
            return match (self, direction) {
                (Self::ReplyClosed | Self::Closed, Original)
                | (Self::OriginalClosed | Self::Closed, Reply) => Self::Closed,
                (_, Original) => Self::OriginalClosed,
                (_, Reply) => Self::ReplyClosed,
            };
        }
        match (self, direction) {
            (Self::Opening, Reply) => Self::Replied,
            (Self::Replied, Original) if flags & (SYN | ACK) == ACK => Self::Established,
            (Self::Closed | Self::Reset, Original) if flags & (SYN | ACK) == SYN => Self::Opening,
            (Self::Reset, _) => Self::Established,
            (state, _) => state,
        }
    }

    /// How long an idle connection in this state is remembered.
    pub fn timeout(self) -> Duration {
        match self {
            Self::Established | Self::OriginalClosed | Self::ReplyClosed => ESTABLISHED_TIMEOUT,
            Self::Opening | Self::Replied | Self::Closed | Self::Reset => TRANSITORY_TIMEOUT,
        }
    }

    /// Whether a SYN in this state opens a new connection, which may go to another backend.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Closed | Self::Reset)
    }
}

#[cfg(test)]
mod tests {
    use super::FlowDirection::{Original, Reply};
    use super::*;

    fn run(packets: &[(FlowDirection, u8)]) -> TcpState {
        packets.iter().fold(TcpState::default(), |state, (direction, flags)| state.after(*direction, *flags))
    }

    const HANDSHAKE: [(FlowDirection, u8); 3] = [(Original, SYN), (Reply, SYN | ACK), (Original, ACK)];

    #[test]
    fn a_handshake_establishes() {
        assert_eq!(run(&HANDSHAKE[..1]), TcpState::Opening);
        assert_eq!(run(&HANDSHAKE[..2]), TcpState::Replied);
        assert_eq!(run(&HANDSHAKE), TcpState::Established);
    }

    #[test]
    fn a_repeated_syn_ack_changes_nothing() {
        let mut packets = HANDSHAKE[..2].to_vec();
        packets.push((Reply, SYN | ACK));
        assert_eq!(run(&packets), TcpState::Replied);
    }

    #[test]
    fn a_half_close_keeps_the_long_timer_and_both_fins_the_short_one() {
        let mut packets = HANDSHAKE.to_vec();
        packets.push((Original, FIN | ACK));
        packets.push((Reply, ACK));
        assert_eq!(run(&packets).timeout(), ESTABLISHED_TIMEOUT);
        packets.push((Reply, FIN | ACK));
        assert_eq!(run(&packets), TcpState::Closed);
        packets.push((Original, ACK));
        assert_eq!(run(&packets).timeout(), TRANSITORY_TIMEOUT);
        packets.push((Original, SYN));
        assert_eq!(run(&packets), TcpState::Opening);
    }

    #[test]
    fn traffic_after_a_reset_restores_the_timer() {
        let mut packets = HANDSHAKE.to_vec();
        packets.push((Reply, RST));
        assert_eq!(run(&packets).timeout(), TRANSITORY_TIMEOUT);
        packets.push((Reply, ACK));
        assert_eq!(run(&packets), TcpState::Established);
    }
}
