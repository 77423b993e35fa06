//! A virtual machine with Soft-RoCE: the kernel's own RDMA, on a computer that has no RDMA NIC.
//!
//! The kernel of a Debian package and an initramfs built here boot under QEMU's software emulation in some 3
//! s. The device `rxe0` is created over a virtual Ethernet, and COMMAND runs there. Reusable parts are kept
//! in `target/rdma-vm`:
//!
//! | part | kept for |
//! |---|---|
//! | kernel and its modules | ever: a second run asks the network for nothing |
//! | base of the initramfs: busybox, modules, tools, libraries, `init` | as long as all of these stay as they are |
//! | COMMAND and this project's programs that it names, appended to the base | one run |

mod archive;
mod base;
mod clock;
mod kernel;
mod libraries;
mod node;
mod options;
mod programs;
mod protocol;
mod run_folder;
mod session;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{machine, run};
use base::Base;
use node::Blueprint;
pub(crate) use options::Options;
pub(crate) use programs::{Profile, build_all as all_programs, build_named, selection};
use protocol::Token;
use run_folder::RunFolder;
pub(crate) use session::KERNEL_PANIC;
use session::Plan;

/// Boots, runs COMMAND, and returns its exit status; with several nodes, the largest.
pub(crate) fn rdma_vm(options: &Options) -> Result<u8> {
    rdma_vm_to(options, &mut io::stdout())
}

/// The same, with the output of COMMAND written to `output`.
pub(crate) fn rdma_vm_to(options: &Options, output: &mut dyn Write) -> Result<u8> {
    options.check()?;
    if std::env::consts::ARCH != "x86_64" {
        bail!(
            "rdma-vm boots the x86_64 kernel of Debian with this machine's libraries: run it there"
        );
    }
    machine::prepare()?;
    let profile = if options.release { Profile::Release } else { Profile::Vm };
    let programs = build_named(profile, &options.command)?;
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
    let blueprint = Blueprint {
        kernel: &kernel,
        folder: folder.path(),
        nodes: options.nodes,
        counter_khz: clock::counter_khz(),
    };
    let plan = Plan {
        nodes: options.nodes,
        timeout: options.timeout,
        power_cut: options.power_cut,
        power_back: options.power_back,
    };
    session::run(&plan, &token, &|life| blueprint.qemu(life), output)
}

/// The folder of reusable parts.
fn kept() -> Result<PathBuf> {
    let folder = run::root().join("target/rdma-vm");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Locked while reusable parts are built, so that concurrent runs do not interfere.
fn lock(kept: &Path) -> Result<File> {
    let path = kept.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}
