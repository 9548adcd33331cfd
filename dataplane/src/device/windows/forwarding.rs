//! Whether an adapter forwards. wine has no such call.
#![allow(unsafe_code)]

use std::io;

use windows_sys::Win32::Foundation::{ERROR_NOT_FOUND, NO_ERROR, WIN32_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::MIB_IPINTERFACE_ROW;
use windows_sys::Win32::NetworkManagement::Ndis::NET_LUID_LH;

use super::{dynamic, sockaddr, tables};
use crate::device::host::Family;
use crate::device::survey::{Seen, SurveyedForwarding};

/// Every adapter's setting, for the families it has.
pub(super) fn survey() -> Seen<Vec<SurveyedForwarding>> {
    let unseen = |error: io::Error| format!("asking whether adapters forward: {error}");
    let get = Get::resolve().map_err(unseen)?;
    let mut found = Vec::new();
    for adapter in tables::adapters().map_err(unseen)? {
        for family in [Family::V4, Family::V6] {
            if let Some(is_on) = get.forwards(adapter.luid, family).map_err(unseen)? {
                found.push(SurveyedForwarding { interface: adapter.name.clone(), family, is_on });
            }
        }
    }
    Ok(found)
}

struct Get {
    initialize: unsafe extern "system" fn(*mut MIB_IPINTERFACE_ROW),
    get: unsafe extern "system" fn(*mut MIB_IPINTERFACE_ROW) -> WIN32_ERROR,
}

impl Get {
    fn resolve() -> io::Result<Self> {
        let library = dynamic::system_library("iphlpapi.dll")?;
        // SAFETY: the fields' types are those that netioapi.h declares for these names.
        unsafe {
            Ok(Self {
                initialize: dynamic::function(library, c"InitializeIpInterfaceEntry")?,
                get: dynamic::function(library, c"GetIpInterfaceEntry")?,
            })
        }
    }

    /// `None` where the adapter lacks the family.
    fn forwards(&self, luid: u64, family: Family) -> io::Result<Option<bool>> {
        let mut row = MIB_IPINTERFACE_ROW::default();
        // SAFETY: a row of the function's type.
        unsafe { (self.initialize)(&mut row) };
        row.Family = sockaddr::family_number(family);
        row.InterfaceLuid = NET_LUID_LH { Value: luid };
        // SAFETY: as above.
        match unsafe { (self.get)(&mut row) } {
            NO_ERROR => Ok(Some(row.ForwardingEnabled)),
            ERROR_NOT_FOUND => Ok(None),
            error => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }
}
