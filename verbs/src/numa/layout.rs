//! Which cores and devices belong to which node, as the kernel says.

use std::fs;
use std::path::Path;

/// Most numbers of a list: more cores than the kernel knows are a mistake of the list.
const MAX_LISTED: usize = 1 << 16;

/// The nodes of a machine and their cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    nodes: Vec<Node>,
}

/// A node: cores, and the memory next to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: usize,
    /// Its cores, also those that this process may not use; none if it has memory only.
    pub cores: Vec<usize>,
}

impl Layout {
    /// The layout of this machine. Without any node if the kernel does not say.
    pub fn read() -> Layout {
        Layout::of(&system_file)
    }

    /// A layout of these nodes, for programs that plan for another machine, and for tests.
    pub fn with_nodes(nodes: Vec<Node>) -> Layout {
        Layout { nodes }
    }

    /// The layout that these files of the kernel describe.
    pub(super) fn of(read: &dyn Fn(&str) -> Option<String>) -> Layout {
        let numbers = read("/sys/devices/system/node/online").and_then(|it| parse_list(&it));
        let node = |number| {
            let list = read(&format!("/sys/devices/system/node/node{number}/cpulist"))?;
            Some(Node { number, cores: parse_list(&list)? })
        };
        Layout { nodes: numbers.unwrap_or_default().into_iter().filter_map(node).collect() }
    }

    /// The nodes, in ascending order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether there is more than one node, so that something can be far.
    pub fn has_several(&self) -> bool {
        self.nodes.len() > 1
    }

    /// The node of a core; `None` if the kernel does not say.
    pub fn node_of_core(&self, core: usize) -> Option<usize> {
        self.nodes.iter().find(|node| node.cores.contains(&core)).map(|node| node.number)
    }

    /// The node that this RDMA device is attached to; for Soft-RoCE, that of the network interface below it. `None` if the kernel does
    /// not say, as for a device that is no hardware.
    pub fn node_of_device(name: &str) -> Option<usize> {
        node_of_device(&system_file, name)
    }

    /// The numbers in a list of the kernel, such as `0-3,8`; `None` if it is none.
    pub fn parse_list(list: &str) -> Option<Vec<usize>> {
        parse_list(list)
    }
}

fn system_file(path: &str) -> Option<String> {
    fs::read_to_string(Path::new(path)).ok()
}

/// The node of a device by these files of the kernel.
pub(super) fn node_of_device(read: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<usize> {
    let is_file_name = |name: &str| !name.is_empty() && !name.contains('/') && name != "..";
    // The kernel says -1 where there is no node.
    let number = |path: String| read(&path)?.trim().parse().ok();
    if !is_file_name(name) {
        return None;
    }
    let own = number(format!("/sys/class/infiniband/{name}/device/numa_node"));
    own.or_else(|| {
        let parent = read(&format!("/sys/class/infiniband/{name}/parent"))?;
        let interface = Some(parent.trim()).filter(|it| is_file_name(it))?;
        number(format!("/sys/class/net/{interface}/device/numa_node"))
    })
}

fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last - first >= MAX_LISTED - numbers.len() {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two nodes of four cores and one of memory alone, a NIC on each of the first two, Soft-RoCE over another NIC, and one over nothing.
    pub(in crate::numa) fn two_sockets(path: &str) -> Option<String> {
        let text = match path {
            "/sys/devices/system/node/online" => "0-2\n",
            "/sys/devices/system/node/node0/cpulist" => "0-1,4-5\n",
            "/sys/devices/system/node/node1/cpulist" => "2-3,6-7\n",
            "/sys/devices/system/node/node2/cpulist" => "\n",
            "/sys/class/infiniband/mlx5_0/device/numa_node" => "0\n",
            "/sys/class/infiniband/mlx5_1/device/numa_node" => "1\n",
            "/sys/class/infiniband/mlx5_2/device/numa_node" => "-1\n",
            "/sys/class/infiniband/rxe0/parent" => "eth1\n",
            "/sys/class/net/eth1/device/numa_node" => "1\n",
            "/sys/class/infiniband/rxe1/parent" => "lo\n",
            _ => return None,
        };
        Some(text.to_owned())
    }

    #[test]
    fn nodes_have_the_cores_that_the_kernel_lists() {
        let layout = Layout::of(&two_sockets);
        let cores: Vec<_> = layout.nodes().iter().map(|node| &node.cores[..]).collect();
        assert_eq!(cores, [&[0, 1, 4, 5][..], &[2, 3, 6, 7], &[]]);
        assert!(layout.has_several());
        assert_eq!(
            [0, 5, 3, 8].map(|core| layout.node_of_core(core)),
            [Some(0), Some(0), Some(1), None]
        );
        let unknown = Layout::of(&|_| None);
        assert_eq!(unknown, Layout::default());
        assert!(!unknown.has_several() && unknown.node_of_core(0).is_none());
    }

    #[test]
    fn devices_are_on_their_own_node_or_on_that_of_their_interface() {
        let node = |name| node_of_device(&two_sockets, name);
        assert_eq!((node("mlx5_0"), node("mlx5_1"), node("rxe0")), (Some(0), Some(1), Some(1)));
        for none in ["mlx5_2", "rxe1", "shm", "", "..", "a/b"] {
            assert_eq!(node(none), None, "{none}");
        }
    }

    #[test]
    fn lists_are_ranges_and_numbers() {
        assert_eq!(parse_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        for wrong in ["x", "1-", "3-1", "0-99999999", "0-18446744073709551615", "-1"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn this_machine_has_a_node_with_the_core_that_runs_this() {
        let layout = Layout::read();
        if let [only] = layout.nodes() {
            assert!(!only.cores.is_empty(), "{layout:?}");
        }
        let cores: Vec<_> = layout.nodes().iter().flat_map(|node| &node.cores).collect();
        let mut once = cores.clone();
        once.dedup();
        assert_eq!(cores, once, "a core has one node");
    }
}
