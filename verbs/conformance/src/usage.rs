//! What a process holds of the system: counted before and after, to show that nothing leaks.

use std::fs;
use std::io;

use crate::end::End;
use crate::verdict::{CaseResult, Halt};

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

    /// Whether nothing is held beyond what was held at `before`, and `kept` mappings that a device may
    /// keep for reuse.
    pub(crate) fn within(&self, before: &Usage, kept: usize) -> bool {
        self.descriptors <= before.descriptors
            && self.shared_mappings <= before.shared_mappings + kept
            && self.threads <= before.threads
    }
}

/// Waits until this end holds no more than `before` (and `kept` mappings), where its process can be
/// counted. What a device gives back in the background may take a moment.
pub(crate) async fn settles(end: &mut End, before: Usage, kept: usize, what: &str) -> CaseResult {
    if !end.powers().own_process {
        return Ok(());
    }
    let settled = end
        .poll_until("the system's resources to be given back", || {
            Ok(Usage::now()?.within(&before, kept).then_some(()))
        })
        .await;
    match settled {
        Ok(()) => Ok(()),
        Err(_) => {
            let now = Usage::now()?;
            Err(Halt::failed(format!("after {what}: {now:?}, before {before:?}")))
        }
    }
}
