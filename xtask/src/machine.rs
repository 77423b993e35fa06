//! What the checks need of a Debian machine beside Rust, and how it gets there.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::run::{self, command};

/// A program that a step calls, and the Debian package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("cc", "gcc"),      // rustc links with it
    ("make", "make"),   // build scripts of cargo-deny's C parts
    ("ar", "binutils"), // as above
];

/// A file that a step needs, and the Debian package that has it.
const FILES: &[(&str, &str)] = &[("/usr/include/stdlib.h", "libc6-dev")];

/// Installs what is missing, and touches nothing if nothing is.
pub(crate) fn prepare() -> Result<()> {
    let programs = PROGRAMS.iter().filter(|(program, _)| !on_path(program));
    let files = FILES.iter().filter(|(file, _)| !Path::new(file).exists());
    let missing: Vec<&str> = programs.chain(files).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        println!("  nothing is missing");
        return Ok(());
    }
    println!("  missing: {}", missing.join(" "));
    if !on_path("apt-get") {
        bail!("this machine has no apt-get; install by hand what provides: {}", missing.join(" "));
    }
    run::run(&mut apt(&["update"])?)?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(missing);
    run::run(&mut apt(&arguments)?)
}

/// Whether `program` is in a directory of PATH.
pub(crate) fn on_path(program: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

fn apt(arguments: &[&str]) -> Result<Command> {
    let mut apt = if is_root()? {
        command("apt-get")
    } else if on_path("sudo") {
        let mut sudo = command("sudo");
        sudo.arg("apt-get");
        sudo
    } else {
        bail!(
            "apt-get needs root, and there is no sudo; run as root: apt-get {}",
            arguments.join(" ")
        )
    };
    apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    Ok(apt)
}

fn is_root() -> Result<bool> {
    let user = run::output(command("id").arg("-u")).context("cannot tell who runs this")?;
    Ok(user.trim() == "0")
}
