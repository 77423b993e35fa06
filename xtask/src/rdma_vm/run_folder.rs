//! The folder of one run, removed at its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

const PREFIX: &str = "run-";

/// Contains the initramfs of this run and the sockets between its machines.
#[derive(Debug)]
pub(crate) struct RunFolder(PathBuf);

impl RunFolder {
    /// Creates an empty folder in `kept`, named after this process and the number of its run. Removes the folders
    /// of processes that were killed.
    pub(crate) fn new(kept: &Path) -> Result<RunFolder> {
        for entry in
            fs::read_dir(kept).with_context(|| format!("cannot list {}", kept.display()))?
        {
            let path = entry?.path();
            if path.file_name().and_then(|name| name.to_str()).is_some_and(is_left_over) {
                // A concurrent run may be removing it too.
                let _ = fs::remove_dir_all(&path);
            }
        }
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let folder = kept.join(format!("{PREFIX}{}-{run}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(RunFolder(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // The next run removes what is left.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_left_over(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .and_then(|rest| rest.split('-').next()?.parse::<u32>().ok())
        .is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_live_processes_are_kept() {
        assert!(!is_left_over(&format!("{PREFIX}{}-7", std::process::id())));
        assert!(!is_left_over("kernel"));
        assert!(!is_left_over("run-x"));
        // Larger than the largest process id of Linux.
        assert!(is_left_over("run-4194305-0"));
    }
}
