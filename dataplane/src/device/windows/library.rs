//! wintun.dll: which file it must be, and that it is that file before any of it runs.
#![allow(unsafe_code)]

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::ptr;

use windows_sys::Win32::Security::Cryptography::{BCRYPT_SHA256_ALG_HANDLE, BCryptHash};
use windows_sys::Win32::Security::WinTrust::{
    WINTRUST_ACTION_GENERIC_VERIFY_V2, WINTRUST_DATA, WINTRUST_DATA_0, WINTRUST_FILE_INFO, WTD_CHOICE_FILE,
    WTD_REVOKE_NONE, WTD_STATEACTION_CLOSE, WTD_STATEACTION_VERIFY, WTD_UI_NONE, WinVerifyTrust,
};
use windows_sys::Win32::Storage::FileSystem::FILE_SHARE_READ;
use wintun::Wintun;

use super::wine;
use crate::device::config::DeviceError;

/// SHA-256 of the amd64 wintun.dll of release 0.14.1.
pub(super) const SHA256: &str = "e5da8447dc2c320edc0fc52fa01885c103de8c118481f683643cacc3220dafce";

/// Where it comes from, and which file of it.
const REMEDY: &str = "download https://www.wintun.net/builds/wintun-0.14.1.zip (SHA-256 \
                      07c256185d6ee3652e09fa55c0b673e2624b565e02c4b9091c79ca7d2f24ef51) and put its \
                      wintun/bin/amd64/wintun.dll beside windlass.exe";

/// The longest file that is read; the right one has 427,552 bytes.
const MAX_LEN: u64 = 16 << 20;

/// Why the file is not loaded.
#[derive(Debug, thiserror::Error)]
enum Distrust {
    #[error("missing or unreadable ({0})")]
    Unreadable(io::Error),
    #[error("its SHA-256 is {found}, and that of Wintun 0.14.1 for amd64 is {SHA256}")]
    OtherFile { found: String },
    #[error("its signature is not valid on this computer (WinVerifyTrust says {0:#010x})")]
    Unsigned(i32),
}

/// Loads wintun.dll by its absolute path beside this program, after its hash and its signature were found right. Nobody
/// can replace the file in between: it is held open and shared for reading only. Under wine it is a stand-in, and not
/// verified.
///
/// # Errors
/// When it is missing, another file, not signed, or cannot be loaded; with what to download.
pub(super) fn load() -> Result<Wintun, DeviceError> {
    let path = beside_program()?;
    let failed = |reason: String| DeviceError::Library { library: path.display().to_string(), reason };
    let _held = verify(&path).map_err(|why| failed(format!("{why}; {REMEDY}")))?;
    // SAFETY: it is Wintun's own release, or, under wine, what a test has put there.
    unsafe { wintun::load_from_path(&path) }.map_err(|error| failed(error.to_string()))
}

/// Whether the library could be loaded, without loading it.
///
/// # Errors
/// With what is wrong and what to do.
pub(super) fn check() -> Result<(), String> {
    let path = beside_program().map_err(|error| error.to_string())?;
    match verify(&path) {
        Ok(_) => Ok(()),
        Err(why) => Err(format!("{}: {why}; {REMEDY}", path.display())),
    }
}

fn beside_program() -> Result<PathBuf, DeviceError> {
    let program = env::current_exe().map_err(|error| DeviceError::system("finding windlass.exe", error))?;
    Ok(program.with_file_name("wintun.dll"))
}

fn verify(path: &Path) -> Result<File, Distrust> {
    let file = OpenOptions::new().read(true).share_mode(FILE_SHARE_READ).open(path);
    let mut file = file.map_err(Distrust::Unreadable)?;
    if wine::is_wine() {
        return Ok(file);
    }
    expect_hash(&mut file)?;
    expect_signature(&file, path)?;
    Ok(file)
}

fn expect_hash(file: &mut File) -> Result<(), Distrust> {
    let mut bytes = Vec::new();
    file.take(MAX_LEN).read_to_end(&mut bytes).map_err(Distrust::Unreadable)?;
    let found = sha256(&bytes).map_err(Distrust::Unreadable)?;
    if found == SHA256 { Ok(()) } else { Err(Distrust::OtherFile { found }) }
}

/// In lower-case hexadecimal digits.
fn sha256(bytes: &[u8]) -> io::Result<String> {
    let mut hash = [0_u8; 32];
    let len = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: `len` bytes to read, 32 to write, no secret.
    let status = unsafe {
        BCryptHash(BCRYPT_SHA256_ALG_HANDLE, ptr::null(), 0, bytes.as_ptr(), len, hash.as_mut_ptr(), 32)
    };
    if status != 0 {
        return Err(io::Error::other(format!("BCryptHash failed with {status:#010x}")));
    }
    Ok(hash.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Authenticode, without asking the network: certificate revocation is not looked up at the start of a node.
fn expect_signature(file: &File, path: &Path) -> Result<(), Distrust> {
    let name: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
    let mut info = WINTRUST_FILE_INFO {
        cbStruct: size_of::<WINTRUST_FILE_INFO>() as u32,
        pcwszFilePath: name.as_ptr(),
        hFile: file.as_raw_handle(),
        pgKnownSubject: ptr::null_mut(),
    };
    let mut data = WINTRUST_DATA {
        cbStruct: size_of::<WINTRUST_DATA>() as u32,
        dwUIChoice: WTD_UI_NONE,
        fdwRevocationChecks: WTD_REVOKE_NONE,
        dwUnionChoice: WTD_CHOICE_FILE,
        Anonymous: WINTRUST_DATA_0 { pFile: &mut info },
        dwStateAction: WTD_STATEACTION_VERIFY,
        ..WINTRUST_DATA::default()
    };
    let mut action = WINTRUST_ACTION_GENERIC_VERIFY_V2;
    let mut ask = |data: &mut WINTRUST_DATA| {
        // SAFETY: both structures live during the call, and what they point to does too.
        unsafe { WinVerifyTrust(ptr::null_mut(), &mut action, ptr::from_mut(data).cast()) }
    };
    let status = ask(&mut data);
    data.dwStateAction = WTD_STATEACTION_CLOSE;
    ask(&mut data);
    if status == 0 { Ok(()) } else { Err(Distrust::Unsigned(status)) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_hash_is_as_fips_180_gives_it() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc").unwrap(), expected);
    }

    /// The crate wintun brings the release with it, and .ci/windows names it.
    #[test]
    fn the_pinned_release_has_the_pinned_hash() {
        let Some(path) = env::var_os("WINDLASS_WINTUN_RELEASE") else {
            // Past libtest, which captures what the print macros write.
            let _ = io::stderr().write_all(b"SKIPPED: WINDLASS_WINTUN_RELEASE names no wintun.dll\n");
            return;
        };
        expect_hash(&mut File::open(path).unwrap()).unwrap();
    }

    #[test]
    fn another_file_is_refused_by_its_hash_and_named_by_it() {
        let program = env::current_exe().unwrap();
        let error = expect_hash(&mut File::open(&program).unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("its SHA-256 is ") && error.contains(SHA256), "{error}");
    }

    #[test]
    fn a_file_without_a_signature_is_refused() {
        let program = env::current_exe().unwrap();
        let error = expect_signature(&File::open(&program).unwrap(), &program).unwrap_err();
        assert!(matches!(error, Distrust::Unsigned(_)), "{error}");
    }

    #[test]
    fn a_missing_file_is_named_with_what_to_download() {
        let error = check().unwrap_err();
        assert!(error.contains("wintun.dll: missing") && error.contains("wintun-0.14.1.zip"), "{error}");
    }
}
