//! nvidia-smi, which knows of NVIDIA's cards what amdgpu publishes of AMD's as files. It can hang in a sick driver, so nobody waits for it for long.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The program.
pub(crate) const PROGRAM: &str = "nvidia-smi";
/// NVIDIA among the makers of PCI devices, as Linux writes it.
pub(crate) const VENDOR: &str = "0x10de";

/// What it says to `question`, if that comes in time and is no error: `memory.used,power.draw` of one card, or of all.
pub(crate) fn ask(program: &Path, question: &str, pci: Option<&str>, patience: Duration) -> Option<String> {
    let mut child = Command::new(program)
        .arg(format!("--query-gpu={question}"))
        .arg("--format=csv,noheader,nounits")
        .args(pci.map(|pci| format!("--id={pci}")))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let asked = Instant::now();
    while asked.elapsed() < patience {
        match child.try_wait() {
            Ok(None) => thread::sleep(Duration::from_millis(20)),
            Ok(Some(status)) if status.success() => {
                let mut text = String::new();
                child.stdout.take()?.take(4096).read_to_string(&mut text).ok()?;
                return Some(text);
            }
            _ => return None,
        }
    }
    let _ = child.kill();
    // Reaps it whenever it dies; if the driver holds it for ever, this thread is all that waits.
    thread::spawn(move || child.wait());
    None
}

/// A number; `None` where a card does not tell: `[N/A]`, `[Not Supported]`.
pub(crate) fn number(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0)
}

/// Bytes, of which it writes MiB.
pub(crate) fn bytes(mib: f64) -> u64 {
    (mib * f64::from(1 << 20)) as u64
}

/// Where each card sits on the PCI bus and the bytes of its memory, of the cards that tell.
pub(crate) fn memories(program: &Path, patience: Duration) -> Vec<(String, u64)> {
    ask(program, "pci.bus_id,memory.total", None, patience).map(|text| parse_memories(&text)).unwrap_or_default()
}

fn parse_memories(text: &str) -> Vec<(String, u64)> {
    let of_line = |line: &str| {
        let (pci, mib) = line.split_once(',')?;
        Some((pci.trim().to_owned(), bytes(number(mib)?)))
    };
    text.lines().filter_map(of_line).collect()
}

/// Whether these are one place on the PCI bus: Linux writes a domain of four digits, nvidia-smi one of eight, and capital letters.
pub(crate) fn same_place(a: &str, b: &str) -> bool {
    !a.is_empty() && a.trim_start_matches('0').eq_ignore_ascii_case(b.trim_start_matches('0'))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Lets `sh` write a program of these lines: a process that another test starts has a file that is open for writing here until it is another program, and
    /// what is open for writing cannot be run.
    #[cfg(unix)]
    pub(crate) fn script(program: &Path, lines: &str) {
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\"";
        assert!(Command::new("sh").args(["-c", write]).arg(program).arg(lines).status().unwrap().success());
    }

    #[test]
    fn what_a_card_does_not_tell_is_no_number() {
        assert_eq!([" 1234", "57.5", "0"].map(number), [Some(1234.0), Some(57.5), Some(0.0)]);
        assert_eq!(["[N/A]", "[Not Supported]", "", "-1", "inf", "12 MiB"].map(number), [None; 6]);
    }

    #[test]
    fn cards_are_told_apart_by_their_places() {
        let said = "00000000:01:00.0, 24576\n00000000:0A:00.0, [N/A]\n00000001:0A:00.0, 12288\nNo more\n";
        let memories = parse_memories(said);
        let of = |pci: &str| memories.iter().find(|(place, _)| same_place(place, pci)).map(|(_, bytes)| *bytes >> 30);
        assert_eq!((of("0000:01:00.0"), of("0001:0a:00.0")), (Some(24), Some(12)));
        assert_eq!((of("0000:0a:00.0"), of("0000:02:00.0"), of("")), (None, None, None));
    }

    #[test]
    #[cfg(unix)]
    fn it_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("nvidia-smi");
        let script = |body: &str| script(&program, body);
        let patience = Duration::from_secs(10);
        script("case \"$*\" in --query-gpu=pci.bus_id,memory.total*nounits) echo '00000000:03:00.0, 8192';; *) exit 6;; esac");
        assert_eq!(memories(&program, patience), [("00000000:03:00.0".to_owned(), 8 << 30)]);
        script("echo 'No devices were found'; exit 6");
        assert!(memories(&program, patience).is_empty());
        script("exec sleep 600");
        assert_eq!(ask(&program, "power.draw", None, Duration::from_millis(50)), None);
        assert_eq!(ask(&dir.path().join("absent"), "power.draw", None, patience), None);
    }
}
