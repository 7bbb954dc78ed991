//! The report for a user whose GPU is not used, or not trusted: everything this crate looks at, on one page.

use crate::adapter::{Adapter, AdapterKind, Backend};
use crate::checks::{HALF_TOLERANCE, TOLERANCE};
use crate::facts::{self, Facts, Kfd};
use crate::known_issues::{Known, known};
use crate::options::ProbeOptions;
use crate::probe;
use crate::report::{PathReport, ProbeReport, Verdict};
use crate::select::{Selected, select};
use crate::{DeviceError, DeviceRequest};
use std::io::{self, Write};

/// Writes adapters, drivers, memory, the variables that matter, known issues and the probe's stage table to `out`.
///
/// Probes the device `request` stands for, unless a verdict is remembered.
///
/// # Errors
/// Only those of `out`: what fails on the machine is part of the report.
pub fn doctor(request: &DeviceRequest, options: &ProbeOptions, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "CPU         {}", facts::machine())?;
    writeln!(out, "features    {}", facts::cpu_features().join(" "))?;
    let adapters = write_adapters(options, out)?;
    let facts = Facts::of_this_machine(&adapters);
    let rocm = facts.rocm || matches!(request, DeviceRequest::Rocm(_));
    let cuda = facts.cuda || matches!(request, DeviceRequest::Cuda(_));
    let facts = Facts { rocm, cuda, work: options.work, ..facts };
    write_facts(&facts, out)?;
    writeln!(out, "\nknown issues")?;
    write_issues(&facts, out)?;
    writeln!(out, "\n--device {request}")?;
    match select(request, options) {
        Ok(selected) => write_selected(&selected, out),
        Err(error) => {
            if let DeviceError::Probe(report) = &error {
                write_report(report, out)?;
            }
            writeln!(out, "  `--device {request}` fails: {error}")
        }
    }
}

fn write_adapters(options: &ProbeOptions, out: &mut dyn Write) -> io::Result<Vec<Adapter>> {
    let mut all = Vec::new();
    for backend in Backend::GPUS {
        if !backend.built() {
            writeln!(out, "{:<11} not built in (--features {backend})", backend.name())?;
            continue;
        }
        match probe::list(backend, options) {
            Ok(adapters) if adapters.is_empty() => writeln!(out, "{:<11} no adapter found", backend.name())?,
            Ok(adapters) => {
                for adapter in &adapters {
                    write_adapter(adapter, out)?;
                }
                all.extend(adapters);
            }
            Err(reason) => writeln!(out, "{:<11} listing failed: {reason}", backend.name())?,
        }
    }
    Ok(all)
}

fn write_adapter(adapter: &Adapter, out: &mut dyn Write) -> io::Result<()> {
    let device = format!("{}:{}", adapter.backend, adapter.index);
    writeln!(
        out,
        "{device:<11} {} [{}]{}",
        adapter.name,
        adapter.kind,
        if adapter.kind == AdapterKind::Software { ", used only if named" } else { "" }
    )?;
    writeln!(out, "{:<11} driver {}", "", adapter.driver)?;
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let memory = adapter.memory.map_or("unknown".to_owned(), gib);
    let buffer = if adapter.max_buffer == 0 { "unknown".to_owned() } else { gib(adapter.max_buffer) };
    let pci = if adapter.pci.is_empty() { "none" } else { &adapter.pci };
    writeln!(out, "{:<11} memory {memory}, largest buffer {buffer}, PCI {pci} [{:04x}:{:04x}]", "", adapter.id.0, adapter.id.1)
}

