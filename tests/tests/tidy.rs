//! The rules of the house that a compiler does not check: file sizes, who may call whom, who may name a backend.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "imports/mod.rs"]
mod imports;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const MAX_LINES: usize = 700;
/// Of `kernels`, without tests and what is only for GPUs.
const MAX_KERNELS: usize = 12_000;
/// An example that is longer says that the public interface is awkward.
const MAX_EXAMPLE: usize = 150;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn sources(dir: &Path, out: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            out.push((path, text));
        }
    }
}

fn all_sources() -> Vec<(PathBuf, String)> {
    let mut out = Vec::new();
    sources(&root().join("crates"), &mut out);
    sources(&root().join("tests"), &mut out);
    assert!(out.len() > 20, "the sources were not found");
    out
}

#[test]
fn files_are_small_and_open_with_an_essay() {
    let sources = all_sources();
    let long: Vec<_> = sources.iter().filter(|(_, text)| text.lines().count() > MAX_LINES).map(|(path, _)| path).collect();
    assert!(long.is_empty(), "over {MAX_LINES} lines: {long:?}");
    let mut lines: Vec<usize> = sources.iter().map(|(_, text)| text.lines().count()).collect();
    lines.sort_unstable();
    assert!(lines[lines.len() / 2] <= 250, "the median file has {} lines", lines[lines.len() / 2]);
    let examples: Vec<_> = sources.iter().filter(|(path, _)| path.components().any(|c| c.as_os_str() == "examples")).collect();
    assert!(!examples.is_empty(), "the examples were not found");
    let long: Vec<_> = examples.iter().filter(|(_, text)| text.lines().count() >= MAX_EXAMPLE).map(|(path, _)| path).collect();
    assert!(long.is_empty(), "examples of {MAX_EXAMPLE} lines or more: {long:?}");
    let silent: Vec<_> = sources.iter().filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| path).collect();
    assert!(silent.is_empty(), "files that do not say what they are: {silent:?}");
}

/// Lines without tests: items behind `#[cfg(test)]` or `#[test]` are left out.
fn lines_without_tests(text: &str) -> usize {
    let (mut count, mut in_test, mut opened, mut depth) = (0, false, false, 0_isize);
    for line in text.lines().map(str::trim) {
        let begins = ["#[cfg(test)]", "#[cfg(all(test", "#[test]"].iter().any(|word| line.starts_with(word));
        if !in_test && begins {
            (in_test, opened, depth) = (true, false, 0);
        } else if !in_test {
            count += 1;
        } else if !line.starts_with("#[") || opened {
            opened |= line.contains('{');
            depth += line.matches('{').count() as isize - line.matches('}').count() as isize;
            in_test = if opened { depth > 0 } else { !line.ends_with([';', ',']) };
        }
    }
    count
}

/// The crate that is easiest to let grow (decision 7).
#[test]
fn the_kernels_of_the_processor_stay_few() {
    assert_eq!(lines_without_tests("a\n#[test]\nfn b() {\n    c {}\n}\nd\n#[cfg(test)]\n#[allow(x)]\nmod tests;\ne\n"), 3);
    let src = root().join("crates/kernels/src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let counted = files.iter().filter(|(path, _)| {
        let path = path.strip_prefix(&src).unwrap().to_str().unwrap();
        !(path.ends_with("tests.rs") || path.contains("cube") || path.ends_with("reference.rs"))
    });
    let lines: usize = counted.map(|(_, text)| lines_without_tests(text)).sum();
    assert!((10_000..=MAX_KERNELS).contains(&lines), "{lines} lines of kernels for the processor");
}

