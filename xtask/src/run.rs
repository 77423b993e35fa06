//! Runs steps in order, each with its name and duration.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The root of the workspace: this package is one level below it.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(target)
}

/// The cargo that runs this program, so that a `+toolchain` of the user applies to every step.
pub(crate) fn cargo() -> Command {
    command(env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from))
}

/// A command that starts in the root of the workspace.
pub(crate) fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.current_dir(root());
    command
}

/// Runs `command` with inherited output. The error contains its command line.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    println!("  $ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// The standard output of `command`, which must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = line(command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` wrote no UTF-8"))
}

fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![program.file_name().unwrap_or(program.as_os_str()).to_string_lossy()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy()));
    words.join(" ")
}

/// Runs steps in order and records how long each took.
pub(crate) struct Runner {
    done: Vec<(&'static str, Duration)>,
    failed: Option<&'static str>,
}

impl Runner {
    pub(crate) fn new() -> Self {
        Self { done: Vec::new(), failed: None }
    }

    pub(crate) fn step(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        println!("==> {name}");
        let start = Instant::now();
        let outcome = work();
        let took = start.elapsed();
        self.done.push((name, took));
        match &outcome {
            Ok(()) => println!("==> {name}: ok, {}", seconds(took)),
            Err(_) => {
                self.failed = Some(name);
                println!("==> {name}: FAILED, {}", seconds(took));
            }
        }
        outcome.with_context(|| format!("step `{name}` failed; again with `cargo xtask {name}`"))
    }

    pub(crate) fn summary(&self) {
        if self.done.len() < 2 {
            return;
        }
        println!("\n{:<12} {:>9}", "step", "time");
        for (name, took) in &self.done {
            let mark = if self.failed == Some(name) { "  FAILED" } else { "" };
            println!("{name:<12} {:>9}{mark}", seconds(*took));
        }
        let total = self.done.iter().map(|(_, took)| *took).sum();
        println!("{:<12} {:>9}", "all", seconds(total));
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
