//! Which process has which port.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::slice;

use windows_sys::Win32::Foundation::{ERROR_INSUFFICIENT_BUFFER, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GetExtendedTcpTable, GetExtendedUdpTable, MIB_TCP6ROW_OWNER_PID, MIB_TCPROW_OWNER_PID,
    MIB_UDP6ROW_OWNER_PID, MIB_UDPROW_OWNER_PID, TCP_TABLE_OWNER_PID_LISTENER, UDP_TABLE_OWNER_PID,
};
use windows_sys::Win32::Networking::WinSock::{AF_INET, AF_INET6};

use crate::device::survey::{Seen, SurveyedProcess};

/// Who has each UDP port that is bound.
pub(super) fn udp(processes: &Seen<Vec<SurveyedProcess>>) -> Seen<BTreeMap<u16, String>> {
    let table = |family: u16| {
        move |buffer: *mut _, len: &mut u32| {
            // SAFETY: `len` bytes that live during the call.
            unsafe { GetExtendedUdpTable(buffer, len, 0, family.into(), UDP_TABLE_OWNER_PID, 0) }
        }
    };
    let v4 = rows(table(AF_INET), |row: &MIB_UDPROW_OWNER_PID| (row.dwLocalPort, row.dwOwningPid));
    let v6 = rows(table(AF_INET6), |row: &MIB_UDP6ROW_OWNER_PID| (row.dwLocalPort, row.dwOwningPid));
    named("UDP", [v4, v6], processes)
}

/// Who listens on each TCP port.
pub(super) fn tcp(processes: &Seen<Vec<SurveyedProcess>>) -> Seen<BTreeMap<u16, String>> {
    let table = |family: u16| {
        move |buffer: *mut _, len: &mut u32| {
            // SAFETY: as above.
            unsafe { GetExtendedTcpTable(buffer, len, 0, family.into(), TCP_TABLE_OWNER_PID_LISTENER, 0) }
        }
    };
    let v4 = rows(table(AF_INET), |row: &MIB_TCPROW_OWNER_PID| (row.dwLocalPort, row.dwOwningPid));
    let v6 = rows(table(AF_INET6), |row: &MIB_TCP6ROW_OWNER_PID| (row.dwLocalPort, row.dwOwningPid));
    named("TCP", [v4, v6], processes)
}

/// Port, as the network has it, and process id of each row of a table: a count, then the rows.
fn rows<Row>(
    fill: impl Fn(*mut core::ffi::c_void, &mut u32) -> u32,
    of_row: impl Fn(&Row) -> (u32, u32),
) -> io::Result<Vec<(u32, u32)>> {
    const { assert!(align_of::<Row>() == 4) };
    let mut len: u32 = 16 << 10;
    loop {
        let mut buffer = vec![0_u32; (len as usize).div_ceil(4)];
        match fill(buffer.as_mut_ptr().cast(), &mut len) {
            NO_ERROR => {
                let room = (buffer.len() - 1) * 4 / size_of::<Row>();
                let count = room.min(buffer[0] as usize);
                // SAFETY: the call has written that many rows behind the count, which is as long as a row's alignment.
                let rows = unsafe { slice::from_raw_parts(buffer.as_ptr().add(1).cast::<Row>(), count) };
                return Ok(rows.iter().map(of_row).collect());
            }
            // Sockets may have come since; `len` says what they take.
            ERROR_INSUFFICIENT_BUFFER => {}
            error => return Err(io::Error::from_raw_os_error(error as i32)),
        }
    }
}

fn named(
    what: &str,
    tables: [io::Result<Vec<(u32, u32)>>; 2],
    processes: &Seen<Vec<SurveyedProcess>>,
) -> Seen<BTreeMap<u16, String>> {
    let mut holders = BTreeMap::new();
    for table in tables {
        let rows = table.map_err(|error| format!("listing {what} ports: {error}"))?;
        holders.extend(rows.into_iter().map(|(port, id)| (host_order(port), described(id, processes))));
    }
    Ok(holders)
}

/// The low two bytes of the number are the port in network order.
fn host_order(port: u32) -> u16 {
    (port as u16).swap_bytes()
}

fn described(id: u32, processes: &Seen<Vec<SurveyedProcess>>) -> String {
    let process = processes.iter().flatten().find(|process| process.id == id);
    process.map_or_else(|| format!("process {id}"), |process| format!("process {id} ({})", process.name))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::super::processes::processes;
    use super::super::wine;
    use super::*;

    #[test]
    fn this_process_has_the_ports_it_has_bound() {
        let processes = processes().map_err(|error| error.to_string());
        let own = described(std::process::id(), &processes);
        assert!(own.contains("windlass_dataplane"), "{own}");
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let bound = UdpSocket::bind(address).unwrap();
            let listening = TcpListener::bind(address).unwrap();
            let (udp, tcp) = (udp(&processes).unwrap(), tcp(&processes).unwrap());
            let holders = [
                udp.get(&bound.local_addr().unwrap().port()),
                tcp.get(&listening.local_addr().unwrap().port()),
            ];
            // wine knows the ports, and calls every process 0.
            assert!(
                holders.iter().all(|it| it.is_some_and(|it| *it == own || wine::is_wine())),
                "{holders:?}"
            );
        }
    }
}
