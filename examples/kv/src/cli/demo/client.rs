//! A client process of the demo: one connection and one working thread, controlled by its parent.

use std::io::{self, BufRead, BufReader, Read};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farcall_kv::ycsb::client::{Client, Counters};
use farcall_kv::ycsb::records::Records;

use super::protocol::{Command, Event, Task, receive, send};
use crate::cli::{connect_poll, exit, lifeline};

/// How often progress is reported to the parent.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// The main function of a client process.
pub(crate) fn run() -> ExitCode {
    lifeline::die_with_parent();
    match serve_parent() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // If this does not reach the parent, it sees the process exit.
            let _ = send(&mut io::stdout(), &Event::Failed(format!("{why:#}")));
            exit::ERROR.into()
        }
    }
}

fn serve_parent() -> Result<()> {
    let mut input = BufReader::new(io::stdin());
    let task: Task = receive(&mut input)?.context("no task was given")?;
    let mut text = vec![0; task.text_bytes];
    input.read_exact(&mut text).context("the text is incomplete")?;
    let commands = commands(input);

    let link = connect_poll(&task.address, task.timeout)?;
    let records = Records::lines(task.run, text);
    let mut client = Client::new(link, records, task.client_config());
    send(&mut io::stdout(), &Event::Ready)?;

    let counters = Arc::new(Counters::default());
    while let Ok(command) = commands.recv() {
        match command {
            Command::Work(duration) => {
                let reporter = Reporter::start(&counters);
                let started = Instant::now();
                let worked = client.work(started + duration, u64::MAX, &counters);
                let took = started.elapsed();
                drop(reporter);
                worked?;
                send(&mut io::stdout(), &Event::Worked(took))?;
            }
            Command::Audit => {
                client.audit(&counters)?;
                let found = client.findings();
                let done = Event::Done {
                    latencies: found.latencies.to_portable(),
                    checked: found.checked,
                    wrong: found.wrong,
                    reports: found.reports.clone(),
                };
                send(&mut io::stdout(), &done)?;
            }
        }
    }
    Ok(())
}

/// Receives the parent's commands. If the parent exits, the process ends immediately.
fn commands(mut input: impl BufRead + Send + 'static) -> Receiver<Command> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        while let Ok(Some(command)) = receive(&mut input) {
            if sender.send(command).is_err() {
                return;
            }
        }
        drop(sender);
        lifeline::end_soon();
    });
    receiver
}

/// Reports the client's progress to the parent until dropped.
struct Reporter {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Reporter {
    fn start(counters: &Arc<Counters>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (counters, stopped) = (counters.clone(), stop.clone());
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                thread::park_timeout(PROGRESS_EVERY);
                let progress = Event::Progress {
                    operations: counters.operations.load(Ordering::Relaxed),
                    wrong: counters.wrong.load(Ordering::Relaxed),
                };
                if send(&mut io::stdout(), &progress).is_err() {
                    return;
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
