//! Settings of glibc's allocator. They must be made before the process starts threads.

/// Uses one heap for all threads. glibc gives threads separate heaps and does not share free memory
/// between them: with many threads, memory would grow to twice its limit. Nearly all allocations
/// happen under one lock anyway.
pub(crate) fn share_one() {
    #[cfg(target_env = "gnu")]
    set(libc::M_ARENA_MAX, 1);
}

/// Allocates payloads of up to 4 MiB from the heap, and keeps up to 16 MiB free at its end:
/// payloads are short-lived, and mapping new pages for each costs more than processing them.
pub(crate) fn keep_freed() {
    #[cfg(target_env = "gnu")]
    {
        set(libc::M_MMAP_THRESHOLD, 8 << 20);
        set(libc::M_TRIM_THRESHOLD, 16 << 20);
    }
}

#[cfg(target_env = "gnu")]
fn set(parameter: libc::c_int, value: libc::c_int) {
    // SAFETY: sets a parameter of the allocator; no other threads exist yet.
    unsafe {
        libc::mallopt(parameter, value);
    }
}
