//! The demo's child processes. Dropping one kills it; none outlives the demo.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::super::serve::LISTENING_ON;
use super::protocol::{self, Event, Task};

/// How long a process may take to exit when asked to.
const END_WITHIN: Duration = Duration::from_secs(10);

/// The interval of checks whether a process has exited.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A child process that exits when its standard input is closed.
pub(super) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    name: String,
}

impl Process {
    fn spawn(name: String, arguments: &[&str]) -> Result<Self> {
        let program = std::env::current_exe().context("this program cannot find itself")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{name} could not be started"))?;
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, name })
    }

    fn stdout(&mut self) -> Result<impl BufRead + Send + 'static> {
        let stdout = self.child.stdout.take().context("standard output was taken")?;
        Ok(BufReader::new(stdout))
    }

    /// Closes its standard input, and waits for its exit for a bounded time.
    pub(super) fn end(mut self) -> Result<()> {
        self.stdin = None;
        let status = self.wait(END_WITHIN)?;
        if !status.success() {
            bail!("{} ended with {status}", self.name);
        }
        Ok(())
    }

    /// Kills it while it works, and checks that it was still running.
    fn kill_at_work(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended by itself with {status}", self.name);
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} has not ended within {} s", self.name, within.as_secs());
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both only fail if it has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server that listens there and waits until it is ready. Gives its address too, with the port that it got.
pub(super) fn serve(listen: &str, threads: u32, within: Duration) -> Result<(Process, String)> {
    let threads = threads.to_string();
    let arguments = ["serve", "--listen", listen, "--threads", &threads, "--until-stdin-ends"];
    let mut server = Process::spawn("the server".to_owned(), &arguments)?;
    let mut stdout = server.stdout()?;
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut line = String::new();
        // Without a whole line it has ended.
        let _ = stdout.read_line(&mut line);
        let _ = sender.send(line.trim_end().strip_prefix(LISTENING_ON).map(str::to_owned));
        // Read the rest of its output, so that its writes never block.
        let _ = std::io::copy(&mut stdout, &mut std::io::sink());
    });
    match receiver.recv_timeout(within) {
        Ok(Some(address)) => Ok((server, address)),
        Ok(None) => {
            let status = server.wait(END_WITHIN)?;
            bail!("the server ended before it was ready, with {status}; it says why above")
        }
        Err(_) => bail!("the server was not ready within {} s", within.as_secs()),
    }
}

/// The demo's clients and their events.
pub(super) struct Clients {
    processes: Vec<Process>,
    events: Receiver<(usize, Option<Event>)>,
}

impl Clients {
    /// Starts one client per task.
    pub(super) fn start(tasks: &[Task], text: &[u8]) -> Result<Self> {
        let (sender, events) = channel();
        let mut clients = Self { processes: Vec::new(), events };
        for task in tasks {
            let mut process = Process::spawn(format!("client {}", task.me), &["demo-client"])?;
            listen(clients.processes.len(), process.stdout()?, sender.clone());
            let stdin = process.stdin.as_mut().context("standard input was taken")?;
            protocol::send(stdin, task)
                .and_then(|()| stdin.write_all(text))
                .and_then(|()| stdin.flush())
                .with_context(|| format!("client {} took no task", task.me))?;
            clients.processes.push(process);
        }
        Ok(clients)
    }

    /// The number of clients.
    pub(super) fn len(&self) -> usize {
        self.processes.len()
    }

    /// Sends a command to all clients.
    pub(super) fn send(&mut self, command: &protocol::Command) -> Result<()> {
        for process in &mut self.processes {
            let stdin = process.stdin.as_mut().context("its standard input is closed")?;
            protocol::send(stdin, command)
                .with_context(|| format!("{} no longer reads its standard input", process.name))?;
        }
        Ok(())
    }

    /// Receives events until all clients have reported `done`, for a bounded time.
    pub(super) fn until_all(
        &self,
        within: Duration,
        mut done: impl FnMut(usize, Event) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + within;
        let mut left = self.len();
        while left > 0 {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let (client, event) = match self.events.recv_timeout(remaining) {
                Ok(said) => said,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{left} clients were not done within {} s", within.as_secs())
                }
                Err(RecvTimeoutError::Disconnected) => bail!("the clients are gone"),
            };
            let name = &self.processes[client].name;
            match event {
                Some(Event::Failed(why)) => bail!("{name}: {why}"),
                None => bail!("{name} ended before it was done"),
                Some(event) => left -= usize::from(done(client, event)),
            }
        }
        Ok(())
    }

    /// Kills them with SIGKILL while calls are in flight.
    pub(super) fn kill_at_work(self) -> Result<()> {
        self.processes.into_iter().try_for_each(Process::kill_at_work)
    }

    /// Ends them all.
    pub(super) fn end(self) -> Result<()> {
        self.processes.into_iter().try_for_each(Process::end)
    }
}

fn listen(
    client: usize,
    mut stdout: impl BufRead + Send + 'static,
    events: Sender<(usize, Option<Event>)>,
) {
    thread::spawn(move || {
        loop {
            // An unparsable line is treated as the end.
            let event = protocol::receive(&mut stdout).ok().flatten();
            let over = event.is_none();
            if events.send((client, event)).is_err() || over {
                return;
            }
        }
    });
}