/// crate -> crates of ours it may depend on, dev-dependencies aside.
fn allowed() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        ("chat", &["exit", "runs", "shards"][..]),
        ("cli", &["device", "exit", "learner", "mpi", "ranks", "runs", "settings"][..]),
        ("device", &["exit", "kernels", "runs", "weights"][..]),
        ("exit", &[][..]),
        ("kernels", &[][..]),
        ("mpi", &["exit", "ranks"][..]),
        ("plots", &[][..]),
        ("ranks", &["exit"][..]),
        ("runs", &["exit"][..]),
        ("settings", &["exit"][..]),
        ("shards", &["exit", "runs"][..]),
        ("weights", &["exit", "runs"][..]),
        ("learner", &["exit", "kernels", "ranks", "runs", "weights"][..]),
        ("qwen", &["chat", "exit", "kernels", "learner", "plots", "runs", "settings", "weights"][..]),
        ("yolo", &["exit", "kernels", "learner", "plots", "runs", "settings", "shards", "weights"][..]),
        ("llm-finetune", &["chat", "cli", "device", "exit", "learner", "qwen", "runs", "settings", "weights"][..]),
        ("yolo-train", &["cli", "device", "exit", "kernels", "learner", "runs", "settings", "yolo"][..]),
    ])
}

#[test]
fn dependencies_point_one_way() {
    let allowed = allowed();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let may = allowed.get(name.as_str()).unwrap_or_else(|| panic!("crate {name} has no place in the house yet"));
        let manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap();
        let normal = manifest.split("\n[dependencies]").nth(1).unwrap_or("").split("\n[").next().unwrap();
        for line in normal.lines().filter_map(|l| l.strip_prefix("bellows-")) {
            let on = line.split(['.', ' ', '=']).next().unwrap();
            assert!(may.contains(&on), "crates/{name} may not depend on {on}");
        }
    }
}

/// Where the tests of a crate are one program, a file that its list leaves out would never run.
#[test]
fn every_file_of_tests_is_in_a_program() {
    let crates = std::fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for home in crates.chain([root().join("tests")]) {
        let Ok(main) = std::fs::read_to_string(home.join("tests/main.rs")) else { continue };
        let manifest = std::fs::read_to_string(home.join("Cargo.toml")).unwrap();
        for entry in std::fs::read_dir(home.join("tests")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let listed = main.contains(&format!("\nmod {name};")) || manifest.contains(&format!("\nname = \"{name}\"\n"));
            assert!(path.extension().is_none_or(|e| e != "rs") || name == "main" || listed, "{} is in no program", path.display());
        }
    }
}

/// Another version would be fetched anew in every build of the image.
#[test]
fn the_image_has_the_compiler_of_the_workspace() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"')).unwrap();
    assert!(read("deploy/Containerfile").contains(&format!("/rust:{channel}-")), "deploy/Containerfile is not of Rust {channel}");
}

/// Two files that need each other are one, or hide a third that both need.
#[test]
fn no_circle_of_files() {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let src = entry.unwrap().path().join("src");
        let mut files = Vec::new();
        sources(&src, &mut files);
        let relative = |(path, text): (PathBuf, String)| (path.strip_prefix(&src).unwrap().to_str().unwrap().replace('\\', "/"), text);
        let files: Vec<(String, String)> = files.into_iter().map(relative).collect();
        found.extend(imports::circles(&files).into_iter().map(|circle| format!("{}: {circle}", src.display())));
    }
    assert!(found.is_empty(), "files that use each other:\n{}", found.join("\n"));
}

