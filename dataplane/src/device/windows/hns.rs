//! What the Host Networking Service (HNS) has made on this computer.
//!
//! HNS has no registry keys or files that it documents. `HNSCall` of vmcompute.dll, which hcsshim and Microsoft's own
//! scripts use, answers a GET with JSON; it is resolved at run time, as a Windows without containers lacks it.
#![allow(unsafe_code)]

use std::ptr;

use windows_sys::Win32::System::Com::CoTaskMemFree;
use windows_sys::core::{HRESULT, PCWSTR, PWSTR};

use super::dynamic;
use super::tables::wide_string;
use crate::device::survey::Seen;

type HnsCall =
    unsafe extern "system" fn(method: PCWSTR, path: PCWSTR, object: PCWSTR, response: *mut PWSTR) -> HRESULT;

/// HNS's networks as it lists them: JSON with `Success`, `Output` and `Error`.
pub(super) fn networks() -> Seen<String> {
    let unseen = |error| format!("HNS cannot be asked: {error}");
    let library = dynamic::system_library("vmcompute.dll").map_err(unseen)?;
    // SAFETY: the type is that of hcsshim's declaration.
    let call: HnsCall = unsafe { dynamic::function(library, c"HNSCall") }.map_err(unseen)?;
    let wide = |text: &str| text.encode_utf16().chain([0]).collect::<Vec<u16>>();
    let (method, path, object) = (wide("GET"), wide("/networks/"), wide(""));
    let mut response: PWSTR = ptr::null_mut();
    // SAFETY: texts that end in zero, and a place for one that is ours to free.
    let result = unsafe { call(method.as_ptr(), path.as_ptr(), object.as_ptr(), &mut response) };
    // SAFETY: null, or a text that ends in zero.
    let text = unsafe { wide_string(response) };
    // SAFETY: made by the call, and not used any more.
    unsafe { CoTaskMemFree(response.cast()) };
    if result < 0 { Err(format!("HNS cannot be asked: HNSCall says {result:#010x}")) } else { Ok(text) }
}
