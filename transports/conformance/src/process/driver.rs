//! The driving side: starts a process of the suite, tells it what to do, and bounds every answer.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

/// The longest that a peer may take for one answer.
const ANSWER_BOUND: Duration = Duration::from_secs(30);

/// A process of the suite. Dropping it kills the process and waits for its end.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    command: String,
}

impl Peer {
    /// Starts `command`, which runs [`main`](super::main) on its standard streams.
    #[track_caller]
    pub fn start(mut command: Command) -> Peer {
        let shown = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("start {shown}: {error}"));
        let orders = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (send, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Peer { child, orders, answers, command: shown }
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends one order, without waiting for its answer.
    #[track_caller]
    pub fn order(&mut self, order: &str) {
        self.orders
            .write_all(format!("{order}\n").as_bytes())
            .and_then(|()| self.orders.flush())
            .unwrap_or_else(|error| panic!("order {order:?} to {}: {error}", self.command));
    }

    /// The next answer.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        match self.answers.recv_timeout(ANSWER_BOUND) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no answer in time from {}", self.command),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{} ended instead of answering: {:?}", self.command, self.child.wait())
            }
        }
    }

    /// Sends one order and asserts that its answer begins with `expected`; gives what follows.
    #[track_caller]
    pub fn ask(&mut self, order: &str, expected: &str) -> String {
        self.order(order);
        self.expect(order, expected)
    }

    /// Asserts that the answer to `order`, sent earlier, begins with `expected`; gives the rest.
    #[track_caller]
    pub fn expect(&mut self, order: &str, expected: &str) -> String {
        let answer = self.answer();
        match answer.strip_prefix(expected) {
            Some(rest) => rest.trim_start().to_owned(),
            None => panic!("{order:?} was answered with {answer:?} instead of {expected:?}"),
        }
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) {
        // Both fail only when the process has already been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lets the process end by closing its input; asserts that it ends well, and in time.
    #[track_caller]
    pub fn finish(mut self) {
        self.order("quit");
        let end = Instant::now() + ANSWER_BOUND;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < end => thread::yield_now(),
                other => panic!("{} does not end: {other:?}", self.command),
            }
        };
        assert!(status.success(), "{} ended with {status}", self.command);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}
