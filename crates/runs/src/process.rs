//! Whether a process of this machine lives, and whether it is the one that was meant.

use std::sync::OnceLock;

use sha2::{Digest, Sha256};

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

/// What tells the processes that [`is_alive`] can ask about from those of other machines and containers: a checksum of the machine's start and the
/// space of its numbers, as Linux tells them, and elsewhere of nothing.
pub(crate) fn home() -> u32 {
    static HOME: OnceLock<u32> = OnceLock::new();
    *HOME.get_or_init(|| {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let digest = Sha256::digest([&boot, space.as_os_str().as_encoded_bytes()].concat());
        u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
    })
}

/// What tells a process from any other that ever has its number: the machine's start and when in it the process began, as Linux tells. `None` for
/// nobody, for one that has ended and was not waited for, and on other systems.
pub fn began(pid: u32) -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(format!("{} {}", boot.trim(), start_time(&stat)?))
}

/// Whether a process is suspended, as by Ctrl-Z: it hears no signal until it goes on. Known on Linux alone.
pub fn is_suspended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind a name in parentheses, which may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with("T "))
}

/// Field 22 of a `stat`, if the process has not ended (proc(5)).
fn start_time(stat: &str) -> Option<&str> {
    // The second field, a name in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    fields.nth(18).filter(|_| !["Z", "X"].contains(&state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_alone_is_nobody() {
        let rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(start_time(&format!("7 (a) S (b) S {rest}")), Some("4711"));
        assert_eq!(start_time(&format!("7 (a) Z {rest}")), None, "it has ended");
        assert_eq!(start_time("7 (a) S 1 2"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_is_itself_until_it_ends() {
        let own = began(std::process::id());
        assert!(own.is_some() && own == began(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let asked = std::time::Instant::now();
        while began(child.id()).is_some() && asked.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(is_alive(child.id()) && began(child.id()).is_none(), "it has ended and was not waited for");
        child.wait().unwrap();
    }
}
