//! A virtual machine with Soft-RoCE: the kernel's own RDMA, on a computer that has no RDMA NIC.
//!
//! The kernel of a Debian package and an initramfs made here boot under QEMU's software emulation in
//! some 3 s; the device `rxe0` comes up over a virtual Ethernet, and COMMAND runs there. What is needed
//! again is kept in `target/rdma-vm`:
//!
//! | part | kept for |
//! |---|---|
//! | kernel and its modules | ever: a second run asks the network for nothing |
//! | base of the initramfs: busybox, modules, tools, libraries, `init` | as long as all of these stay as they are |
//! | COMMAND and this project's programs that it names, appended to the base | one run |

mod archive;
mod base;
mod kernel;
mod libraries;
mod node;
mod programs;
mod protocol;
mod run_folder;
mod session;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{machine, run};
use base::Base;
use node::Blueprint;
use programs::Profile;
pub(crate) use programs::build_all as all_programs;
use protocol::Token;
use run_folder::RunFolder;
use session::Plan;

/// What `cargo xtask rdma-vm` is asked to do.
#[derive(Args, Debug, Clone)]
pub(crate) struct Options {
    /// Virtual machines, joined by a virtual Ethernet; COMMAND runs on each, with FARCALL_NODE
    /// (1 or 2) and FARCALL_PEER (the other's IP address) in its environment
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) nodes: u8,

    /// Takes the power from node 1 so many seconds after both have booted; from then on only the
    /// status of node 2 counts
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) power_cut: Option<Duration>,

    /// Gives the power back so many seconds after the cut: node 1 boots again and runs COMMAND again,
    /// with FARCALL_BOOT=2 in its environment
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "power_cut")]
    pub(crate) power_back: Option<Duration>,

    /// Everything from power-on to the last status takes at most this long
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "300")]
    pub(crate) timeout: Duration,

    /// Carries programs built by the profile `release`, for figures; by default by the profile `vm`,
    /// which builds in less time
    #[arg(long)]
    pub(crate) release: bool,

    /// One word is run by `/bin/sh -c`, several are a program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

impl Options {
    /// Runs `script`, with all else as by default.
    pub(crate) fn script(nodes: u8, timeout: Duration, script: String) -> Options {
        Options {
            nodes,
            power_cut: None,
            power_back: None,
            timeout,
            release: false,
            command: vec![script],
        }
    }
}

/// Boots, runs COMMAND, and returns its exit status: of several nodes, the largest.
pub(crate) fn rdma_vm(options: &Options) -> Result<u8> {
    rdma_vm_to(options, &mut io::stdout())
}

/// The same, with what COMMAND prints to `output`.
pub(crate) fn rdma_vm_to(options: &Options, output: &mut dyn Write) -> Result<u8> {
    if options.power_cut.is_some() && options.nodes != 2 {
        bail!("--power-cut takes the power from node 1 of two: add --nodes 2");
    }
    if std::env::consts::ARCH != "x86_64" {
        bail!(
            "rdma-vm boots the x86_64 kernel of Debian with this machine's libraries: run it there"
        );
    }
    machine::prepare()?;
    let profile = if options.release { Profile::Release } else { Profile::Vm };
    let programs = programs::build_named(profile, &options.command)?;
    let token = Token::random()?;
    let kept = kept()?;
    let folder = RunFolder::new(&kept)?;
    let kernel = {
        let _one_at_a_time = lock(&kept)?;
        let kernel = kernel::fetch(&kept)?;
        let base = Base::build(&kept, &kernel)?;
        let extra = programs::archive(&programs, &base, &options.command, &token)?;
        base.append(&extra, &folder.path().join("initrd"))?;
        kernel
    };
    let blueprint = Blueprint { kernel: &kernel, folder: folder.path(), nodes: options.nodes };
    let plan = Plan {
        nodes: options.nodes,
        timeout: options.timeout,
        power_cut: options.power_cut,
        power_back: options.power_back,
    };
    session::run(&plan, &token, &|life| blueprint.qemu(life), output)
}

/// The folder that keeps what is needed again.
fn kept() -> Result<PathBuf> {
    let folder = run::root().join("target/rdma-vm");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Held while the kept things are made, so that two runs at once do not make them over each other.
fn lock(kept: &Path) -> Result<File> {
    let path = kept.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= LONGEST_SECONDS => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!("a number of seconds, above 0 and up to {LONGEST_SECONDS}")),
    }
}

/// A day: whoever wants more has mistyped.
const LONGEST_SECONDS: f64 = 86_400.0;
