//! What a server holds and uses: of a process, read from `/proc`.

use std::{collections::HashSet, fs, io, time::Duration};

use rustix::io::Errno;

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

    /// Those of both.
    pub fn and(&self, other: &Holdings) -> Holdings {
        Holdings {
            descriptors: self.descriptors + other.descriptors,
            shared_mappings: self.shared_mappings + other.shared_mappings,
            threads: self.threads + other.threads,
            queues: self.queues + other.queues,
            regions: self.regions + other.regions,
            clients: self.clients + other.clients,
        }
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

/// Are all threads of the process `pid` stopped? One that ends meanwhile was not.
pub fn is_stopped(pid: u32) -> io::Result<bool> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        if !says_stopped(fs::read_to_string(task?.path().join("stat")))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Does what was read of a thread's `stat` say that it is stopped?
fn says_stopped(stat: io::Result<String>) -> io::Result<bool> {
    match stat {
        // The state follows the name, which may itself have parentheses.
        Ok(stat) => Ok(stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))),
        Err(error) if has_ended(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Does `error`, of reading a file of a thread in `/proc`, say that the thread ended: before the file was opened, or after?
fn has_ended(error: &io::Error) -> bool {
    let no_such_process = Errno::SRCH.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(no_such_process)
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

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read, path::Path, thread, time::Instant};

    use super::*;

    #[test]
    fn a_thread_that_ended_was_not_stopped() {
        let open = || {
            let thread = fs::read_link("/proc/thread-self").unwrap();
            let path = Path::new("/proc").join(thread).join("stat");
            (File::open(&path).unwrap(), path)
        };
        let (mut opened, path) = thread::spawn(open).join().unwrap();
        // The kernel removes a thread shortly after others may join it.
        let until = Instant::now() + Duration::from_secs(10);
        while path.exists() {
            assert!(Instant::now() < until, "the thread is there for long after it was joined");
            thread::yield_now();
        }
        let read_after = opened.read_to_string(&mut String::new()).unwrap_err();
        assert!(!says_stopped(Err(read_after)).unwrap());
        assert!(!says_stopped(fs::read_to_string(path)).unwrap());
    }
}
