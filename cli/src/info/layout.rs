//! Where things are in this machine: nodes with their cores, devices, and the threads of running servers; and what is far.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use farcall_verbs::numa;
use serde::Serialize;

use super::device::Device;

/// How the kernel shows the names of server threads, which it cuts after 15 bytes.
const SERVER_THREAD: &str = "farcall-server-";

/// Nodes, devices and servers.
#[derive(Debug, Serialize)]
pub(super) struct Layout {
    nodes: Vec<Node>,
    devices: Vec<Place>,
    /// The processes with server threads that this user may look at.
    servers: Vec<Server>,
}

/// A NUMA node.
#[derive(Debug, Serialize)]
struct Node {
    number: usize,
    cores: Vec<usize>,
}

/// Where a device is.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Place {
    device: String,
    /// The node that it is attached to, if the kernel says.
    node: Option<usize>,
}

/// A process that serves.
#[derive(Debug, Serialize)]
struct Server {
    pid: u32,
    /// The RDMA devices that it has opened.
    devices: Vec<Place>,
    threads: Vec<Thread>,
}

/// A server thread.
#[derive(Debug, Serialize)]
struct Thread {
    tid: u32,
    /// Cores that it may run on.
    cores: Vec<usize>,
    /// The devices of its server that it is far from, or may be.
    far: Vec<Far>,
}

/// A thread that is on another node than a device, or may be.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Far {
    device: String,
    /// The node of the device.
    node: usize,
    /// None of the thread's cores is on it; otherwise some are.
    always: bool,
}

impl Layout {
    pub(super) fn look(devices: &[Device]) -> Layout {
        let layout = numa::Layout::read();
        let nodes = layout.nodes().iter();
        let nodes = nodes.map(|node| Node { number: node.number, cores: node.cores.clone() });
        let devices = devices.iter().map(|device| Place::of(&device.name));
        Layout {
            nodes: nodes.collect(),
            devices: devices.filter(|it| it.node.is_some()).collect(),
            servers: servers(&layout),
        }
    }
}

impl Place {
    fn of(device: &str) -> Place {
        Place { device: device.to_owned(), node: numa::Layout::node_of_device(device) }
    }
}

/// The devices that a thread on these cores is far from.
fn far(cores: &[usize], devices: &[Place], layout: &numa::Layout) -> Vec<Far> {
    let far_from = |place: &Place| {
        let node = place.node?;
        let is_far = |core: &&usize| layout.node_of_core(**core).is_some_and(|it| it != node);
        let count = cores.iter().filter(is_far).count();
        let device = place.device.clone();
        (count > 0).then_some(Far { device, node, always: count == cores.len() })
    };
    devices.iter().filter_map(far_from).collect()
}

/// The processes that have server threads.
fn servers(layout: &numa::Layout) -> Vec<Server> {
    let mut servers: Vec<_> =
        numbers_in(Path::new("/proc")).filter_map(|pid| server(pid, layout)).collect();
    servers.sort_by_key(|server| server.pid);
    servers
}

fn server(pid: u32, layout: &numa::Layout) -> Option<Server> {
    let process = Path::new("/proc").join(pid.to_string());
    let tasks = process.join("task");
    let mut threads: Vec<_> = numbers_in(&tasks)
        .filter_map(|tid| {
            let task = tasks.join(tid.to_string());
            let name = fs::read_to_string(task.join("comm")).ok()?;
            let status = fs::read_to_string(task.join("status")).ok()?;
            let cores = name.starts_with(SERVER_THREAD).then(|| allowed_cores(&status))??;
            Some(Thread { tid, cores, far: Vec::new() })
        })
        .collect();
    threads.sort_by_key(|thread| thread.tid);
    if threads.is_empty() {
        return None;
    }
    let devices = opened_devices(&process.join("fd"));
    for thread in &mut threads {
        thread.far = far(&thread.cores, &devices, layout);
    }
    Some(Server { pid, devices, threads })
}

