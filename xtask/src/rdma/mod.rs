//! The step `rdma`: everything that needs the kernel's verbs, in virtual machines.

mod bench;
mod output;
mod own_bounds;
mod scripts;

pub(crate) use bench::bench;

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::rdma_vm::{self, KERNEL_PANIC, Options};
use crate::run;
use output::Tee;

/// A script and its machines.
struct Boot {
    name: &'static str,
    nodes: u8,
    power_cut: Option<Duration>,
    power_back: Option<Duration>,
    timeout: Duration,
    script: &'static str,
}

/// The beginning of each script.
const PRELUDE: &str = include_str!("prelude.sh");

/// How often a boot is run again whose kernel has panicked.
const MOST_REPEATS: u32 = 2;

/// Libraries without which our programs must be able to start.
const NEVER_NEEDED: &[&str] = &["libibverbs", "librdmacm"];

/// Runs all boots, or those whose name contains `only`. Stops at the first failure.
pub(crate) fn rdma(only: &str) -> Result<()> {
    if only.is_empty() {
        starts_without_rdma_libraries()?;
        own_bounds::check()?;
    }
    let boots: Vec<&Boot> = scripts::BOOTS.iter().filter(|boot| boot.name.contains(only)).collect();
    if boots.is_empty() {
        let names: Vec<&str> = scripts::BOOTS.iter().map(|boot| boot.name).collect();
        bail!("no boot is named {only:?}; there are: {}", names.join(", "));
    }
    for boot in boots {
        let begun = Instant::now();
        println!("  [{}]", boot.name);
        let (mut output, mut ended) = boot.run();
        // A panic that our programs cause comes each time; QEMU causes some that come now and then.
        for _ in 0..MOST_REPEATS {
            if matches!(ended, Ok(0)) || !output.text().contains(KERNEL_PANIC) {
                break;
            }
            println!("  [{}]: a kernel has panicked; once more", boot.name);
            (output, ended) = boot.run();
        }
        if !matches!(ended, Ok(0)) {
            let failed = output::failed_checks(&output.text());
            println!("  [{}], the checks that failed, once more:\n{failed}", boot.name);
        }
        let status = ended?;
        if status != 0 {
            bail!("{}: ended with status {status}", boot.name);
        }
        println!("  [{}]: ok, {:.1} s", boot.name, begun.elapsed().as_secs_f64());
    }
    Ok(())
}

impl Boot {
    /// Runs the script. Gives what it printed, and its status.
    fn run(&self) -> (Tee, Result<u8>) {
        let mut output = Tee::new();
        let ended = rdma_vm::rdma_vm_to(&self.options(), &mut output);
        (output, ended)
    }

    fn options(&self) -> Options {
        let script = format!(
            "cat >/tmp/prelude <<'END OF PRELUDE'\n{PRELUDE}\nEND OF PRELUDE\n\
             . /tmp/prelude\n{}\nexit $failures",
            self.script
        );
        Options {
            power_cut: self.power_cut,
            power_back: self.power_back,
            ..Options::script(self.nodes, self.timeout, script)
        }
    }
}

/// Checks that no program needs an RDMA library to start: they must also run on computers without them.
fn starts_without_rdma_libraries() -> Result<()> {
    for program in rdma_vm::all_programs()? {
        let dynamic = run::output(Command::new("readelf").arg("-d").arg(&program.path))?;
        let needed = needed(&dynamic);
        if needed.is_empty() {
            bail!("`readelf -d {}` names no library at all", program.path.display());
        }
        let rdma = needed.iter().find(|name| NEVER_NEEDED.iter().any(|no| name.starts_with(no)));
        if let Some(library) = rdma {
            bail!("{} does not start without {library}: load it by name instead", program.name);
        }
    }
    println!("  no program needs {} to start", NEVER_NEEDED.join(" or "));
    Ok(())
}

/// The libraries in the output of `readelf -d`.
fn needed(dynamic: &str) -> Vec<&str> {
    dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split_once('[')?.1.split_once(']'))
        .map(|(name, _)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_libraries_are_parsed() {
        let dynamic = "\nDynamic section at offset 0x1 contains 2 entries:\n\
            0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]\n\
            0x0000000000000001 (NEEDED)             Shared library: [libibverbs.so.1]\n\
            0x000000000000000c (INIT)               0x1000\n";
        assert_eq!(needed(dynamic), ["libgcc_s.so.1", "libibverbs.so.1"]);
    }
}
