//! Addresses as Windows' tables hold them.
#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windows_sys::Win32::Networking::WinSock::{AF_INET, AF_INET6, SOCKADDR_INET};

use crate::device::host::Family;

/// The number of an address family.
pub(super) fn family_number(family: Family) -> u16 {
    match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    }
}

/// An address without a port.
pub(super) fn to_windows(address: IpAddr) -> SOCKADDR_INET {
    let mut windows = SOCKADDR_INET::default();
    match address {
        IpAddr::V4(address) => {
            windows.Ipv4.sin_family = AF_INET;
            windows.Ipv4.sin_addr.S_un.S_addr = u32::from_ne_bytes(address.octets());
        }
        IpAddr::V6(address) => {
            windows.Ipv6.sin6_family = AF_INET6;
            windows.Ipv6.sin6_addr.u.Byte = address.octets();
        }
    }
    windows
}

/// The address of either family; `None` for any other.
pub(super) fn from_windows(windows: &SOCKADDR_INET) -> Option<IpAddr> {
    // SAFETY: the family is the first field of every member of the union, all of whose bytes are initialised.
    match unsafe { windows.si_family } {
        // SAFETY: the family says which member is meant.
        AF_INET => Some(Ipv4Addr::from(unsafe { windows.Ipv4.sin_addr.S_un.S_addr }.to_ne_bytes()).into()),
        // SAFETY: as above.
        AF_INET6 => Some(Ipv6Addr::from(unsafe { windows.Ipv6.sin6_addr.u.Byte }).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_come_back_as_they_were() {
        for address in ["192.0.2.1", "0.0.0.0", "2001:db8::1", "::"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(from_windows(&to_windows(address)), Some(address));
        }
        assert_eq!(from_windows(&SOCKADDR_INET::default()), None);
    }
}
