//! The driving side: starts a process of the suite, tells it what to do, and bounds every answer.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use super::far::FarProcess;
use super::pid_namespace;
use crate::patience::patient;

/// The longest that a peer may take for one answer.
const ANSWER_BOUND: Duration = Duration::from_secs(30);

/// A process of the suite. Dropping it kills the process and waits for its end.
#[derive(Debug)]
pub struct Peer {
    end: End,
    orders: Orders,
    answers: Receiver<String>,
    command: String,
}

/// How the process is ended.
#[derive(Debug)]
enum End {
    Child(Child),
    /// In a pid namespace of its own: the child is the process that made it.
    Namespace(Child),
    Far(FarProcess),
}

/// How commands reach it.
#[derive(Debug)]
enum Orders {
    Pipe(std::process::ChildStdin),
    Network(TcpStream),
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
        let answers = lines(child.stdout.take().expect("stdout is piped"));
        let end = match pid_namespace::is_within(&command) {
            true => End::Namespace(child),
            false => End::Child(child),
        };
        Peer { end, orders: Orders::Pipe(orders), answers, command: shown }
    }

    /// Starts one on the machine where [`serve`](super::serve) listens.
    #[track_caller]
    pub fn start_far(daemon: SocketAddr, template: &str) -> Peer {
        let command = format!("a process at {daemon}");
        let (process, stream) = FarProcess::start(daemon, template)
            .unwrap_or_else(|error| panic!("start {command}: {error}"));
        let answers = stream.try_clone().unwrap_or_else(|error| panic!("{command}: {error}"));
        let (end, orders) = (End::Far(process), Orders::Network(stream));
        Peer { end, orders, answers: lines(answers), command }
    }

    /// The process's id, on its machine. One of another pid namespace must have answered before.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        match &self.end {
            End::Child(child) => child.id(),
            End::Namespace(child) => match pid_namespace::inner(child) {
                Ok(process) => process.as_raw_nonzero().get().unsigned_abs(),
                Err(error) => panic!("the number of {}: {error}", self.command),
            },
            End::Far(process) => process.pid,
        }
    }

    /// Whether it runs on this machine.
    pub fn is_near(&self) -> bool {
        !matches!(self.end, End::Far(_))
    }

    /// Sends one order, without waiting for its answer.
    #[track_caller]
    pub fn order(&mut self, order: &str) {
        let line = format!("{order}\n");
        let sent = match &mut self.orders {
            Orders::Pipe(orders) => orders.write_all(line.as_bytes()),
            Orders::Network(orders) => orders.write_all(line.as_bytes()),
        };
        sent.unwrap_or_else(|error| panic!("order {order:?} to {}: {error}", self.command));
    }

    /// The next answer.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        match self.answers.recv_timeout(patient(ANSWER_BOUND)) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no answer in time from {}", self.command),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{} ended instead of answering", self.command)
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

    /// Lets the process end by itself; asserts that it ends well, and in time.
    #[track_caller]
    pub fn finish(mut self) {
        self.order("quit");
        match self.answers.recv_timeout(patient(ANSWER_BOUND)) {
            Err(RecvTimeoutError::Disconnected) => {}
            other => panic!("{} does not end: {other:?}", self.command),
        }
        if let End::Child(child) | End::Namespace(child) = &mut self.end {
            let status = child.wait();
            assert!(status.as_ref().is_ok_and(|s| s.success()), "{}: {status:?}", self.command);
        }
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    #[track_caller]
    pub fn kill(&mut self) {
        if let Err(error) = self.try_kill() {
            panic!("kill {}: {error}", self.command);
        }
    }

    fn try_kill(&mut self) -> std::io::Result<()> {
        match &mut self.end {
            End::Child(child) => child.kill().and_then(|()| child.wait().map(drop)),
            End::Namespace(child) => pid_namespace::kill(child),
            End::Far(process) => process.kill(),
        }
    }
}

/// The lines of a stream, as they arrive.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (send, answers) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    answers
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A process that cannot be killed ends when its input ends.
        let _ = self.try_kill();
        if let Orders::Network(orders) = &self.orders {
            let _ = orders.shutdown(Shutdown::Both);
        }
    }
}
