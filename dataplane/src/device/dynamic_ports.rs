//! The order in which source ports are tried.

/// RFC 7348 section 5: source ports come from the dynamic range.
pub(crate) const FIRST_PORT: u16 = 49_152;
/// How many there are.
pub(crate) const PORTS: usize = 16_384;

/// All dynamic ports in an order of the seed's: an odd step visits each of a power of two once.
pub(crate) fn candidates(seed: u64) -> impl Iterator<Item = u16> {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = (mixed >> 48) as usize;
    let step = (mixed >> 32) as usize | 1;
    (0..PORTS).map(move |index| FIRST_PORT + (first.wrapping_add(index.wrapping_mul(step)) % PORTS) as u16)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_dynamic_port_is_tried_once_in_an_order_of_the_seeds() {
        let ports: Vec<u16> = candidates(7).collect();
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), PORTS);
        assert!(ports.iter().all(|port| *port >= FIRST_PORT));
        assert_ne!(ports[..16], candidates(8).collect::<Vec<_>>()[..16]);
    }
}
