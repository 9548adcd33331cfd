//! Functions that not every Windows has, resolved at run time.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem;
use std::ptr;

use windows_sys::Win32::Foundation::HMODULE;
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW,
};

/// A library of the system's own folder. It is never unloaded.
pub(super) fn system_library(name: &str) -> io::Result<HMODULE> {
    let wide: Vec<u16> = name.encode_utf16().chain([0]).collect();
    // SAFETY: a name that ends in zero, looked for in the system's own folder.
    let library = unsafe { LoadLibraryExW(wide.as_ptr(), ptr::null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32) };
    if library.is_null() {
        let error = io::Error::last_os_error();
        return Err(io::Error::new(error.kind(), format!("loading {name}: {error}")));
    }
    Ok(library)
}

/// The function of that name.
///
/// # Safety
/// `F` is the type of a pointer to the function of that name.
pub(super) unsafe fn function<F: Copy>(library: HMODULE, name: &CStr) -> io::Result<F> {
    // SAFETY: an open library, and a name that ends in zero.
    let Some(found) = (unsafe { GetProcAddress(library, name.as_ptr().cast()) }) else {
        let missing = format!("this Windows has no {}", name.to_string_lossy());
        return Err(io::Error::new(io::ErrorKind::Unsupported, missing));
    };
    // SAFETY: the caller vouches for the type; function pointers are all of one size.
    Ok(unsafe { mem::transmute_copy(&found) })
}
