//! The policy routing rule that sends marked packets to a table of their own, changed by netlink.
//!
//! Read first: rtnetlink(7), linux/fib_rules.h.

use std::io;

use libc::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};

use super::netlink::{Netlink, Request, family_number};
use super::routes::MARKED_TABLE;
use crate::device::host::Family;

/// The bit of a packet's, and of a connection's, mark that is ours. kube-proxy's are 0x4000 and 0x8000.
pub(super) const MARK: u32 = 0x1000_0000;

/// After the rule of local addresses (0) and before that of the main table (32766).
const PRIORITY: u32 = 7_700;

/// linux/fib_rules.h: look into a table.
const FR_ACT_TO_TBL: u8 = 1;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_FWMASK: u16 = 16;

fn request(kind: u16, flags: i32, family: Family) -> Request {
    let header = [family_number(family), 0, 0, 0, MARKED_TABLE, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
    Request::new(kind, flags | NLM_F_ACK, &header)
        .number(FRA_PRIORITY, PRIORITY)
        .number(FRA_FWMARK, MARK)
        .number(FRA_FWMASK, MARK)
}

/// Adds the rule of a family; one that is there already is no error.
pub(super) fn add(netlink: &Netlink, family: Family) -> io::Result<()> {
    match netlink.execute(request(libc::RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, family)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        added => added,
    }
}

/// Removes the rule of a family; one that is not there is no error.
pub(super) fn remove(netlink: &Netlink, family: Family) -> io::Result<()> {
    match netlink.execute(request(libc::RTM_DELRULE, 0, family)) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EAFNOSUPPORT)) => Ok(()),
        removed => removed,
    }
}
