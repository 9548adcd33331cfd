//! Wire formats: one protocol, one file, all of one shape.
//!
//! A file starts with what to read first, then the offsets, then a view over bytes (`new_checked` validates
//! every length once, accessors cannot fail after it), then `emit` functions that write a whole header.
//! Setters write one field and nothing else: checksums are the caller's, mostly as a [`checksum::Delta`].
//! Nothing here knows anything but bytes.
//!
//! The strata, each built on those before it: `bytes`, [`protocol`]; [`checksum`], [`flow`]; the views; [`ip`];
//! [`inner`], which reads a packet through the views; [`quoted`] and [`answer`], which read one to make another.

pub mod answer;
pub mod arp;
pub(crate) mod bytes;
pub mod checksum;
pub mod ethernet;
pub mod flow;
pub mod icmp;
pub mod inner;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod protocol;
pub mod quoted;
pub mod tcp;
pub mod udp;
pub mod vxlan;

pub use bytes::Malformed;

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
