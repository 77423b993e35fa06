//! Checks that dependencies between packages point one way, and that only `verbs` contains `unsafe`.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::run::{self, cargo};

/// A package, and the packages of this workspace on which it may depend, directly or indirectly. Programs and
/// test suites are above all libraries and may use any of them.
const MAY_USE: &[(&str, &[&str])] = &[
    ("farcall-core", &["farcall-macros"]),
    ("farcall-macros", &[]),
    ("farcall-verbs", &[]),
    ("farcall-transports", &["farcall-core", "farcall-macros", "farcall-verbs"]),
    ("farcall", &["farcall-core", "farcall-macros", "farcall-transports", "farcall-verbs"]),
];

/// The crate roots outside `verbs`. Each must forbid `unsafe`.
const WITHOUT_UNSAFE: &[&str] = &[
    "src/lib.rs",
    "rpc-core/src/lib.rs",
    "rpc-macros/src/lib.rs",
    "cli/src/main.rs",
    "transports/src/lib.rs",
    "transports/conformance/src/lib.rs",
    "verbs/conformance/src/lib.rs",
    "examples/kv/src/lib.rs",
    "examples/kv/src/main.rs",
    "swarm/src/lib.rs",
    "swarm/src/main.rs",
    "benches/src/lib.rs",
    "benches/src/main.rs",
    "xtask/src/main.rs",
];

/// Checks both rules and lists all violations.
pub(crate) fn check() -> Result<()> {
    let mut broken = Vec::new();
    for (package, allowed) in MAY_USE {
        for used in ours_below(package)? {
            if used != *package && !allowed.contains(&used.as_str()) {
                broken.push(format!("{package} depends on {used}"));
            }
        }
    }
    for file in WITHOUT_UNSAFE {
        let path = run::root().join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {file}"))?;
        if !text.contains("#![forbid(unsafe_code)]") {
            broken.push(format!("{file} does not say #![forbid(unsafe_code)]"));
        }
    }
    if !broken.is_empty() {
        bail!("the layers do not hold:\n  {}", broken.join("\n  "));
    }
    println!("  {} packages, {} crate roots: the layers hold", MAY_USE.len(), WITHOUT_UNSAFE.len());
    Ok(())
}

/// The packages of this workspace on which `package` depends.
fn ours_below(package: &str) -> Result<Vec<String>> {
    let tree = run::output(cargo().args([
        "tree",
        "--locked",
        "--quiet",
        "--package",
        package,
        "--edges",
        "normal,build",
        "--all-features",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]))?;
    let mut ours: Vec<String> = tree
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name == "farcall" || name.starts_with("farcall-"))
        .map(str::to_owned)
        .collect();
    ours.sort_unstable();
    ours.dedup();
    Ok(ours)
}