/// The names in a folder that are numbers.
fn numbers_in(folder: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The cores in the text of `/proc/PID/task/TID/status`.
fn allowed_cores(status: &str) -> Option<Vec<usize>> {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    numa::Layout::parse_list(line)
}

/// The RDMA devices among these descriptors.
fn opened_devices(descriptors: &Path) -> Vec<Place> {
    let entries = fs::read_dir(descriptors).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    let verbs = files.filter_map(|file| {
        let file = file.strip_prefix("/dev/infiniband").ok()?.to_str()?.to_owned();
        fs::read_to_string(format!("/sys/class/infiniband_verbs/{file}/ibdev")).ok()
    });
    let mut names: Vec<_> = verbs.map(|name| name.trim().to_owned()).collect();
    names.sort();
    names.dedup();
    names.iter().map(|name| Place::of(name)).collect()
}

/// Writes it as text.
pub(super) fn write(out: &mut impl Write, layout: &Layout) -> io::Result<()> {
    let Layout { nodes, devices, servers } = layout;
    writeln!(out, "\nlayout")?;
    let mut row = |name: String, value: String| writeln!(out, "  {name:<18} {value}");
    for Node { number, cores } in nodes {
        row(format!("NUMA node {number}"), named_cores(cores))?;
    }
    for Place { device, node } in devices {
        let node = node.map_or("no".to_owned(), |node| node.to_string());
        row(device.clone(), format!("on NUMA node {node}"))?;
    }
    for Server { pid, threads, .. } in servers {
        for (number, Thread { cores, far, .. }) in threads.iter().enumerate() {
            let name = if number == 0 { format!("server {pid}") } else { String::new() };
            let mut said = format!("thread on {}", named_cores(cores));
            for Far { device, node, always } in far {
                let far = if *always { "far from" } else { "on some of them far from" };
                said += &format!("; {far} {device}, which is on node {node}");
            }
            row(name, said)?;
        }
    }
    Ok(())
}

/// Cores as ranges and numbers.
fn named_cores(cores: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => ranges.push((core, core)),
        }
    }
    let range =
        |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    match (cores.len(), ranges.into_iter().map(range).collect::<Vec<_>>().join(",")) {
        (0, _) => "no cores".to_owned(),
        (1, core) => format!("core {core}"),
        (_, cores) => format!("cores {cores}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_sockets() -> numa::Layout {
        let node = |number, cores: &[usize]| numa::Node { number, cores: cores.into() };
        numa::Layout::with_nodes(vec![node(0, &[0, 1]), node(1, &[2, 3])])
    }

    fn place(device: &str, node: Option<usize>) -> Place {
        Place { device: device.to_owned(), node }
    }

    #[test]
    fn a_thread_is_far_from_the_devices_of_other_nodes() {
        let devices = [place("mlx5_0", Some(0)), place("mlx5_1", Some(1)), place("rxe0", None)];
        let from = |cores: &[usize]| {
            let far = far(cores, &devices, &two_sockets());
            far.into_iter().map(|far| (far.device, far.always)).collect::<Vec<_>>()
        };
        assert_eq!(from(&[1]), [("mlx5_1".to_owned(), true)]);
        assert_eq!(from(&[2, 3]), [("mlx5_0".to_owned(), true)]);
        let some = [("mlx5_0".to_owned(), false), ("mlx5_1".to_owned(), false)];
        assert_eq!(from(&[0, 1, 2, 3]), some);
        assert!(from(&[7]).is_empty(), "a core of which nothing is known");
    }

    #[test]
    fn what_is_far_is_said() {
        let far = |always| vec![Far { device: "mlx5_1".into(), node: 1, always }];
        let layout = Layout {
            nodes: vec![Node { number: 0, cores: vec![0, 1, 2, 5] }],
            devices: vec![place("mlx5_1", Some(1))],
            servers: vec![Server {
                pid: 7,
                devices: vec![place("mlx5_1", Some(1))],
                threads: vec![
                    Thread { tid: 8, cores: vec![0], far: far(true) },
                    Thread { tid: 9, cores: vec![0, 1, 2], far: far(false) },
                ],
            }],
        };
        let mut text = Vec::new();
        write(&mut text, &layout).unwrap();
        let text = String::from_utf8(text).unwrap();
        for told in [
            "NUMA node 0        cores 0-2,5",
            "mlx5_1             on NUMA node 1",
            "server 7           thread on core 0; far from mlx5_1, which is on node 1",
            "thread on cores 0-2; on some of them far from mlx5_1",
        ] {
            assert!(text.contains(told), "{told}: {text}");
        }
    }

    #[test]
    fn cores_are_read_from_a_threads_status() {
        let status = "Name:\tfarcall-server-\nCpus_allowed:\tf\nCpus_allowed_list:\t0-1,3\nMems_allowed_list:\t0\n";
        assert_eq!(allowed_cores(status), Some(vec![0, 1, 3]));
        assert_eq!(allowed_cores("Name:\tx\n"), None);
    }
}
