//! What a process holds of the system: counted before and after, to show that nothing leaks.

use std::fs;
use std::io;

use crate::end::End;
use crate::verdict::{CaseResult, Halt};

/// Counts of what an end holds: its process of the system, or its node of a simulated NIC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Open descriptors.
    pub descriptors: usize,
    /// Mappings that others can have too: the allocator's own come and go.
    pub shared_mappings: usize,
    /// Threads.
    pub threads: usize,
    /// Queue pairs, completion queues and shared receive queues of a simulated NIC.
    pub queues: usize,
    /// Regions registered with a simulated NIC, and its memory windows.
    pub regions: usize,
}

impl Usage {
    /// Of this process, now.
    pub fn of_process() -> io::Result<Usage> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let shared = |line: &&str| {
            line.split_ascii_whitespace().nth(1).is_some_and(|access| access.ends_with('s'))
        };
        Ok(Usage {
            descriptors: fs::read_dir("/proc/self/fd")?.count(),
            shared_mappings: maps.lines().filter(shared).count(),
            threads: fs::read_dir("/proc/self/task")?.count(),
            ..Usage::default()
        })
    }

    /// Whether nothing is held beyond `before`, except `kept` mappings or regions that a device may keep for
    /// reuse.
    pub(crate) fn within(&self, before: &Usage, kept: usize) -> bool {
        self.descriptors <= before.descriptors
            && self.shared_mappings <= before.shared_mappings + kept
            && self.threads <= before.threads
            && self.queues <= before.queues
            && self.regions <= before.regions + kept
    }
}

/// Waits until this end holds no more than `before` (and `kept` mappings or regions): a device may release in the background.
pub(crate) async fn settles(end: &mut End, before: Usage, kept: usize, what: &str) -> CaseResult {
    let settled = end
        .poll_until("the resources to be released", || {
            Ok(end.usage()?.within(&before, kept).then_some(()))
        })
        .await;
    if settled.is_err() {
        let now = end.usage()?;
        return Err(Halt::failed(format!("after {what}: {now:?}, before {before:?}")));
    }
    Ok(())
}
