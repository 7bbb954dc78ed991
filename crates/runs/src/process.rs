//! Whether a process of this machine lives.

/// Whether there is a process of this number.
#[cfg(unix)]
pub fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    // A process of another user may not be asked, and is there.
    pid.is_some_and(|pid| !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH)))
}

/// Not known here: the run lock is what keeps a live owner out.
#[cfg(not(unix))]
pub fn is_alive(_pid: u32) -> bool {
    false
}
