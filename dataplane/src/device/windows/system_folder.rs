//! Where Windows keeps its own programs and libraries.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::windows::ffi::OsStringExt;
use std::path::PathBuf;

use windows_sys::Win32::System::SystemInformation::GetSystemDirectoryW;

/// The longest path of it: MAX_PATH.
const MAX_LEN: usize = 260;

/// The folder System32, asked of the system: the environment may say anything.
///
/// # Errors
/// When the system does not say.
pub fn system_folder() -> io::Result<PathBuf> {
    let mut text = [0_u16; MAX_LEN];
    // SAFETY: room for as many characters as are said.
    let len = unsafe { GetSystemDirectoryW(text.as_mut_ptr(), MAX_LEN as u32) } as usize;
    match text.get(..len) {
        Some(path) if len > 0 => Ok(OsString::from_wide(path).into()),
        _ => Err(io::Error::last_os_error()),
    }
}