fn write_facts(facts: &Facts, out: &mut dyn Write) -> io::Result<()> {
    if !facts.gfx.is_empty() {
        let names: Vec<String> = facts.gfx.iter().map(|v| format!("gfx{}{:x}{:x}", v / 10_000, v / 100 % 100, v % 100)).collect();
        writeln!(out, "AMD GPUs    {}", names.join(" "))?;
    }
    let kfd = match facts.kfd {
        Kfd::Missing => "missing",
        Kfd::Denied => "no permission",
        Kfd::Usable => "usable",
    };
    writeln!(out, "/dev/kfd    {kfd}")?;
    writeln!(out, "ROCm        {}", facts.rocm_version.as_deref().unwrap_or("not found in /opt/rocm"))?;
    writeln!(out, "\nenvironment")?;
    for (name, value) in &facts.variables {
        writeln!(out, "  {name}={value}")?;
    }
    if facts.variables.is_empty() {
        writeln!(out, "  no variable set that changes how drivers behave")?;
    }
    Ok(())
}

/// Each known issue, and below it who says so.
fn write_issues(facts: &Facts, out: &mut dyn Write) -> io::Result<()> {
    let mut none = true;
    for Known { sentence, sources } in known(facts) {
        none = false;
        writeln!(out, "  - {sentence}\n    {}", sources.join(" "))?;
    }
    if none { writeln!(out, "  none for this machine") } else { Ok(()) }
}

fn write_selected(selected: &Selected, out: &mut dyn Write) -> io::Result<()> {
    if let Some(report) = &selected.report {
        write_report(report, out)?;
    }
    writeln!(out, "  trains on {} ({})", selected.name, selected.backend)?;
    if let Some(reason) = &selected.fallback {
        writeln!(out, "  because {reason}")?;
    }
    if let Some(speed) = selected.report.as_ref().and_then(ProbeReport::speed) {
        writeln!(out, "  speed: {speed}")?;
    }
    write!(out, "  {}: {}", selected.noun(), selected.way())?;
    match &selected.lowering_reason {
        Some(reason) => writeln!(out, ", because {reason}"),
        None => writeln!(out),
    }
}

/// The stage table of both paths.
fn write_report(report: &ProbeReport, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "  probe of {}{}", report.adapter, if report.cached { ", remembered (--reprobe does it again)" } else { "" })?;
    write!(out, "  errors are relative to the CPU's largest number, {TOLERANCE:.0e} is allowed")?;
    writeln!(out, "{}", if report.work.half() { format!(", {HALF_TOLERANCE:.0e} in f16") } else { String::new() })?;
    if let Some(units) = report.matrix_units() {
        writeln!(out, "  matrix units: {}", if units.is_empty() { "none".to_owned() } else { units.join(", ") })?;
    }
    let tuned: Vec<String> = report.tuned().map(|(class, [rows, cols, ..])| format!("{} {rows}x{cols}", class.name())).collect();
    if !tuned.is_empty() {
        writeln!(out, "  blocks: {}", tuned.join(", "))?;
    }
    writeln!(out, "  {:<15} {:>5} {:>9} {:>10}", "stage", "steps", "seconds", "max error")?;
    for (lowering, path) in report.paths() {
        for stage in &path.stages {
            let error = stage.max_error.map_or("-".to_owned(), |error| format!("{error:.1e}"));
            writeln!(out, "  {:<15} {:>5} {:>9.2} {error:>10}", stage.stage, stage.steps, stage.seconds)?;
        }
        write!(out, "  {} {}: ", report.work.name_of(lowering), report.work.noun())?;
        write_verdict(path, out)?;
    }
    Ok(())
}

fn write_verdict(path: &PathReport, out: &mut dyn Write) -> io::Result<()> {
    match &path.verdict {
        Verdict::Pass if path.attempts > 1 => writeln!(out, "passed at the second attempt, the first one crashed"),
        Verdict::Pass => writeln!(out, "passed"),
        Verdict::Skipped { reason } => writeln!(out, "{reason}"),
        Verdict::Fail { stage, reason } => {
            writeln!(out, "FAILED at {stage}: {reason}")?;
            let lines: Vec<&str> = path.stderr.lines().collect();
            lines[lines.len().saturating_sub(10)..].iter().try_for_each(|line| writeln!(out, "    {line}"))
        }
    }
}
