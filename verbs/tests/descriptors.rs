//! A process without free descriptors: its peers wait, it does not spin, and it accesses what it named when it connected.
#![forbid(unsafe_code)]

mod other;

use std::fs::{self, File};
use std::io::stdin;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, Endpoint, ProtectionDomain, QpType, QueuePair,
    QueuePairConfig, RemoteRegion, RemoteSlice, WorkCompletion, WorkRequest,
};
use other::{Other, say, to_endpoint, to_text};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const BOUND: Duration = Duration::from_secs(30);

/// Processor time that /proc counts in such units.
const TICK: Duration = Duration::from_millis(10);

fn queue_pair() -> (ProtectionDomain, CompletionQueue, QueuePair) {
    let device = Device::open("shm").unwrap();
    let pd = device.alloc_pd().unwrap();
    let queue = device.create_cq(16, None).unwrap();
    let qp = pd.create_qp(QueuePairConfig::new(QpType::Rc, &queue, &queue)).unwrap();
    (pd, queue, qp)
}

/// Leaves this process no free descriptor. Gives the limit that was.
fn spend_descriptors() -> Rlimit {
    let unused = File::open("/dev/null").unwrap().as_raw_fd();
    let usual = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(unused as u64), ..usual }).unwrap();
    usual
}

fn processor_time(other: &Other) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", other.process.id())).unwrap();
    let after_name = stat.rsplit(") ").next().unwrap();
    let ticks = after_name.split(' ').skip(11).take(2).map(|n| n.parse::<u32>().unwrap());
    TICK * ticks.sum::<u32>()
}

/// How often the threads of a process have waited.
fn waits_of(other: &Other) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", other.process.id())).unwrap();
    let waits = tasks.map(|task| {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    });
    waits.sum()
}

#[test]
fn a_peer_waits_for_a_process_without_descriptors_which_does_not_spin() {
    let mut other = Other::start("the_process_without_descriptors");
    let endpoint = to_endpoint(&other.hear());
    other.tell("spend them");
    assert_eq!(other.hear(), "spent");
    let (begun, waits) = (Instant::now(), waits_of(&other));
    let connecting = thread::spawn(move || {
        let (_pd, _queue, mut qp) = queue_pair();
        let options = ConnectOptions::default().setup_timeout(Duration::from_secs(60));
        qp.connect(&endpoint, &options)
    });
    while waits_of(&other) < waits + 3 {
        assert!(begun.elapsed() < BOUND, "it does not try to accept us, or without a pause");
        thread::yield_now();
    }
    // It tries to accept us for all of this time.
    let before = processor_time(&other);
    thread::sleep(Duration::from_secs(1));
    let spent = processor_time(&other) - before;
    assert!(spent < Duration::from_millis(200), "{spent:?} in a second");
    assert!(!connecting.is_finished());
    other.tell("free them");
    connecting.join().unwrap().unwrap();
}

#[test]
#[ignore = "the other process of the test above"]
fn the_process_without_descriptors() {
    let (_pd, _queue, qp) = queue_pair();
    say(&to_text(&qp.endpoint()));
    let mut lines = stdin().lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("spend them"));
    let usual = spend_descriptors();
    say("spent");
    assert_eq!(lines.next().as_deref(), Some("free them"));
    setrlimit(Resource::Nofile, usual).unwrap();
    assert_eq!(lines.next(), None, "the peer has ended");
}

/// Connects to the other process, which then writes into this region.
fn have_it_write(other: &mut Other, qp: &mut QueuePair, (endpoint, to): (&Endpoint, RemoteRegion)) {
    let RemoteRegion { addr, len, rkey, .. } = to;
    other.tell(&to_text(&qp.endpoint()));
    other.tell(&format!("{addr} {len} {rkey}"));
    qp.connect(endpoint, &ConnectOptions::default()).unwrap();
    other.tell("write");
    assert_eq!(other.hear(), "Success");
}

#[test]
fn a_process_without_descriptors_writes_into_a_region_that_it_named_when_it_connected() {
    let mut other = Other::start("the_process_that_writes");
    let endpoint = to_endpoint(&other.hear());
    let (pd, _queue, mut qp) = queue_pair();
    let region = pd.alloc_shared(4096, Access::REMOTE_WRITE).unwrap();
    have_it_write(&mut other, &mut qp, (&endpoint, region.remote()));
    assert_eq!(u64::from_le(region.load_u64(0)), 0x5eed);
}

/// How many files of this length the process has open.
fn open_files(len: usize) -> usize {
    let files = fs::read_dir("/proc/self/fd").unwrap();
    let metadata = files.filter_map(|file| fs::metadata(file.unwrap().path()).ok());
    metadata.filter(|file| file.is_file() && file.len() == len as u64).count()
}

/// Of a protection domain for one queue pair: no other peer can ask for its regions. A server with many clients would need a descriptor
/// for each.
#[test]
fn a_region_for_one_peer_has_no_descriptor_once_the_peer_has_it() {
    // No other test has files of this length.
    const LEN: usize = 17 << 12;
    let mut other = Other::start("the_process_that_writes");
    let endpoint = to_endpoint(&other.hear());
    let device = Device::open("shm").unwrap();
    let (pd, queue) = (device.alloc_pd_for_one_qp().unwrap(), device.create_cq(16, None).unwrap());
    let mut qp = pd.create_qp(QueuePairConfig::new(QpType::Rc, &queue, &queue)).unwrap();
    let region = pd.alloc_shared(LEN, Access::REMOTE_WRITE).unwrap();
    assert_eq!(open_files(LEN), 1);
    have_it_write(&mut other, &mut qp, (&endpoint, region.remote()));
    let end = Instant::now() + Duration::from_secs(20);
    while open_files(LEN) > 0 {
        assert!(Instant::now() < end, "it keeps its file");
        thread::yield_now();
    }
    assert_eq!(u64::from_le(region.load_u64(0)), 0x5eed);
}

#[test]
#[ignore = "the other process of the tests above"]
fn the_process_that_writes() {
    let (_pd, mut queue, mut qp) = queue_pair();
    say(&to_text(&qp.endpoint()));
    let mut lines = stdin().lines().map(Result::unwrap);
    let peer = to_endpoint(&lines.next().unwrap());
    let numbers = lines.next().unwrap();
    let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
    let region = RemoteRegion::new(numbers[0], numbers[2] as u32, numbers[1]);
    qp.connect(&peer, &ConnectOptions::default().region(region)).unwrap();
    assert_eq!(lines.next().as_deref(), Some("write"));
    spend_descriptors();
    let to = RemoteSlice::new(region.addr, region.rkey, 8);
    let word = 0x5eed_u64.to_le_bytes();
    qp.post_send_one(WorkRequest::write(&word, to).signaled(1)).unwrap();
    let mut completions = [WorkCompletion::default()];
    let end = Instant::now() + Duration::from_secs(20);
    while queue.poll(&mut completions).unwrap() == 0 {
        assert!(Instant::now() < end, "the WRITE does not complete");
        thread::yield_now();
    }
    say(&format!("{:?}", completions[0].status));
    assert_eq!(lines.next(), None, "the peer has ended");
}
