//! Seeing what leaves an interface (packet(7)).
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::sys;
use crate::wire::ethernet::Mac;

/// A packet socket on one interface that takes only what one MAC address sends to another.
pub(super) struct Capture(Socket);

impl Capture {
    /// Begins to watch.
    pub(super) fn between(interface: u32, source: Mac, destination: Mac) -> io::Result<Self> {
        // Protocol 0 takes nothing until the filter stands.
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        let word = |at: usize, mac: Mac| {
            let word = u32::from_be_bytes([mac.0[2], mac.0[3], mac.0[4], mac.0[5]]);
            [statement(LOAD_WORD, at as u32), jump_past_if_not(word)]
        };
        let [load_destination, test_destination] = word(2, destination);
        let [load_source, test_source] = word(8, source);
        let keep = statement(libc::BPF_RET | libc::BPF_K, u32::MAX);
        let drop = statement(libc::BPF_RET | libc::BPF_K, 0);
        let mut filter = [
            load_destination,
            libc::sock_filter { jf: 3, ..test_destination },
            load_source,
            libc::sock_filter { jf: 1, ..test_source },
            keep,
            drop,
        ];
        sys::attach_filter(&socket, &mut filter)?;
        bind(&socket, interface)?;
        Ok(Self(socket))
    }

    /// Length of the next frame from its Ethernet header on, in bytes; `None` when none comes in time.
    pub(super) fn next_len(&self, patience: Duration) -> io::Result<Option<usize>> {
        self.0.set_read_timeout(Some(patience))?;
        let mut start = [MaybeUninit::uninit(); 64];
        match self.0.recv_with_flags(&mut start, libc::MSG_TRUNC) {
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump_past_if_not(word: u32) -> libc::sock_filter {
    statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, word)
}

/// Of every protocol: frames that this host sends are shown to no other packet socket.
fn bind(socket: &Socket, interface: u32) -> io::Result<()> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: the storage is large enough for a sockaddr_ll, which is integers, and its length is given.
    let (_, address) = unsafe {
        socket2::SockAddr::try_init(|storage, len| {
            let address = storage.cast::<libc::sockaddr_ll>();
            (*address).sll_family = libc::AF_PACKET as libc::sa_family_t;
            (*address).sll_protocol = protocol;
            (*address).sll_ifindex = interface as libc::c_int;
            *len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })
    }?;
    socket.bind(&address)
}
