//! Whether this process may change the network.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use windows_sys::Win32::Foundation::{CloseHandle, HANDLE};
use windows_sys::Win32::Security::{GetTokenInformation, TOKEN_ELEVATION, TOKEN_QUERY, TokenElevation};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

/// Whether the process runs with an administrator's full rights.
///
/// # Errors
/// When its token cannot be read.
pub(super) fn is_elevated() -> io::Result<bool> {
    let mut token: HANDLE = ptr::null_mut();
    // SAFETY: this process, and a place for a handle that is ours to close.
    if unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &mut token) } == 0 {
        return Err(io::Error::last_os_error());
    }
    let mut elevation = TOKEN_ELEVATION::default();
    let mut len = size_of::<TOKEN_ELEVATION>() as u32;
    let place = ptr::from_mut(&mut elevation).cast();
    // SAFETY: an open token, and a place of that length.
    let known = unsafe { GetTokenInformation(token, TokenElevation, place, len, &mut len) } != 0;
    let error = io::Error::last_os_error();
    // SAFETY: the token is ours and open.
    unsafe { CloseHandle(token) };
    if known { Ok(elevation.TokenIsElevated != 0) } else { Err(error) }
}
