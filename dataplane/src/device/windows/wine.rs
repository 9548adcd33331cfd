//! Whether this is Windows at all: wine has neither drivers nor the calls that change addresses and routes.
#![allow(unsafe_code)]

use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};

/// Whether this program runs under wine, where stand-ins take the places of Wintun and of IP Helper.
pub(super) fn is_wine() -> bool {
    let name: Vec<u16> = "ntdll.dll".encode_utf16().chain([0]).collect();
    // SAFETY: a name that ends in zero, of a library that every process has.
    let ntdll = unsafe { GetModuleHandleW(name.as_ptr()) };
    // SAFETY: a loaded library, and a name that ends in zero.
    !ntdll.is_null() && unsafe { GetProcAddress(ntdll, c"wine_get_version".as_ptr().cast()) }.is_some()
}
