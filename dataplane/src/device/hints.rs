//! Two hints about memory. They change no value, only how long it takes to get it.
#![allow(unsafe_code)]

/// Asks for 2 MB pages for memory that has not been written yet. Tables of many megabytes that are looked at here and
/// there miss the TLB on nearly every look otherwise. What the system does not grant costs nothing.
#[cfg(target_os = "linux")]
pub(crate) fn advise_huge<T>(memory: &mut [T]) {
    let page = HUGE_PAGE_LEN;
    let start = (memory.as_mut_ptr() as usize).next_multiple_of(page);
    let end = memory.as_mut_ptr_range().end as usize / page * page;
    if start < end {
        // SAFETY: the whole pages of a slice that is borrowed mutably. The advice changes nothing that is stored.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

/// Only Linux is asked: elsewhere large pages need privileges, or come by themselves.
#[cfg(not(target_os = "linux"))]
pub(crate) fn advise_huge<T>(_memory: &mut [T]) {}

#[cfg(target_os = "linux")]
const HUGE_PAGE_LEN: usize = 2 << 20;

/// Begins to fetch the cache lines of `value`, which is about to be needed.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..size_of::<T>()).step_by(64) {
        let line = std::ptr::from_ref(value).cast::<i8>().wrapping_add(offset);
        // SAFETY: a prefetch of any address whatever does nothing but touch the cache.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_change_no_value() {
        let mut memory: Vec<u64> = (0..1 << 20).collect();
        advise_huge(&mut memory);
        advise_huge::<u64>(&mut []);
        prefetch(&memory[1 << 19]);
        assert!(memory.iter().copied().eq(0..1 << 20));
    }
}
