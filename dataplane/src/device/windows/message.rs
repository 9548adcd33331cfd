//! One UDP message with its control messages: WSASendMsg and WSARecvMsg.
#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::windows::io::AsRawSocket;
use std::ptr;

use socket2::{SockAddr, SockAddrStorage, Socket};
use windows_sys::Win32::Networking::WinSock::{
    LPFN_WSARECVMSG, MSG_CTRUNC, SIO_GET_EXTENSION_FUNCTION_POINTER, SOCKADDR, WSABUF, WSAID_WSARECVMSG,
    WSAIoctl, WSAMSG, WSASendMsg,
};

use super::control::Control;

/// What is known of a received message.
pub(super) struct Received {
    /// Its bytes.
    pub(super) len: usize,
    /// Where it came from; `None` for an address of another family.
    pub(super) remote: Option<SocketAddr>,
    /// TOS byte or traffic class, as far as it is told.
    pub(super) tos: u8,
    /// Bytes of each datagram that the system has joined to this message; 0 for one that is one datagram.
    pub(super) segment_len: u16,
}

/// Receives messages; the function has to be asked for.
#[derive(Clone, Copy)]
pub(super) struct Receiver(LPFN_WSARECVMSG);

impl Receiver {
    /// The function of that socket's provider.
    ///
    /// # Errors
    /// When it has none; Windows' own has.
    pub(super) fn of(socket: &Socket) -> io::Result<Self> {
        let (id, mut function, mut len) = (WSAID_WSARECVMSG, None, 0);
        let (id_len, function_len) = (size_of_val(&id) as u32, size_of::<LPFN_WSARECVMSG>() as u32);
        // SAFETY: an identifier to read and a function pointer to write, each of the length that is told.
        let result = unsafe {
            WSAIoctl(
                socket.as_raw_socket() as usize,
                SIO_GET_EXTENSION_FUNCTION_POINTER,
                ptr::from_ref(&id).cast(),
                id_len,
                ptr::from_mut::<LPFN_WSARECVMSG>(&mut function).cast(),
                function_len,
                &mut len,
                ptr::null_mut(),
                None,
            )
        };
        if result == 0 { Ok(Self(function)) } else { Err(io::Error::last_os_error()) }
    }

    /// Receives one message into `area` without waiting.
    ///
    /// # Errors
    /// The system's; WouldBlock when nothing waits.
    pub(super) fn receive(self, socket: &Socket, area: &mut [u8]) -> io::Result<Received> {
        let function = self.0.ok_or(io::ErrorKind::Unsupported)?;
        let (mut control, mut address) = (Control::new(), SockAddrStorage::zeroed());
        let mut buffer = WSABUF { len: area.len() as u32, buf: area.as_mut_ptr() };
        let room = control.room();
        let mut message = WSAMSG {
            name: ptr::from_mut(&mut address).cast(),
            namelen: size_of::<SockAddrStorage>() as i32,
            lpBuffers: &mut buffer,
            dwBufferCount: 1,
            Control: WSABUF { len: room.len() as u32, buf: room.as_mut_ptr() },
            dwFlags: 0,
        };
        let mut len = 0;
        // SAFETY: an open socket; address, buffer and control messages live during the call.
        let result = unsafe {
            function(socket.as_raw_socket() as usize, &mut message, &mut len, ptr::null_mut(), None)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let (namelen, control_len, flags) = (message.namelen, message.Control.len, message.dwFlags);
        if flags & MSG_CTRUNC == 0 {
            control.filled(control_len as usize);
        }
        let (tos, segment_len) = control.read();
        // SAFETY: the call has written an address of that length.
        let remote = unsafe { SockAddr::new(address, namelen) }.as_socket();
        Ok(Received { len: len as usize, remote, tos, segment_len })
    }
}

/// Pieces of a message, without those that are empty.
pub(super) fn pieces(bytes: [&[u8]; 2]) -> impl Iterator<Item = WSABUF> {
    let filled = bytes.into_iter().filter(|bytes| !bytes.is_empty());
    filled.map(|bytes| WSABUF { len: bytes.len() as u32, buf: bytes.as_ptr().cast_mut() })
}

/// Sends one message made of `pieces`.
///
/// # Safety
/// Each piece names bytes that live and stay unchanged during the call.
///
/// # Errors
/// The system's.
pub(super) unsafe fn send(
    socket: &Socket,
    pieces: &mut [WSABUF],
    remote: SocketAddr,
    control: &mut Control,
) -> io::Result<()> {
    let address = SockAddr::from(remote);
    let bytes = control.bytes_mut();
    let messages = match bytes.len() {
        0 => WSABUF { len: 0, buf: ptr::null_mut() },
        len => WSABUF { len: len as u32, buf: bytes.as_mut_ptr() },
    };
    let message = WSAMSG {
        name: address.as_ptr().cast::<SOCKADDR>().cast_mut(),
        namelen: address.len(),
        lpBuffers: pieces.as_mut_ptr(),
        dwBufferCount: pieces.len() as u32,
        Control: messages,
        dwFlags: 0,
    };
    let mut sent = 0;
    // SAFETY: the caller vouches for the pieces; address and control messages live during the call.
    let result =
        unsafe { WSASendMsg(socket.as_raw_socket() as usize, &message, 0, &mut sent, ptr::null_mut(), None) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
