//! Installs the Debian packages that the checks need in addition to Rust.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::run::{self, command};

/// A program that a step runs, and its Debian package.
const PROGRAMS: &[(&str, &str)] = &[
    ("cc", "gcc"),      // rustc links with it
    ("make", "make"),   // build scripts of cargo-deny's C parts
    ("ar", "binutils"), // as above
    ("readelf", "binutils"),
    // The virtual machine with Soft-RoCE: its kernel's tools, and what runs it.
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"), // processes as in containers
    ("depmod", "kmod"),
    ("modprobe", "kmod"),
    ("xz", "xz-utils"),
    ("busybox", "busybox-static"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("rdma", "iproute2"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("ib_write_lat", "perftest"),
    ("valgrind", "valgrind"), // counts instructions
];

/// Programs that only some steps need: `require` installs them.
const FOR_SOME_STEPS: &[(&str, &str)] = &[("chromium-headless-shell", "chromium-headless-shell")];

/// A file that a step needs, and its Debian package.
const FILES: &[(&str, &str)] = &[
    ("/usr/include/stdlib.h", "libc6-dev"),
    // Building the feature `ibverbs` needs these.
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
    ("/usr/lib/llvm-14/lib/libclang.so.1", "libclang-14-dev"),
    // The virtual machine's libibverbs uses this for rxe.
    ("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "ibverbs-providers"),
];

/// Folders that are only in root's PATH on some machines.
const FOLDERS_OF_ROOT: &[&str] = &["/usr/sbin", "/sbin"];

/// Installs missing packages. Does nothing if none is missing.
pub(crate) fn prepare() -> Result<()> {
    install(missing(PROGRAMS, FILES))
}

/// Installs the one program `name` if it is missing.
pub(crate) fn require(name: &str) -> Result<()> {
    let known = PROGRAMS.iter().chain(FOR_SOME_STEPS).find(|(program, _)| *program == name);
    install(missing(known.map_or(&[], std::slice::from_ref), &[]))
}

/// Installs the packages of those files that are missing.
pub(crate) fn require_files(files: &[(&str, &'static str)]) -> Result<()> {
    install(missing(&[], files))
}

fn install(missing: Vec<&str>) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    println!("  missing: {}", missing.join(" "));
    if !on_path("apt-get") {
        bail!(
            "this machine has no apt-get; install the packages that provide: {}",
            missing.join(" ")
        );
    }
    update_package_lists()?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(missing);
    run::run(&mut apt(&arguments)?)
}

/// Updates apt's package lists.
pub(crate) fn update_package_lists() -> Result<()> {
    run::run(&mut apt(&["update"])?)
}

/// The missing packages of these programs and files, each once.
fn missing(programs: &[(&str, &'static str)], files: &[(&str, &'static str)]) -> Vec<&'static str> {
    let programs = programs.iter().filter(|(name, _)| program(name).is_err());
    let files = files.iter().filter(|(file, _)| !Path::new(file).exists());
    let mut missing: Vec<&str> = programs.chain(files).map(|(_, package)| *package).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

/// The path of `name`, in a directory of PATH or of root's PATH.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(FOLDERS_OF_ROOT.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .with_context(|| format!("this machine has no program `{name}`"))
}

/// Whether `name` can be found.
pub(crate) fn on_path(name: &str) -> bool {
    program(name).is_ok()
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
