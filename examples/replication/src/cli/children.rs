//! Replicas as processes of this machine.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How long a replica may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A replica's process, which is killed when this is dropped.
pub(crate) struct ReplicaProcess {
    child: Child,
    pub(crate) address: String,
}

/// Starts replicas of one group.
pub(crate) struct Starter {
    /// Where the membership service is.
    pub(crate) membership: String,
    pub(crate) detect: Duration,
    /// Replicas sync below it.
    pub(crate) dir: Option<PathBuf>,
    prefix: String,
    started: u32,
}

impl Starter {
    pub(crate) fn new(membership: &str, detect: Duration, dir: Option<&Path>) -> Starter {
        let prefix = format!("{membership}-replica");
        let dir = dir.map(Path::to_path_buf);
        Starter { membership: membership.to_owned(), detect, dir, prefix, started: 0 }
    }

    /// Starts another replica, and waits until it listens.
    pub(crate) fn start(&mut self) -> Result<ReplicaProcess> {
        self.started += 1;
        let address = format!("{}-{}", self.prefix, self.started);
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(["serve", "--listen", &address, "--membership", &self.membership]);
        command.args(["--detect", &self.detect.as_secs_f64().to_string()]);
        if let Some(dir) = &self.dir {
            command.arg("--dir").arg(dir.join(self.started.to_string()));
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut process =
            ReplicaProcess { child: child.context("cannot start a replica")?, address };
        let output = process.child.stdout.take().context("the replica has no output")?;
        let (sender, listening) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(output).read_line(&mut line);
            let _ = sender.send(read.is_ok() && line.starts_with("listening"));
        });
        if listening.recv_timeout(START_TIMEOUT) != Ok(true) {
            bail!("the replica at {} did not start", process.address);
        }
        Ok(process)
    }
}

impl ReplicaProcess {
    /// As `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops it, as `kill -STOP` does.
    pub(crate) fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid =
            Pid::from_raw(self.child.id().try_into()?).context("the replica has no number")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for ReplicaProcess {
    fn drop(&mut self) {
        self.end();
    }
}