#[test]
fn only_device_and_kernels_name_a_backend_and_only_a_few_files_are_unsafe() {
    let backends =
        ["Device::flex", "Device::vulkan", "Device::cuda", "Device::rocm", "Device::metal", "Device::wgpu", "burn_flex", "burn_wgpu"];
    // One file per instruction set, and what is written once for several; the keeper of a tensor's memory, and what gives it back to the system; the launches whose indices are found to fit; the one call that maps a file.
    let sets = ["amx.rs", "avx2.rs", "avx512.rs", "avx512_bf16.rs", "neon.rs"].map(|file| format!("crates/kernels/src/cpu/simd/{file}"));
    let others = [
        "crates/kernels/src/cpu/simd/text.rs",
        "crates/kernels/src/buffers/heap.rs",
        "crates/kernels/src/buffers/pooled.rs",
        "crates/kernels/src/attention/cube.rs",
        "crates/kernels/src/cube/group.rs",
        "crates/kernels/src/cube/join.rs",
        "crates/kernels/src/cube/launch.rs",
        "crates/kernels/src/cube/matmul.rs",
        "crates/kernels/src/maps/cube.rs",
        "crates/kernels/src/products/cube.rs",
        "crates/kernels/src/products/cube_few.rs",
        "crates/weights/src/map.rs",
    ];
    let page = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let unnamed = others.iter().find(|path| !page.contains(&format!("`{}`", path.trim_start_matches("crates/"))));
    assert_eq!(unnamed, None, "docs/architecture.md does not name it");
    for (path, text) in all_sources() {
        let inside = |dir: &str| path.starts_with(root().join(dir));
        if inside("tests") || path.components().any(|c| c.as_os_str() == "tests" || c.as_os_str() == "examples") {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        if !inside("crates/device") && !inside("crates/kernels") {
            let named = backends.iter().find(|b| code.contains(**b));
            assert!(named.is_none(), "{} names a backend: {named:?}", path.display());
        }
        if sets.iter().map(String::as_str).chain(others).any(inside) {
            continue;
        }
        let lines = text.lines().filter(|l| !l.trim_start().starts_with("//"));
        let blocks = lines.filter(|l| ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|word| l.contains(word)));
        assert_eq!(blocks.count(), 0, "{} holds unsafe code", path.display());
    }
}

/// Who copies an example or a page that selects a device would train without what has proved itself there, or start the program again and again.
#[test]
fn who_is_shown_to_select_a_device_is_shown_the_rest() {
    let mut shown = all_sources();
    shown.retain(|(path, text)| path.components().any(|c| c.as_os_str() == "examples") && text.contains("select(&DeviceRequest::"));
    let pages = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|e| e == "md"));
    let pages = pages.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()));
    shown.extend(pages.filter(|(_, text)| text.contains("bellows_device::select")));
    assert!(shown.len() >= 3, "the examples and the page were not found");
    for (path, text) in shown {
        for call in ["answer_probe()", "adopt()"] {
            assert!(text.contains(call), "{} selects a device without {call}", path.display());
        }
    }
}

/// What GitHub makes of a heading: small letters, no punctuation, a line in place of each space. (A heading that stands twice has another one, which none is
/// asked for here.)
fn anchor(heading: &str) -> String {
    let shown = heading.replace("](", " ").chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    shown.trim().to_lowercase().replace(' ', "-")
}

/// Lines of a text that are not in a block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

#[test]
fn links_of_the_documents_lead_somewhere() {
    let mut documents: Vec<PathBuf> = ["README.md", "CHANGELOG.md"].map(|name| root().join(name)).into();
    for dir in ["docs", "docs/decisions"] {
        let files = std::fs::read_dir(root().join(dir)).unwrap().map(|entry| entry.unwrap().path());
        documents.extend(files.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    let texts: BTreeMap<PathBuf, String> =
        documents.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect();
    let mut found = 0;
    for (path, text) in &texts {
        let targets = prose(text).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| Some(rest.split_once(')')?.0));
        for target in targets.filter(|target| !target.contains("://") && !target.contains(' ')) {
            let (file, part) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let to = to.canonicalize().unwrap_or_else(|_| panic!("{}: {target} is not there", path.display()));
            let headings = texts.iter().find(|(path, _)| path.canonicalize().unwrap() == to).map(|(_, text)| text);
            let heads = |text: &&String| prose(text).any(|line| line.starts_with('#') && anchor(line.trim_start_matches('#')) == part);
            assert!(part.is_empty() || headings.is_some_and(|text| heads(&text)), "{}: {target} has no such heading", path.display());
            found += 1;
        }
    }
    assert!(found > 100, "the links were not found: {found}");
}
