//! Measures farcall's clients next to other libraries, with the programs that two of them need.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::machine;
use crate::run::{self, cargo, command};

/// Files that the programs of the peers need in addition to the other steps, and their Debian packages.
const FILES: &[(&str, &str)] = &[
    ("/usr/include/ucp/api/ucp.h", "libucx-dev"),
    // iceoryx2 generates its bindings to libc.
    ("/usr/lib/llvm-14/lib/libclang.so.1", "libclang-14-dev"),
    ("/usr/include/stdlib.h", "libc6-dev"),
];

/// The programs of peers that are no packages of this workspace.
const UCX_SOURCES: [&str; 3] =
    ["benches/ucx/main.c", "benches/ucx/server.c", "benches/ucx/client.c"];
const ICEORYX2_MANIFEST: &str = "benches/iceoryx2/Cargo.toml";

#[derive(Args)]
pub(crate) struct Options {
    /// A short run that shows that everything answers; its figures say little
    #[arg(long)]
    quick: bool,
    /// Passed on to `farcall-bench peers`; try `-- --help`
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// The options of a short run.
const QUICK: &str =
    "--seconds 0.02 --sizes 8,32,4096,65536,1048576 --silences 1,10 --silent-for 0.05";

/// Installs what is missing, builds all programs, and measures.
pub(crate) fn peers(options: &Options) -> Result<()> {
    machine::require_files(FILES)?;
    let folder = run::target().join("peers");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let ucx = build_ucx(&folder)?;
    let iceoryx2 = build_iceoryx2(&folder)?;
    let bench = ["--locked", "--release", "--package", "farcall-bench", "--features", "peers"];
    run::run(cargo().arg("build").args(bench))?;
    let mut bench = command(run::target().join("release/farcall-bench"));
    bench.arg("peers").arg("--ucx").arg(ucx).arg("--iceoryx2").arg(iceoryx2);
    if options.quick {
        bench.args(QUICK.split(' '));
    } else {
        for (option, file) in [("--json", "peers.json"), ("--svg", "peers.svg")] {
            bench.arg(option).arg(folder.join(file));
        }
    }
    run::run(bench.args(&options.arguments))
}

fn build_ucx(folder: &Path) -> Result<PathBuf> {
    let program = folder.join("ucx-echo");
    let mut cc = command(machine::program("cc")?);
    cc.args(["-O2", "-Wall", "-Wextra", "-o"]).arg(&program).args(UCX_SOURCES);
    run::run(cc.args(["-lucp", "-lucs", "-lpthread"]))?;
    Ok(program)
}

fn build_iceoryx2(folder: &Path) -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--locked", "--release", "--manifest-path", ICEORYX2_MANIFEST]);
    run::run(build.arg("--target-dir").arg(folder))?;
    Ok(folder.join("release/iceoryx2-echo"))
}
