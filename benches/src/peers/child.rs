//! Processes of peers: servers that say when they are ready, and clients that are told what to measure.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// The prefix of a process's first line; its address or nothing follows.
pub(super) const READY: &str = "ready";

/// The prefix of the line about a measurement: calls, nanoseconds, and the number of samples, which follow the line.
const DONE: &str = "done ";

/// How long a process may take for anything that takes milliseconds.
const BOUND: Duration = Duration::from_secs(20);

/// The most samples that are believed.
const MOST_SAMPLES: usize = 1 << 24;

/// A measurement of a client process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) calls: u64,
    pub(super) nanos: u64,
    /// Nanoseconds of single calls.
    pub(super) samples: Vec<u32>,
}

#[derive(Debug)]
enum Message {
    Ready(String),
    Done(Done),
}

/// A process that ends when its standard input does. Dropping it kills it.
pub(super) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Result<Message>>,
    ready: String,
}

impl Process {
    /// Starts it, and waits until it is ready.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (send, messages) = mpsc::channel();
        let mut process = Self { child, input, messages, ready: String::new() };
        let mut output = BufReader::new(output.context("the process has no output")?);
        thread::Builder::new().name("peer".into()).spawn(move || {
            // Ends with the process, or when the other end is dropped.
            while let Some(message) = read_message(&mut output).transpose() {
                if send.send(message).is_err() {
                    break;
                }
            }
        })?;
        match process.message(BOUND)? {
            Message::Ready(rest) => process.ready = rest,
            other => bail!("{program} was not ready, but said {other:?}"),
        }
        Ok(process)
    }

    /// What followed `ready`: the address of a server.
    pub(super) fn ready(&self) -> &str {
        &self.ready
    }

    /// Sends one line.
    pub(super) fn order(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("the process is ending")?;
        // One write, so that the reader does not see half a line.
        input.write_all(format!("{line}\n").as_bytes()).context("the process has ended")
    }

    /// Orders a measurement that takes about `time`.
    pub(super) fn measure(&mut self, line: &str, time: Duration) -> Result<Done> {
        self.order(line)?;
        match self.message(time + BOUND)? {
            Message::Done(done) => Ok(done),
            Message::Ready(_) => bail!("the process said that it is ready once more"),
        }
    }

    fn message(&self, bound: Duration) -> Result<Message> {
        match self.messages.recv_timeout(bound) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => bail!("the process said nothing for {bound:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the process has ended; its error is above")
            }
        }
    }

    /// Ends it in order.
    pub(super) fn stop(mut self) -> Result<()> {
        self.input = None;
        // Its output ends with it.
        match self.messages.recv_timeout(BOUND) {
            Err(RecvTimeoutError::Disconnected) => {}
            Err(RecvTimeoutError::Timeout) => bail!("the process did not end within {BOUND:?}"),
            Ok(message) => bail!("the process said at its end: {:?}", message?),
        }
        let status = self.child.wait().context("cannot wait for the process")?;
        ensure!(status.success(), "the process failed: {status}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either fails if the process has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next message; none at the end.
fn read_message(output: &mut BufReader<ChildStdout>) -> Result<Option<Message>> {
    let mut line = String::new();
    if output.read_line(&mut line).context("cannot read the process's output")? == 0 {
        return Ok(None);
    }
    let line = line.trim_end();
    if let Some(rest) = line.strip_prefix(READY) {
        return Ok(Some(Message::Ready(rest.trim().to_owned())));
    }
    let Some(done) = line.strip_prefix(DONE).and_then(parse_done) else {
        bail!("the process said `{line}`");
    };
    let (calls, nanos, count) = done;
    let mut bytes = vec![0; count * 4];
    output.read_exact(&mut bytes).context("the process ended within its samples")?;
    let samples = bytes.as_chunks().0.iter().map(|sample| u32::from_ne_bytes(*sample)).collect();
    Ok(Some(Message::Done(Done { calls, nanos, samples })))
}

fn parse_done(text: &str) -> Option<(u64, u64, usize)> {
    let mut words = text.split(' ');
    let calls = words.next()?.parse().ok()?;
    let nanos = words.next()?.parse().ok()?;
    let count = words.next()?.parse().ok()?;
    (words.next().is_none() && count <= MOST_SAMPLES).then_some((calls, nanos, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Process> {
        Process::start(Command::new("sh").args(["-c", script]))
    }

    fn why<T>(outcome: Result<T>) -> String {
        outcome.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_process_is_ready_measures_and_ends_with_its_input() {
        let script = "echo ready there; read order; [ \"$order\" = 'turn 5' ] || exit 1; echo done 7 9 2; printf 'abcdABCD'; cat";
        let mut process = shell(script).unwrap();
        assert_eq!(process.ready(), "there");
        let done = process.measure("turn 5", Duration::ZERO).unwrap();
        let samples = vec![u32::from_ne_bytes(*b"abcd"), u32::from_ne_bytes(*b"ABCD")];
        assert_eq!(done, Done { calls: 7, nanos: 9, samples });
        process.stop().unwrap();
    }

    #[test]
    fn what_goes_wrong_in_a_process_is_an_error() {
        assert!(why(shell("exit 3")).contains("has ended"));
        assert!(why(shell("echo hello")).contains("`hello`"));
        assert!(why(shell("echo 'done 1 2'")).contains("`done 1 2`"));
        assert!(
            why(shell("echo ready; cat > /dev/null; exit 3").unwrap().stop()).contains("failed")
        );
        let mut half = shell("echo ready; read order; echo done 1 1 9; printf abc").unwrap();
        assert!(why(half.measure("turn 1", Duration::ZERO)).contains("within its samples"));
    }
}
