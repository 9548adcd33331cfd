//! The ring code against the stand-in for wintun.dll, which .ci/windows builds; and against the real driver, by hand.
#![allow(unsafe_code)]

use std::env;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::*;
use crate::device::ring::RingDevice;
use crate::device::windows::tables;
use crate::device::windows::wait::EventWait;
use crate::device::{OverlayDevice, Wait};
use crate::packet::{Checksum, PacketBatch};

/// The stand-in reads the environment, which is the whole process's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The stand-in with these variables, until it is dropped.
struct StandIn {
    library: Wintun,
    variables: Vec<&'static str>,
    _turn: MutexGuard<'static, ()>,
}

impl StandIn {
    /// `None`, said as SKIPPED, where there is no stand-in.
    fn with(variables: &[(&'static str, &str)]) -> Option<Self> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = env::var_os("WINDLASS_WINTUN_STAND_IN") else {
            // Past libtest, which captures what the print macros write.
            let _ =
                std::io::stderr().write_all(b"SKIPPED: no stand-in for wintun.dll (.ci/windows builds it)\n");
            return None;
        };
        for (name, value) in variables {
            // SAFETY: only these tests change the environment, one at a time, and no other test reads it.
            unsafe { env::set_var(name, value) };
        }
        // SAFETY: the stand-in has the exports of wintun.h.
        let library = unsafe { wintun::load_from_path(path) }.unwrap();
        Some(Self { library, variables: variables.iter().map(|(name, _)| *name).collect(), _turn: turn })
    }

    /// An adapter with rings as small as they can be, under a name that wine knows.
    fn open(&self) -> Result<RingDevice<WintunRings>, DeviceError> {
        let name = tables::adapters().unwrap().remove(0).name;
        let mut config = DeviceConfig::new(name, 1450, [127, 0, 0, 1].into(), 4789);
        config.ring_capacity = wintun::MIN_RING_CAPACITY;
        WintunRings::open_with(&self.library, &config).map(RingDevice)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        for name in &self.variables {
            // SAFETY: as where they were set.
            unsafe { env::remove_var(name) };
        }
    }
}

fn batch_of(packets: &[Vec<u8>]) -> PacketBatch {
    let mut batch = PacketBatch::new(packets.len(), 0);
    assert!(packets.iter().all(|packet| batch.receive_copy(packet)));
    batch
}

/// Receives until `count` packets have come.
fn receive(device: &mut RingDevice<WintunRings>, count: usize) -> Vec<Vec<u8>> {
    let event = device.0.read_event().unwrap();
    let mut wait = EventWait::new(event, std::iter::empty::<&socket2::Socket>()).unwrap();
    let mut received = Vec::new();
    let mut batch = PacketBatch::new(64, 0);
    for _ in 0..1000 {
        while device.recv_batch(&mut batch).unwrap() > 0 {
            received.extend(batch.packets.iter().map(|packet| batch.pool.bytes(packet).to_vec()));
        }
        if received.len() >= count {
            break;
        }
        wait.wait(Some(Duration::from_millis(20))).unwrap();
    }
    received
}

#[test]
fn what_is_sent_comes_back_in_order_many_times_around_the_ring() {
    let Some(stand_in) = StandIn::with(&[]) else { return };
    let mut device = stand_in.open().unwrap();
    for round in 0..400_usize {
        let packets: Vec<Vec<u8>> =
            (0..8).map(|n| vec![(round + n) as u8; 1 + (round * 37 + n * 191) % 1500]).collect();
        let batch = batch_of(&packets);
        let report = device.send_batch(&batch.pool, &batch.packets);
        assert_eq!((report.sent, report.queue_full, report.refused), (8, 0, 0));
        assert_eq!(receive(&mut device, 8), packets, "round {round}");
    }
}

#[test]
fn the_longest_packet_passes_and_a_longer_one_is_counted() {
    let Some(stand_in) = StandIn::with(&[]) else { return };
    let mut device = stand_in.open().unwrap();
    let packets = vec![vec![1; 65_535], vec![2; 65_536], vec![3; 20]];
    let batch = batch_of(&packets);
    let report = device.send_batch(&batch.pool, &batch.packets);
    assert_eq!((report.sent, report.too_long, report.sent_bytes), (2, 1, 65_555));
    assert_eq!(receive(&mut device, 2), [packets[0].clone(), packets[2].clone()]);
}

#[test]
fn a_full_ring_is_counted_and_recovers() {
    let Some(stand_in) = StandIn::with(&[("WINTUN_STAND_IN_STALL", "1")]) else { return };
    let mut device = stand_in.open().unwrap();
    let batch = batch_of(&vec![vec![7; 1400]; 120]);
    let report = device.send_batch(&batch.pool, &batch.packets);
    // 128 KiB hold 93 packets of 1,400 bytes and their lengths, with the four bytes that are always free.
    assert_eq!((report.sent, report.queue_full, report.refused), (93, 27, 0));
    drop(stand_in);
    assert_eq!(receive(&mut device, 93).len(), 93);
    assert_eq!(device.send_batch(&batch.pool, &batch.packets[..8]).sent, 8);
}

#[test]
fn a_packet_that_cannot_be_finished_does_not_hold_up_the_ring() {
    let Some(stand_in) = StandIn::with(&[]) else { return };
    let mut device = stand_in.open().unwrap();
    let mut batch = batch_of(&[vec![1; 40], vec![2; 40]]);
    batch.packets[0].checksum = Checksum::Partial { start: 60, offset: 6 };
    let report = device.send_batch(&batch.pool, &batch.packets);
    assert_eq!((report.sent, report.refused), (1, 1));
    assert_eq!(receive(&mut device, 2), [vec![0; 40], vec![2; 40]]);
}

#[test]
fn the_end_of_the_adapter_is_an_error_in_words_and_counted() {
    let Some(stand_in) = StandIn::with(&[("WINTUN_STAND_IN_END_AFTER", "3")]) else { return };
    let mut device = stand_in.open().unwrap();
    let batch = batch_of(&[vec![1; 40], vec![1; 40], vec![1; 40]]);
    assert_eq!(device.send_batch(&batch.pool, &batch.packets).sent, 3);
    let mut received = PacketBatch::new(8, 0);
    let error = loop {
        match device.recv_batch(&mut received) {
            Ok(_) => thread::sleep(Duration::from_millis(1)),
            Err(error) => break error,
        }
    };
    assert_eq!(error.to_string(), "the Wintun adapter was removed or its driver was unloaded");
    assert_eq!(device.send_batch(&batch.pool, &batch.packets).refused, 3);
}

#[test]
fn the_drivers_errors_are_told_with_their_reason() {
    for (variable, code, expected) in [
        ("WINTUN_STAND_IN_CREATE_ERROR", "5", "creating the Wintun adapter"),
        ("WINTUN_STAND_IN_CREATE_ERROR", "1460", "creating the Wintun adapter"),
        ("WINTUN_STAND_IN_SESSION_ERROR", "1450", "starting a session on the Wintun adapter"),
    ] {
        let Some(stand_in) = StandIn::with(&[(variable, code)]) else { return };
        let error = stand_in.open().err().unwrap().to_string();
        let reason = if code == "5" { "as Administrator or LocalSystem" } else { code };
        assert!(error.contains(expected) && error.contains(reason), "{variable}={code}: {error}");
    }
}

#[test]
fn rings_of_a_wrong_size_are_refused() {
    let Some(stand_in) = StandIn::with(&[]) else { return };
    let name = tables::adapters().unwrap().remove(0).name;
    let mut config = DeviceConfig::new(name, 1450, [127, 0, 0, 1].into(), 4789);
    for capacity in [0, 100_000, 200_000, 1 << 27] {
        config.ring_capacity = capacity;
        let error = WintunRings::open_with(&stand_in.library, &config).err().unwrap().to_string();
        assert!(error.contains("starting a session"), "{capacity}: {error}");
    }
}

#[test]
fn a_name_that_no_adapter_can_have_is_refused() {
    let Some(stand_in) = StandIn::with(&[]) else { return };
    for name in ["", "a/b", &"x".repeat(128)] {
        let config = DeviceConfig::new(name, 1450, [127, 0, 0, 1].into(), 4789);
        let opened = WintunRings::open_with(&stand_in.library, &config);
        assert!(matches!(opened, Err(DeviceError::BadName { .. })), "{name}");
    }
}

/// Makes a real adapter, and so needs Windows, Administrator rights and wintun.dll 0.14.1 beside the test's executable:
/// cargo test -p windlass-dataplane -- --ignored the_real_driver
#[test]
#[ignore = "needs Windows, Administrator rights and the real wintun.dll beside the test's executable"]
fn the_real_driver_makes_an_adapter_and_takes_packets() {
    let config = DeviceConfig::new("windlass-test", 1450, [127, 0, 0, 1].into(), 4789);
    let mut device = RingDevice(WintunRings::open(&config).unwrap());
    let adapters = tables::adapters().unwrap();
    assert!(adapters.iter().any(|adapter| adapter.name == "windlass-test"), "{adapters:?}");
    let batch = batch_of(&[vec![0x45; 60], vec![0x45; 60]]);
    assert_eq!(device.send_batch(&batch.pool, &batch.packets).sent, 2);
    let mut received = PacketBatch::new(64, 0);
    for _ in 0..100 {
        device.recv_batch(&mut received).unwrap();
    }
    drop(device);
    assert!(tables::adapters().unwrap().iter().all(|adapter| adapter.name != "windlass-test"));
}
