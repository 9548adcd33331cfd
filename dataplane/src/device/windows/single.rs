//! A lock that one process of this computer holds at a time.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use windows_sys::Win32::Foundation::{CloseHandle, ERROR_ALREADY_EXISTS, GetLastError, HANDLE};
use windows_sys::Win32::System::Threading::{CreateMutexW, MUTEX_MODIFY_STATE, OpenMutexW};

/// Held for as long as it lives; Windows gives it back when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock(HANDLE);

// SAFETY: a mutex's handle may be used and closed by any thread; nobody ever owns the mutex itself.
unsafe impl Send for Lock {}

impl Lock {
    /// Takes the lock; `None` when somebody has it.
    pub(super) fn take(name: &str) -> io::Result<Option<Self>> {
        // SAFETY: no attributes, and a name that ends in zero.
        let handle = unsafe { CreateMutexW(ptr::null(), 0, wide(name).as_ptr()) };
        // SAFETY: nothing was called since.
        let existed = unsafe { GetLastError() } == ERROR_ALREADY_EXISTS;
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        let lock = Self(handle);
        Ok((!existed).then_some(lock))
    }

    /// Whether somebody has it.
    pub(super) fn is_taken(name: &str) -> bool {
        // SAFETY: a name that ends in zero.
        let handle = unsafe { OpenMutexW(MUTEX_MODIFY_STATE, 0, wide(name).as_ptr()) };
        if handle.is_null() {
            return false;
        }
        drop(Self(handle));
        true
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and open.
        unsafe { CloseHandle(self.0) };
    }
}

fn wide(name: &str) -> Vec<u16> {
    name.encode_utf16().chain([0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_had_once_and_given_back() {
        let name = "windlass-test-lock";
        let held = Lock::take(name).unwrap().unwrap();
        assert!(Lock::is_taken(name) && Lock::take(name).unwrap().is_none());
        drop(held);
        assert!(!Lock::is_taken(name));
    }
}
