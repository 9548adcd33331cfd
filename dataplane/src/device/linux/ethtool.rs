//! Features of interfaces, as `ethtool -k` and `ethtool -K` have them (linux/ethtool.h).

use std::io;
use std::os::unix::net::UnixDatagram;

use libc::c_ulong;

use super::sys;
use crate::device::survey::OffloadState;

const SIOCETHTOOL: c_ulong = 0x8946;

const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;

/// The string set with the names of the features.
const ETH_SS_FEATURES: u32 = 4;

/// Length of a name in a string set, in words.
const NAME_WORDS: usize = 8;

/// The features of the interfaces of one network namespace. Every ethtool structure is a row of 32-bit words.
#[derive(Debug)]
pub(super) struct Ethtool {
    socket: UnixDatagram,
    /// The names of the features, which are the kernel's and the same for every interface.
    names: Vec<String>,
}

impl Ethtool {
    /// Learns the kernel's features of `interface`.
    pub(super) fn open(interface: &str) -> io::Result<Self> {
        let mut ethtool = Self { socket: UnixDatagram::unbound()?, names: Vec::new() };
        let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
        ethtool.call(interface, &mut info)?;
        let count = info[4] as usize;
        let mut strings = vec![0; 3 + count * NAME_WORDS];
        strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, info[4]]);
        ethtool.call(interface, &mut strings)?;
        ethtool.names = strings[3..].chunks_exact(NAME_WORDS).map(name).collect();
        Ok(ethtool)
    }

    /// Whether a feature is on.
    pub(super) fn is_on(&self, interface: &str, feature: &str) -> io::Result<bool> {
        Ok(self.state(interface, feature)? == OffloadState::On)
    }

    /// Whether a feature is on, and whether it could be.
    pub(super) fn state(&self, interface: &str, feature: &str) -> io::Result<OffloadState> {
        let (block, bit) = self.place(feature)?;
        let blocks = self.blocks();
        // Of each block: available, requested, active, never changed.
        let mut features = vec![0; 2 + 4 * blocks];
        features[..2].copy_from_slice(&[ETHTOOL_GFEATURES, blocks as u32]);
        self.call(interface, &mut features)?;
        let has = |column: usize| features[2 + 4 * block + column] & bit != 0;
        Ok(match (has(2), has(0) && !has(3)) {
            (true, _) => OffloadState::On,
            (false, true) => OffloadState::Off,
            (false, false) => OffloadState::Cannot,
        })
    }

    /// Turns a feature on or off. The kernel may keep it as it is without an error.
    pub(super) fn set(&self, interface: &str, feature: &str, on: bool) -> io::Result<()> {
        let (block, bit) = self.place(feature)?;
        let blocks = self.blocks();
        // Of each block: valid, requested.
        let mut features = vec![0; 2 + 2 * blocks];
        features[..2].copy_from_slice(&[ETHTOOL_SFEATURES, blocks as u32]);
        features[2 + 2 * block] = bit;
        features[2 + 2 * block + 1] = if on { bit } else { 0 };
        self.call(interface, &mut features)
    }

    fn place(&self, feature: &str) -> io::Result<(usize, u32)> {
        let index = self.names.iter().position(|name| name == feature);
        let index = index.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "the kernel lacks it"))?;
        Ok((index / 32, 1 << (index % 32)))
    }

    fn blocks(&self) -> usize {
        self.names.len().div_ceil(32)
    }

    fn call(&self, interface: &str, command: &mut [u32]) -> io::Result<()> {
        let mut request = sys::empty_ifreq();
        let room = request.ifr_name.len() - 1;
        for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = command.as_mut_ptr().cast();
        sys::ioctl(&self.socket, SIOCETHTOOL, (&raw mut request) as c_ulong)
    }
}

fn name(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    bytes.take_while(|byte| *byte != 0).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{in_namespace, ip, run};
    use super::*;

    #[test]
    fn features_are_read_and_set_as_ethtool_does() {
        in_namespace("ethtool", || {
            ip("link add va type veth peer name vb");
            let ethtool = Ethtool::open("va").unwrap();
            assert!(!ethtool.is_on("va", "rx-gro").unwrap());
            ethtool.set("va", "rx-gro", true).unwrap();
            ethtool.set("va", "rx-udp-gro-forwarding", true).unwrap();
            let said = run("ethtool", "-k va");
            assert!(said.contains("generic-receive-offload: on"), "{said}");
            assert!(said.contains("rx-udp-gro-forwarding: on"), "{said}");
            ethtool.set("va", "rx-gro", false).unwrap();
            assert!(!ethtool.is_on("va", "rx-gro").unwrap());
            assert!(ethtool.is_on("va", "no-such-feature").is_err());
            assert!(ethtool.is_on("absent", "rx-gro").is_err());
        });
    }
}
