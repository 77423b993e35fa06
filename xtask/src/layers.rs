//! Checks that dependencies between packages, and between the modules of `transports`, point one way, and that only `verbs`
//! contains `unsafe`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::run::{self, cargo};

/// A package, and the packages of this workspace on which it may depend, directly or indirectly. Programs and
/// test suites are above all libraries and may use any of them.
const MAY_USE: &[(&str, &[&str])] = &[
    ("farcall-core", &["farcall-macros"]),
    ("farcall-macros", &[]),
    ("farcall-verbs", &[]),
    ("farcall-transports", &["farcall-core", "farcall-macros", "farcall-verbs"]),
    ("farcall-rack", &["farcall-core", "farcall-macros", "farcall-transports", "farcall-verbs"]),
    (
        "farcall",
        &["farcall-core", "farcall-macros", "farcall-rack", "farcall-transports", "farcall-verbs"],
    ),
];

/// The modules of `transports` that are no backends, and the modules that each may use. Every other folder is a backend:
/// it may use what is in [`BACKENDS_MAY_USE`], and only the registry may use it.
const MODULES: &[(&str, &[&str])] = &[
    ("contract", &[]),
    ("kit", &["contract"]),
    ("buffers", &["kit"]),
    ("rendezvous", &["buffers", "contract", "kit"]),
    ("repair", &["contract", "kit"]),
    ("slots", &["buffers", "contract", "kit", "rendezvous"]),
    ("handshake", &["contract"]),
    ("hybrid", &[]),
    ("remote_memory", &["buffers", "kit"]),
    ("address", &["contract", "hybrid", "registry"]),
    ("tls", &["contract"]),
    ("bootstrap", &["address", "contract", "handshake", "hybrid", "tls"]),
];

const BACKENDS_MAY_USE: &[&str] = &["contract", "kit", "rendezvous", "repair", "slots"];

/// What any module may use: bugs that tests plant.
const EVERYWHERE: &str = "planted";

/// The crate roots outside `verbs`. Each must forbid `unsafe`.
const WITHOUT_UNSAFE: &[&str] = &[
    "src/lib.rs",
    "rpc-core/src/lib.rs",
    "rpc-macros/src/lib.rs",
    "cli/src/main.rs",
    "rack/src/lib.rs",
    "transports/src/lib.rs",
    "transports/conformance/src/lib.rs",
    "verbs/conformance/src/lib.rs",
    "examples/kv/src/lib.rs",
    "examples/kv/src/main.rs",
    "examples/persist/src/lib.rs",
    "examples/persist/src/main.rs",
    "examples/replication/src/lib.rs",
    "examples/replication/src/main.rs",
    "swarm/src/lib.rs",
    "swarm/src/main.rs",
    "benches/src/lib.rs",
    "benches/src/main.rs",
    "benches/iceoryx2/src/main.rs",
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
    let backends = check_modules(&run::root().join("transports/src"), &mut broken)?;
    if !broken.is_empty() {
        bail!("the layers do not hold:\n  {}", broken.join("\n  "));
    }
    println!(
        "  {} packages, {} crate roots, {backends} backends: the layers hold",
        MAY_USE.len(),
        WITHOUT_UNSAFE.len()
    );
    Ok(())
}

/// Checks which modules of `transports` each folder uses. Returns the number of backends.
fn check_modules(sources: &Path, broken: &mut Vec<String>) -> Result<usize> {
    let mut backends = 0;
    for entry in fs::read_dir(sources)? {
        let folder = entry?.path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !folder.join("mod.rs").is_file() {
            continue;
        }
        let shared = MODULES.iter().find(|(module, _)| *module == name);
        backends += usize::from(shared.is_none());
        let allowed = shared.map_or(BACKENDS_MAY_USE, |(_, allowed)| allowed);
        let may_use = |used: &str| used == name || used == EVERYWHERE || allowed.contains(&used);
        for file in sources_in(&folder)? {
            let text = fs::read_to_string(&file)?;
            // Documentation may name anything.
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let used = code.flat_map(|line| line.split("crate::").skip(1).map(leading_name));
            for module in used.filter(|used| is_module(sources, used) && !may_use(used)) {
                let file = file.strip_prefix(sources).unwrap_or(&file).display();
                broken.push(format!("transports/src/{file} uses {module}"));
            }
        }
    }
    Ok(backends)
}

/// The name at the front of a path in Rust.
fn leading_name(path: &str) -> &str {
    path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

fn is_module(sources: &Path, name: &str) -> bool {
    sources.join(name).join("mod.rs").is_file() || sources.join(name).with_extension("rs").is_file()
}

/// The Rust files in a folder and in those in it. Tests may use anything.
fn sources_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            files.extend(sources_in(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_from_the_kit_to_a_backend_is_found() {
        let sources = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("kit/mod.rs", "use crate::contract::Backend;"),
            ("kit/window.rs", "use crate::contract;\nfn f() -> crate::rfp::Mode {}"),
            ("rfp/mod.rs", "use crate::kit::window;\nuse crate::registry::find;"),
            ("kit/tests.rs", "use crate::rfp::Rfp;"),
            ("registry.rs", "use crate::rfp::Rfp;"),
        ] {
            let path = sources.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut broken = Vec::new();
        assert_eq!(check_modules(sources.path(), &mut broken).unwrap(), 1);
        broken.sort_unstable();
        assert_eq!(
            broken,
            ["transports/src/kit/window.rs uses rfp", "transports/src/rfp/mod.rs uses registry"]
        );
    }
}
