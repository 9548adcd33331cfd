//! Superpackets in software: pure functions over packets.

pub mod coalesce;
pub mod segment;
