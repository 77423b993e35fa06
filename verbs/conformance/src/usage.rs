//! What a process holds of the system: counted before and after, to show that nothing leaks.

use std::fs;
use std::io;

/// Counts of what this process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Open descriptors.
    pub(crate) descriptors: usize,
    /// Mappings that others can have too: the allocator's own come and go.
    pub(crate) shared_mappings: usize,
    /// Threads.
    pub(crate) threads: usize,
}

impl Usage {
    /// Counts now.
    pub(crate) fn now() -> io::Result<Usage> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let shared = |line: &&str| {
            line.split_ascii_whitespace().nth(1).is_some_and(|access| access.ends_with('s'))
        };
        Ok(Usage {
            descriptors: fs::read_dir("/proc/self/fd")?.count(),
            shared_mappings: maps.lines().filter(shared).count(),
            threads: fs::read_dir("/proc/self/task")?.count(),
        })
    }

    /// Whether nothing is held beyond what was held at `before`.
    pub(crate) fn within(&self, before: &Usage) -> bool {
        self.descriptors <= before.descriptors
            && self.shared_mappings <= before.shared_mappings
            && self.threads <= before.threads
    }
}
