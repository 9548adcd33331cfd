//! The processes of this computer.
#![allow(unsafe_code)]

use std::io;

use windows_sys::Win32::Foundation::{CloseHandle, ERROR_NO_MORE_FILES, INVALID_HANDLE_VALUE};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, PROCESSENTRY32W, Process32FirstW, Process32NextW, TH32CS_SNAPPROCESS,
};

use crate::device::survey::SurveyedProcess;

/// All processes, by their programs' names without `.exe`, as they are called elsewhere too.
pub(super) fn processes() -> io::Result<Vec<SurveyedProcess>> {
    // SAFETY: takes numbers; the snapshot is ours to close.
    let snapshot = unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0) };
    if snapshot == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    let mut entry =
        PROCESSENTRY32W { dwSize: size_of::<PROCESSENTRY32W>() as u32, ..PROCESSENTRY32W::default() };
    let mut processes = Vec::new();
    // SAFETY: an open snapshot, and an entry that says its length.
    let mut more = unsafe { Process32FirstW(snapshot, &mut entry) };
    while more != 0 {
        processes.push(process(&entry));
        // SAFETY: as above.
        more = unsafe { Process32NextW(snapshot, &mut entry) };
    }
    let end = io::Error::last_os_error();
    // SAFETY: the snapshot is ours and open.
    unsafe { CloseHandle(snapshot) };
    if end.raw_os_error() == Some(ERROR_NO_MORE_FILES as i32) { Ok(processes) } else { Err(end) }
}

fn process(entry: &PROCESSENTRY32W) -> SurveyedProcess {
    let len = entry.szExeFile.iter().position(|unit| *unit == 0).unwrap_or(entry.szExeFile.len());
    let name = String::from_utf16_lossy(&entry.szExeFile[..len]).to_lowercase();
    let name = name.strip_suffix(".exe").unwrap_or(&name).to_owned();
    SurveyedProcess { id: entry.th32ProcessID, name, is_here: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_among_them_without_exe() {
        let own = processes().unwrap().into_iter().find(|process| process.id == std::process::id()).unwrap();
        assert!(own.name.starts_with("windlass_dataplane") && !own.name.ends_with(".exe"), "{own:?}");
    }
}
