//! A former build of farcall next to this one: programs of both call each other over every backend.

use std::env;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::run::{self, cargo, command};

#[derive(Args)]
pub(crate) struct Options {
    /// The commit or tag to build the former program of, such as v0.1.0 or HEAD~20
    commit: String,
}

/// Builds the program of the key-value store as it was at a commit, and has both builds serve and call each other.
pub(crate) fn upgrades(Options { commit }: &Options) -> Result<()> {
    let commit =
        run::output(command("git").args(["rev-parse", "--short", &format!("{commit}^{{commit}}")]))
            .context("name a commit of this repository")?;
    let folder = run::target().join("former");
    let (source, build) = (folder.join(commit.trim()), folder.join("build"));
    unpack(commit.trim(), &source)?;
    let manifest = source.join("Cargo.toml");
    run::run(
        cargo()
            .args(["build", "--locked", "--package", "farcall-kv", "--manifest-path"])
            .arg(manifest)
            .arg("--target-dir")
            .arg(&build),
    )?;
    let program = build.join("debug/farcall-kv");
    run::run(
        cargo()
            .env("FARCALL_KV_FORMER", env::current_dir()?.join(program))
            .args(["test", "--locked", "--package", "farcall-kv", "--test", "former_builds"])
            .args(["--", "--ignored"]),
    )
}

/// Writes the files of that commit into a folder.
fn unpack(commit: &str, folder: &PathBuf) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut archive = command("git").args(["archive", commit]).stdout(Stdio::piped()).spawn()?;
    let files = archive.stdout.take().context("git has no pipe")?;
    run::run(command("tar").args(["-x", "-C"]).arg(folder).stdin(files))?;
    ensure!(archive.wait()?.success(), "git archive failed");
    Ok(())
}
