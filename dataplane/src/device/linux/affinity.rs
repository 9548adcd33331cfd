//! Which CPUs threads run on.
#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;

use super::sys;

/// The CPUs this process may run on, in order: those that exist, less what a cpuset takes.
///
/// # Errors
/// The system's.
pub fn usable_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: a cpu_set_t is an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: the set lives during the call, and its size is given.
    sys::check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } as isize)?;
    let cpus = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: every number is below the size of the set.
    Ok(cpus.filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
}

/// Keeps the calling thread on one CPU.
///
/// # Errors
/// When this process may not run there.
pub fn stay_on(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: a cpu_set_t is an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: the number is below the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set lives during the call, and its size is given.
    sys::check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) } as isize)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_where_it_is_put_and_nowhere_else() {
        let last = *usable_cpus().unwrap().last().unwrap();
        let stays = move || {
            stay_on(last).unwrap();
            usable_cpus().unwrap()
        };
        assert_eq!(std::thread::spawn(stays).join().unwrap(), [last]);
        assert!(stay_on(1023).is_err() && stay_on(1 << 20).is_err(), "there is no such CPU");
    }
}
