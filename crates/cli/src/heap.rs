//! How this program's heap is managed, where that is glibc's. To be said before there are other threads.

/// There is one for all threads. glibc gives threads heaps of their own, and what is free in one is not used for another: with many threads,
/// memory would grow to twice its bound. Nearly all is allocated under one lock anyway.
pub(crate) fn share_one() {
    #[cfg(target_env = "gnu")]
    set(libc::M_ARENA_MAX, 1);
}

/// Payloads, of up to 4 MiB, are parts of it, and what is free at its end is kept, up to 16 MiB: they come and go, and pages that are new each
/// time cost more than what is done with them.
pub(crate) fn keep_freed() {
    #[cfg(target_env = "gnu")]
    {
        set(libc::M_MMAP_THRESHOLD, 8 << 20);
        set(libc::M_TRIM_THRESHOLD, 16 << 20);
    }
}

#[cfg(target_env = "gnu")]
fn set(parameter: libc::c_int, value: libc::c_int) {
    // SAFETY: it sets a number of the allocator's; there are no other threads yet.
    unsafe {
        libc::mallopt(parameter, value);
    }
}
