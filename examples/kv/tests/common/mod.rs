//! Runs the built program as users do. Every wait is bounded.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than any test, even on two busy cores.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

/// A unique address.
pub(crate) fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm://farcall-kv-test-{}-{next}", std::process::id())
}

/// A unique network address: this machine's, over shared memory.
pub(crate) fn network_address() -> String {
    format!("rdma://127.0.0.1:{}?device=shm", farcall_transports_conformance::ports::claim())
}

pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_farcall-kv"))
}

/// Runs a command to its end.
pub(crate) fn run(arguments: &[&str], stdin: &[u8]) -> Output {
    let mut child = program()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = stdin.to_vec();
    thread::spawn(move || {
        // The program may exit without reading all of it, which is not an error of the test.
        let _ = input.write_all(&bytes);
    });
    finish(child)
}

/// Waits for a process to exit, within [`BOUND`].
pub(crate) fn finish(child: Child) -> Output {
    let pid = Pid::from_child(&child);
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(BOUND) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            panic!("a process had not ended after {BOUND:?}");
        }
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A process whose lines are read as they arrive. Dropping it kills it.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: Receiver<String>,
}

impl Running {
    /// Starts a command and reads its standard output or standard error.
    pub(crate) fn start(arguments: &[&str], read_stderr: bool) -> Self {
        let mut command = program();
        command.args(arguments);
        Self::spawn(command, read_stderr)
    }

    /// Starts a command of any program and reads its standard output or standard error.
    pub(crate) fn spawn(mut command: Command, read_stderr: bool) -> Self {
        command.stdin(Stdio::null());
        if read_stderr {
            command.stderr(Stdio::piped()).stdout(Stdio::null());
        } else {
            command.stdout(Stdio::piped());
        }
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        if read_stderr {
            let stderr = BufReader::new(child.stderr.take().unwrap());
            thread::spawn(move || {
                stderr.lines().map_while(Result::ok).try_for_each(|l| sender.send(l))
            });
        } else {
            let stdout = BufReader::new(child.stdout.take().unwrap());
            thread::spawn(move || {
                stdout.lines().map_while(Result::ok).try_for_each(|l| sender.send(l))
            });
        }
        Self { child, lines }
    }

    /// The next line that contains `what`.
    pub(crate) fn line_with(&self, what: &str) -> String {
        let deadline = Instant::now() + BOUND;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(what) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("no line with {what:?} in {BOUND:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("it ended without {what:?}"),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its exit. Returns its exit code and remaining lines.
    pub(crate) fn finish(mut self) -> (Option<i32>, Vec<String>) {
        let deadline = Instant::now() + BOUND;
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("it had not ended after {BOUND:?}"),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server at a unique address.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) process: Running,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(more: &[&str]) -> Self {
        Self::start_at(&address(), more)
    }

    pub(crate) fn start_at(address: &str, more: &[&str]) -> Self {
        let address = address.to_owned();
        let arguments = [&["serve", "--listen", &address], more].concat();
        let process = Running::start(&arguments, false);
        process.line_with("listening on");
        Self { address, process }
    }

    /// Runs a client command with its address.
    pub(crate) fn run(&self, arguments: &[&str], stdin: &[u8]) -> Output {
        let (command, rest) = arguments.split_first().unwrap();
        run(&[&[command, "--address", &self.address], rest].concat(), stdin)
    }

    /// Runs a client command that must succeed, and returns its standard output.
    pub(crate) fn ok(&self, arguments: &[&str], stdin: &[u8]) -> Vec<u8> {
        let output = self.run(arguments, stdin);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        output.stdout
    }
}
