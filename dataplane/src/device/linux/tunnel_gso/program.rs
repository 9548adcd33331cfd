//! The BPF program that passes on what is written to the TAP, and its attachment by TCX.
//!
//! Sources: Documentation/bpf/standardization/instruction-set.rst, linux/bpf.h, net/core/filter.c.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use super::{Unavailable, Uplink};
use crate::device::linux::sys;
use crate::wire::ethernet;

/// `bpf_redirect`: out of an interface, with the Ethernet header as it is.
pub(super) const REDIRECT: i32 = 23;

/// `bpf_redirect_neigh`: out of an interface, to the neighbor that the host's routes name.
pub(super) const REDIRECT_NEIGHBOR: i32 = 152;

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_INGRESS: u32 = 46;

/// Where `struct __sk_buff` has the EtherType, in network byte order.
const PROTOCOL: i16 = 16;

/// No helper that is called here is for GPL programs only.
const LICENCE: &std::ffi::CStr = c"MIT OR Apache-2.0";

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// The attributes of BPF_PROG_LOAD, as far as they are used.
#[repr(C)]
#[derive(Default)]
struct Load {
    program_type: u32,
    instructions_len: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_len: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// The attributes of BPF_LINK_CREATE, as far as they are used.
#[repr(C)]
#[derive(Default)]
struct Link {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// Passes what comes in on interface `tap` to the uplink of its family by that helper, until the result is dropped.
pub(super) fn attach(tap: u32, uplinks: &[Uplink], helper: i32) -> Result<OwnedFd, Unavailable> {
    let index_of = |ipv4: bool| {
        let found = uplinks.iter().find(|uplink| uplink.address.is_ipv4() == ipv4);
        found.map_or(0, |uplink: &Uplink| uplink.index as i32)
    };
    let program = load(&instructions(index_of(true), index_of(false), helper))
        .map_err(|error| Unavailable::system("loading a BPF program (needs CAP_BPF)", error))?;
    let attributes =
        Link { program: program.as_raw_fd() as u32, interface: tap, attach_type: BPF_TCX_INGRESS, flags: 0 };
    // SAFETY: the attributes are plain integers.
    unsafe { bpf(BPF_LINK_CREATE, &attributes) }
        .map_err(|error| Unavailable::system("attaching a BPF program by TCX", error))
}

/// `return helper(skb->protocol == IPv4 ? ipv4 : ipv6, 0, 0, 0)`.
fn instructions(ipv4: i32, ipv6: i32, helper: i32) -> [Instruction; 9] {
    const LOAD_WORD: u8 = 0x61;
    const MOVE: u8 = 0xb7;
    const JUMP_IF_EQUAL: u8 = 0x15;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    let step = |code, registers, offset, immediate| Instruction { code, registers, offset, immediate };
    [
        step(LOAD_WORD, 0x12, PROTOCOL, 0),
        step(MOVE, 1, 0, ipv4),
        step(JUMP_IF_EQUAL, 2, 1, i32::from(ethernet::IPV4.to_be())),
        step(MOVE, 1, 0, ipv6),
        step(MOVE, 2, 0, 0),
        step(MOVE, 3, 0, 0),
        step(MOVE, 4, 0, 0),
        step(CALL, 0, 0, helper),
        step(EXIT, 0, 0, 0),
    ]
}

fn load(instructions: &[Instruction]) -> std::io::Result<OwnedFd> {
    let attributes = Load {
        program_type: BPF_PROG_TYPE_SCHED_CLS,
        instructions_len: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        licence: LICENCE.as_ptr() as u64,
        ..Load::default()
    };
    // SAFETY: the addresses are those of a slice and a string that live during the call, with the slice's length.
    unsafe { bpf(BPF_PROG_LOAD, &attributes) }
}

/// A bpf(2) call that returns a descriptor.
///
/// # Safety
/// Addresses among the attributes must be valid during the call.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> std::io::Result<OwnedFd> {
    let pointer: *const T = attributes;
    // SAFETY: the attributes live during the call and their size is given; the kernel takes what follows as zero.
    let descriptor = unsafe { libc::syscall(libc::SYS_bpf, command, pointer, size_of::<T>()) };
    sys::owned(descriptor as libc::c_int)
}
