//! A process without free descriptors: its peers wait, and it does not spin.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use farcall_verbs::{
    CompletionQueue, ConnectOptions, Device, Endpoint, QpType, QueuePair, QueuePairConfig,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Before each line that the other process says: test programs print lines of their own.
const MARK: &str = "descriptors: ";

/// Processor time that /proc counts in such units.
const TICK: Duration = Duration::from_millis(10);

fn queue_pair() -> (CompletionQueue, QueuePair) {
    let device = Device::open("shm").unwrap();
    let pd = device.alloc_pd().unwrap();
    let queue = device.create_cq(16, None).unwrap();
    let qp = pd.create_qp(QueuePairConfig::new(QpType::Rc, &queue, &queue)).unwrap();
    (queue, qp)
}

struct Other {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    fn start() -> Other {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_process_without_descriptors", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = process.stdin.take().unwrap();
        let from = BufReader::new(process.stdout.take().unwrap());
        Other { process, to, from }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let said = self.from.by_ref().lines().find_map(|line| {
            let line = line.unwrap();
            line.find(MARK).map(|at| line[at + MARK.len()..].to_owned())
        });
        said.expect("the other process speaks")
    }

    fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let after_name = stat.rsplit(") ").next().unwrap();
        let ticks = after_name.split(' ').skip(11).take(2).map(|n| n.parse::<u32>().unwrap());
        TICK * ticks.sum::<u32>()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_peer_waits_for_a_process_without_descriptors_which_does_not_spin() {
    let mut other = Other::start();
    let endpoint: Vec<u8> = other.hear().split(' ').map(|byte| byte.parse().unwrap()).collect();
    let endpoint = Endpoint::from_bytes(&endpoint).unwrap();
    other.tell("spend them");
    assert_eq!(other.hear(), "spent");
    let connecting = thread::spawn(move || {
        let (_queue, mut qp) = queue_pair();
        let options = ConnectOptions::default().setup_timeout(Duration::from_secs(60));
        qp.connect(&endpoint, &options)
    });
    // It tries to accept us for all of this time.
    let before = other.processor_time();
    thread::sleep(Duration::from_secs(1));
    let spent = other.processor_time() - before;
    assert!(spent < Duration::from_millis(200), "{spent:?} in a second");
    assert!(!connecting.is_finished());
    other.tell("free them");
    connecting.join().unwrap().unwrap();
}

#[test]
#[ignore = "the other process of the test above"]
fn the_process_without_descriptors() {
    let (_queue, qp) = queue_pair();
    let bytes: Vec<String> = qp.endpoint().to_bytes().iter().map(u8::to_string).collect();
    println!("{MARK}{}", bytes.join(" "));
    let mut lines = stdin().lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("spend them"));
    let unused = File::open("/dev/null").unwrap().as_raw_fd();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(unused as u64), ..limit }).unwrap();
    println!("{MARK}spent");
    assert_eq!(lines.next().as_deref(), Some("free them"));
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(lines.next(), None, "the peer has ended");
}
