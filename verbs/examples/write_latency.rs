//! Measures the one-way latency of a 32-byte WRITE, as perftest's `ib_write_lat` does: two ends write to each
//! other alternately, spin on the last byte of the other's message, and poll the completion of each WRITE.
//! Run next to `ib_write_lat`, it shows the overhead of this crate.
//!
//! `cargo run --release -p farcall-verbs --example write_latency DEVICE [ROUNDS]`, where DEVICE is `shm`, or
//! with `--features ibverbs` an RDMA device.

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, Endpoint, QpType, QueuePair, QueuePairConfig,
    RemoteRegion, RemoteSlice, SharedRegion, Status, WorkCompletion, WorkRequest,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Perftest's default for this test.
const SIZE_BYTES: usize = 32;

/// The offset of the message's last word, on which the receiver spins.
const LAST_WORD: usize = SIZE_BYTES - 8;

/// Rounds before the measurement.
const WARM_UP: usize = 100;

/// Longer than any round, unless the peer is gone.
const ROUND_TIMEOUT: Duration = Duration::from_secs(5);

/// Iterations between two reads of the clock.
const TURNS_PER_LOOK: u32 = 1 << 16;

/// The address and memory of one end, sent to the other; sent again, it means that this end has connected.
type Introduction = (Endpoint, RemoteRegion);

struct End {
    cq: CompletionQueue,
    qp: QueuePair,
    region: SharedRegion,
    remote: RemoteSlice,
    completions: [WorkCompletion; 1],
}

impl End {
    fn connect(
        device: &str,
        tell: &Sender<Introduction>,
        hear: &Receiver<Introduction>,
    ) -> Result<End, Failure> {
        let device = Device::open(device)?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(16, None)?;
        let mut qp = pd.create_qp(QueuePairConfig::new(QpType::Rc, &cq, &cq))?;
        let region = pd.alloc_shared(SIZE_BYTES, Access::REMOTE_WRITE)?;
        let introduction = (qp.endpoint(), region.remote());
        tell.send(introduction.clone())?;
        let (peer, remote) = hear.recv()?;
        qp.connect(&peer, &ConnectOptions::default())?;
        tell.send(introduction)?;
        hear.recv()?;
        let remote = remote.slice(0, SIZE_BYTES as u64)?;
        Ok(End { cq, qp, region, remote, completions: [WorkCompletion::default()] })
    }

    /// Writes `round` to the other end, and polls until it has completed.
    #[inline]
    fn write(&mut self, round: u64) -> Result<(), Failure> {
        let mut bytes = [0; SIZE_BYTES];
        bytes[LAST_WORD..].copy_from_slice(&round.to_ne_bytes());
        let request = WorkRequest::write(&bytes, self.remote).signaled(round);
        self.qp.post_send_one(request).map_err(|(error, _)| error)?;
        spin("the completion of a WRITE", || Ok(self.cq.poll(&mut self.completions)? == 1))?;
        match self.completions[0].status {
            Status::Success => Ok(()),
            status => Err(format!("a WRITE ended with {status:?}").into()),
        }
    }

    /// Spins until the other end has written `round`.
    #[inline]
    fn await_write(&self, round: u64) -> Result<(), Failure> {
        spin("the other end's WRITE", || Ok(self.region.load_u64(LAST_WORD) == round))
    }
}

/// Repeats without a pause until `done` or a timeout, as `ib_write_lat` does.
#[inline]
fn spin(what: &str, mut done: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let mut begun = None;
    loop {
        for _ in 0..TURNS_PER_LOOK {
            if done()? {
                return Ok(());
            }
        }
        if begun.get_or_insert_with(Instant::now).elapsed() > ROUND_TIMEOUT {
            return Err(format!("no sign of {what} within {ROUND_TIMEOUT:?}").into());
        }
    }
}

/// The one-way latency of each round in nanoseconds.
fn measure(device: &str, rounds: usize) -> Result<Vec<u64>, Failure> {
    let (to_far, from_near) = channel();
    let (to_near, from_far) = channel();
    let last = (WARM_UP + rounds) as u64;
    thread::scope(|scope| {
        let far = scope.spawn(move || -> Result<(), Failure> {
            let mut end = End::connect(device, &to_near, &from_near)?;
            for round in 1..=last {
                end.await_write(round)?;
                end.write(round)?;
            }
            Ok(())
        });
        let near = || -> Result<Vec<u64>, Failure> {
            let mut end = End::connect(device, &to_far, &from_far)?;
            let clock = quanta::Clock::new();
            let mut samples = Vec::with_capacity(rounds);
            let mut posted = clock.raw();
            for round in 1..=last {
                end.write(round)?;
                end.await_write(round)?;
                let now = clock.raw();
                if round > WARM_UP as u64 {
                    samples.push(clock.delta_as_nanos(posted, now) / 2);
                }
                posted = now;
            }
            Ok(samples)
        };
        let near = near();
        far.join().map_err(|_| "the other end panicked")??;
        near
    })
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (device, rounds) = match arguments.as_slice() {
        [device] => (device, 1000),
        [device, rounds] => (device, rounds.parse()?),
        _ => return Err("usage: write_latency DEVICE [ROUNDS]".into()),
    };
    if rounds == 0 {
        return Err("ROUNDS must be 1 or more".into());
    }
    let mut samples = measure(device, rounds)?;
    samples.sort_unstable();
    let micros = |at: usize| samples[at] as f64 / 1e3;
    let last = samples.len() - 1;
    println!(
        "WRITE of {SIZE_BYTES} bytes on {device}, one way: min {:.2} us, typical {:.2} us, p99 {:.2} us",
        micros(0),
        micros(last / 2),
        micros(last * 99 / 100)
    );
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("write_latency: {failure}");
            ExitCode::FAILURE
        }
    }
}
