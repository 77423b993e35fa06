//! What a server holds and uses: of a process, read from `/proc`.

use std::{collections::HashSet, fs, io, time::Duration};

/// What a server holds: its process of the system's resources, or its node of a simulated NIC's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Open file descriptors.
    pub descriptors: usize,
    /// Mappings of files and memory that it shares with others.
    pub shared_mappings: usize,
    /// Threads.
    pub threads: usize,
    /// Queue pairs, completion queues and shared receive queues of a simulated NIC.
    pub queues: usize,
    /// Regions registered with a simulated NIC.
    pub regions: usize,
    /// Clients of a server on a simulated rack.
    pub clients: usize,
}

impl Holdings {
    /// Those of the process `pid`.
    pub fn of(pid: u32) -> io::Result<Holdings> {
        // Only shared mappings: the allocator's own come and go with its arenas.
        let shared = |line: &&str| line.split_whitespace().nth(1).is_some_and(|p| p.ends_with('s'));
        Ok(Holdings {
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            shared_mappings: fs::read_to_string(format!("/proc/{pid}/maps"))?
                .lines()
                .filter(shared)
                .count(),
            threads: fs::read_dir(format!("/proc/{pid}/task"))?.count(),
            ..Holdings::default()
        })
    }

    /// Those that a process on another machine reports.
    pub(crate) fn parse(words: &str) -> Option<Holdings> {
        let mut numbers = words.split_whitespace().map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Holdings {
            descriptors: next()?,
            shared_mappings: next()?,
            threads: next()?,
            ..Holdings::default()
        })
    }

    /// What [`parse`](Holdings::parse) reads.
    pub(crate) fn to_words(self) -> String {
        format!("{} {} {}", self.descriptors, self.shared_mappings, self.threads)
    }

    /// Whether nothing is more than in `before`.
    pub fn within(&self, before: &Holdings) -> bool {
        self.descriptors <= before.descriptors
            && self.shared_mappings <= before.shared_mappings
            && self.threads <= before.threads
            && self.queues <= before.queues
            && self.regions <= before.regions
            && self.clients <= before.clients
    }
}

/// The limit on descriptors that leaves the process `pid` so many: it bounds their numbers, and there may be gaps.
pub fn descriptor_limit(pid: u32, spare: u64) -> io::Result<u64> {
    let mut taken = HashSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        taken.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    let mut free = (0..).filter(|number| !taken.contains(number));
    let beyond = free.nth(spare as usize);
    beyond.ok_or_else(|| io::Error::other("there are no free numbers"))
}

/// The most bytes that have been resident at a time in the process `pid`.
pub fn peak_memory(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let undocumented = || io::Error::new(io::ErrorKind::InvalidData, "status is not as documented");
    kib.map(|kib| kib << 10).ok_or_else(undocumented)
}

/// Are all threads of the process `pid` stopped?
pub fn is_stopped(pid: u32) -> io::Result<bool> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = fs::read_to_string(task?.path().join("stat"))?;
        // The state follows the name, which may itself have parentheses.
        if !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The time that thread `tid` of process `pid` has run on a CPU.
pub fn thread_cpu_time(pid: u32, tid: u32) -> io::Result<Duration> {
    let path = format!("/proc/{pid}/task/{tid}/schedstat");
    let text = fs::read_to_string(path)?;
    let nanos = text.split_whitespace().next().and_then(|field| field.parse().ok());
    nanos
        .map(Duration::from_nanos)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "schedstat is not as documented"))
}
