//! Which cores threads are pinned to.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::layout::Layout;

/// How threads are pinned to cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pinning {
    /// They are not: the system moves them as it likes.
    #[default]
    None,
    /// Each to a core of its own, of those that this process may use, in ascending order.
    EachCore,
    /// Each to the next core of this list, which begins again when there are more threads.
    Cores(Vec<usize>),
    /// Each to a core of its own on the node of this RDMA device.
    NearDevice(String),
}

/// Why threads cannot be pinned like that.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinningError {
    /// There are more threads than cores.
    #[error(
        "{threads} threads, each with a core of its own, and {place} has {cores}; start fewer, or name cores that they share"
    )]
    TooFewCores {
        /// The threads.
        threads: usize,
        /// The cores.
        cores: usize,
        /// What has so many.
        place: String,
    },
    /// The list of cores is empty.
    #[error("no core is named; name some, or do not pin")]
    NoCores,
    /// This process may not use a core.
    #[error("core {core} is not available; this process may use {available:?}")]
    NoSuchCore {
        /// The core.
        core: usize,
        /// Those that it may use.
        available: Vec<usize>,
    },
    /// Nothing says which node the device is attached to.
    #[error(
        "the system does not say which NUMA node device {device} is on; name the cores instead"
    )]
    UnknownNode {
        /// The device.
        device: String,
    },
    /// This process may use no core of the device's node.
    #[error(
        "device {device} is on NUMA node {node}, and this process may use none of its cores, only {available:?}; widen its affinity mask or cpuset"
    )]
    OnlyFarCores {
        /// The device.
        device: String,
        /// Its node.
        node: usize,
        /// The cores that it may use.
        available: Vec<usize>,
    },
    /// The system does not let the thread be pinned.
    #[error("cannot pin a thread to core {core}")]
    System {
        /// The core.
        core: usize,
        /// What the system says.
        source: std::io::Error,
    },
}

/// What is known of this machine.
struct Machine<'a> {
    layout: &'a Layout,
    available: &'a [usize],
}

impl Pinning {
    /// The cores of so many threads, in their order, for `ServerBuilder::pin` or [`pin_this_thread`]; none if they are not pinned.
    ///
    /// A thread that is pinned itself sees only its own core: ask before pinning.
    ///
    /// # Errors
    /// [`PinningError`]: there are not enough such cores.
    pub fn cores(&self, threads: usize) -> Result<Vec<usize>, PinningError> {
        let (layout, available) = (Layout::read(), available());
        let machine = Machine { layout: &layout, available: &available };
        self.choose(threads, &machine, &|device| Layout::node_of_device(device))
    }

    fn choose(
        &self,
        threads: usize,
        machine: &Machine<'_>,
        node_of: &dyn Fn(&str) -> Option<usize>,
    ) -> Result<Vec<usize>, PinningError> {
        let Machine { layout, available } = *machine;
        match self {
            Pinning::None => Ok(Vec::new()),
            Pinning::EachCore => take(threads, available, || "this process".to_owned()),
            Pinning::Cores(list) => {
                if let Some(&core) = list.iter().find(|core| !available.contains(core)) {
                    return Err(PinningError::NoSuchCore { core, available: available.to_vec() });
                }
                match list.is_empty() {
                    true => Err(PinningError::NoCores),
                    false => Ok(list.iter().copied().cycle().take(threads).collect()),
                }
            }
            // Nothing is far.
            Pinning::NearDevice(_) if !layout.has_several() => {
                take(threads, available, || "this process".to_owned())
            }
            Pinning::NearDevice(device) => {
                let unknown = || PinningError::UnknownNode { device: device.clone() };
                let node = node_of(device).ok_or_else(unknown)?;
                let is_near = |core: &usize| layout.node_of_core(*core) == Some(node);
                let near: Vec<_> = available.iter().copied().filter(is_near).collect();
                if near.is_empty() {
                    let (device, available) = (device.clone(), available.to_vec());
                    return Err(PinningError::OnlyFarCores { device, node, available });
                }
                take(threads, &near, || format!("NUMA node {node}, where {device} is,"))
            }
        }
    }
}

fn take(
    threads: usize,
    cores: &[usize],
    place: impl Fn() -> String,
) -> Result<Vec<usize>, PinningError> {
    match cores.get(..threads) {
        Some(cores) => Ok(cores.to_vec()),
        None => Err(PinningError::TooFewCores { threads, cores: cores.len(), place: place() }),
    }
}

