//! Who may open what this program makes.
#![allow(unsafe_code)]

use std::io;
use std::os::windows::io::{AsRawHandle, BorrowedHandle};
use std::ptr;

use windows_sys::Win32::Foundation::LocalFree;
use windows_sys::Win32::Security::Authorization::{
    ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1,
};
use windows_sys::Win32::Security::{
    DACL_SECURITY_INFORMATION, PROTECTED_DACL_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR,
    SetKernelObjectSecurity,
};

/// Everything for LocalSystem and for administrators, nothing for anybody else, nothing inherited.
const ADMINISTRATORS_ONLY: &str = "D:P(A;;GA;;;SY)(A;;GA;;;BA)";

/// Leaves a kernel object to LocalSystem and administrators. The handle must have the right WRITE_DAC.
///
/// # Errors
/// When the system refuses.
pub fn restrict_to_administrators(object: BorrowedHandle<'_>) -> io::Result<()> {
    let text: Vec<u16> = ADMINISTRATORS_ONLY.encode_utf16().chain([0]).collect();
    let mut descriptor: PSECURITY_DESCRIPTOR = ptr::null_mut();
    // SAFETY: a text that ends in zero, and a place for a descriptor that is ours to free.
    let made = unsafe {
        ConvertStringSecurityDescriptorToSecurityDescriptorW(
            text.as_ptr(),
            SDDL_REVISION_1,
            &mut descriptor,
            ptr::null_mut(),
        )
    };
    if made == 0 {
        return Err(io::Error::last_os_error());
    }
    let parts = DACL_SECURITY_INFORMATION | PROTECTED_DACL_SECURITY_INFORMATION;
    // SAFETY: an open handle, and the descriptor that was just made.
    let set = unsafe { SetKernelObjectSecurity(object.as_raw_handle(), parts, descriptor) };
    let error = io::Error::last_os_error();
    // SAFETY: made by the call above, and not used any more.
    unsafe { LocalFree(descriptor) };
    if set == 0 { Err(error) } else { Ok(()) }
}
