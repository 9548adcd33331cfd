//! What the traffic tools and their server say to each other.
//!
//! A TCP connection begins with one byte that says what is wanted ([`Wish`]) and two numbers, the span to count
//! in. A datagram that begins with [`ECHO`] is sent back, any other is counted.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::figures::Span;

/// What a TCP client wants, as the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Count what I send, and tell me.
    Sink,
    /// Send to me.
    Source,
    /// Send back what I send.
    Echo,
    /// Answer with one byte and close.
    Connect,
    /// Count the datagrams that come, and tell me.
    Watch,
}

const WISHES: [(Wish, u8); 5] = [
    (Wish::Sink, b'S'),
    (Wish::Source, b'R'),
    (Wish::Echo, b'E'),
    (Wish::Connect, b'C'),
    (Wish::Watch, b'W'),
];

/// First byte of a datagram that is to be sent back.
pub const ECHO: u8 = b'E';
/// First byte of a datagram that is to be counted.
pub const COUNTED: u8 = b'D';
/// Length of a request and of its answer.
pub const REQUEST_LEN: usize = 64;

/// Length of what a connection begins with.
pub const HEAD_LEN: usize = 9;

impl Wish {
    /// The opening of a connection: the wish and the span.
    ///
    /// # Errors
    /// When the span is longer than 49 days.
    pub fn head(self, span: Span) -> Result<[u8; HEAD_LEN]> {
        let code = WISHES.iter().find(|(wish, _)| *wish == self).map_or(0, |(_, code)| *code);
        let mut head = [code; HEAD_LEN];
        head[1..5].copy_from_slice(&u32::try_from(span.warm_up.as_millis())?.to_be_bytes());
        head[5..].copy_from_slice(&u32::try_from(span.duration.as_millis())?.to_be_bytes());
        Ok(head)
    }

    /// The wish and the span of a connection's opening.
    ///
    /// # Errors
    /// When there is no such wish.
    pub fn parse([code, a, b, c, d, e, f, g, h]: [u8; HEAD_LEN]) -> Result<(Self, Span)> {
        let millis = |bytes| Duration::from_millis(u32::from_be_bytes(bytes).into());
        let wish = WISHES.iter().find(|(_, known)| *known == code).map(|(wish, _)| *wish);
        let span = Span { warm_up: millis([a, b, c, d]), duration: millis([e, f, g, h]) };
        Ok((wish.with_context(|| format!("no wish {code}"))?, span))
    }
}