/// The cores that this thread may use, in ascending order.
fn available() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// Pins the calling thread to this core.
///
/// # Errors
/// The system does not let it: this process may not use the core, or there is none.
pub fn pin_this_thread(core: usize) -> Result<(), PinningError> {
    let available = available();
    // Its affinity may be narrower than what it may have, so that only the system can tell.
    if core >= CpuSet::MAX_CPU {
        return Err(PinningError::NoSuchCore { core, available });
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)
        .map_err(|errno| PinningError::System { core, source: errno.into() })
}

#[cfg(test)]
mod tests {
    use super::super::layout::node_of_device;
    use super::super::layout::tests::two_sockets;
    use super::*;

    /// On two sockets.
    fn choose(
        pinning: &Pinning,
        threads: usize,
        available: &[usize],
    ) -> Result<Vec<usize>, String> {
        let layout = Layout::of(&two_sockets);
        let machine = Machine { layout: &layout, available };
        let node_of = |device: &str| node_of_device(&two_sockets, device);
        pinning.choose(threads, &machine, &node_of).map_err(|error| error.to_string())
    }

    fn near(device: &str) -> Pinning {
        Pinning::NearDevice(device.to_owned())
    }

    const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    #[test]
    fn threads_near_a_device_get_the_cores_of_its_node() {
        assert_eq!(choose(&near("mlx5_0"), 3, &ALL), Ok(vec![0, 1, 4]));
        assert_eq!(choose(&near("mlx5_1"), 4, &ALL), Ok(vec![2, 3, 6, 7]));
        assert_eq!(choose(&near("rxe0"), 1, &ALL), Ok(vec![2]));
        assert_eq!(choose(&near("mlx5_1"), 1, &[0, 1, 6]), Ok(vec![6]), "of those that it may use");
    }

    #[test]
    fn what_would_be_far_or_shared_is_refused_with_the_reason() {
        let told = choose(&near("mlx5_1"), 5, &ALL).unwrap_err();
        assert!(
            told.contains("5 threads") && told.contains("NUMA node 1, where mlx5_1 is, has 4"),
            "{told}"
        );
        let told = choose(&near("mlx5_0"), 1, &[2, 3]).unwrap_err();
        assert!(told.contains("none of its cores, only [2, 3]"), "{told}");
        for device in ["mlx5_2", "shm"] {
            let told = choose(&near(device), 1, &ALL).unwrap_err();
            assert!(told.contains(device) && told.contains("name the cores"), "{told}");
        }
        let told = choose(&Pinning::EachCore, 9, &ALL).unwrap_err();
        assert!(told.contains("this process has 8"), "{told}");
        let told = choose(&Pinning::Cores(vec![1, 9]), 2, &ALL).unwrap_err();
        assert!(told.contains("core 9 is not available"), "{told}");
        assert!(choose(&Pinning::Cores(vec![]), 2, &ALL).is_err());
    }

    #[test]
    fn the_other_policies_do_not_ask_where_a_device_is() {
        assert_eq!(choose(&Pinning::None, 3, &ALL), Ok(vec![]));
        assert_eq!(choose(&Pinning::EachCore, 3, &[1, 3, 5, 7]), Ok(vec![1, 3, 5]));
        assert_eq!(choose(&Pinning::Cores(vec![6, 2]), 3, &ALL), Ok(vec![6, 2, 6]));
    }

    #[test]
    fn on_one_node_every_core_is_near() {
        let one = Layout::of(&|path| {
            let text = match path {
                "/sys/devices/system/node/online" => "0",
                "/sys/devices/system/node/node0/cpulist" => "0-1",
                _ => return None,
            };
            Some(text.to_owned())
        });
        for layout in [one, Layout::default()] {
            let machine = Machine { layout: &layout, available: &[0, 1] };
            assert_eq!(near("rxe1").choose(2, &machine, &|_| None).unwrap(), [0, 1]);
        }
    }

    #[test]
    fn a_thread_is_pinned_where_this_machine_says() {
        std::thread::spawn(|| {
            let cores = Pinning::EachCore.cores(1).unwrap();
            pin_this_thread(cores[0]).unwrap();
            assert_eq!(available(), cores);
            assert!(matches!(pin_this_thread(1 << 20), Err(PinningError::NoSuchCore { .. })));
        })
        .join()
        .unwrap();
    }
}
