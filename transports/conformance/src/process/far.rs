//! Processes on another machine: a daemon starts them there.
//!
//! A connection sends one line, and is answered with one. `start PATIENCE TEMPLATE` is answered with `started PID`, and
//! from then on the connection is that process's standard input and output. `kill PID` is answered with `killed` when the
//! process is gone.

use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::patience::{PATIENCE_VARIABLE, patience, patient};

/// The longest that a line may take.
const LINE_BOUND: Duration = Duration::from_secs(10);

/// No line is longer.
const MAX_LINE_BYTES: u64 = 1024;

/// A process on another machine.
#[derive(Debug)]
pub(super) struct FarProcess {
    daemon: SocketAddr,
    pub(super) pid: u32,
}

impl FarProcess {
    /// Starts one; also gives its standard input and output.
    pub(super) fn start(daemon: SocketAddr, template: &str) -> io::Result<(FarProcess, TcpStream)> {
        let (answer, stream) = ask(daemon, &format!("start {} {template}", patience()))?;
        match answer.strip_prefix("started ").map(str::parse) {
            Some(Ok(pid)) => {
                stream.set_read_timeout(None)?;
                Ok((FarProcess { daemon, pid }, stream))
            }
            _ => Err(io::Error::other(format!("{daemon} answered {answer:?}"))),
        }
    }

    /// Kills it and waits for its end.
    pub(super) fn kill(&self) -> io::Result<()> {
        match ask(self.daemon, &format!("kill {}", self.pid))?.0.as_str() {
            "killed" => Ok(()),
            answer => Err(io::Error::other(format!("{} answered {answer:?}", self.daemon))),
        }
    }
}

fn ask(daemon: SocketAddr, line: &str) -> io::Result<(String, TcpStream)> {
    let mut stream = TcpStream::connect_timeout(&daemon, patient(LINE_BOUND))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patient(LINE_BOUND)))?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    Ok((read_line(&stream)?, stream))
}

/// Reads one line, byte by byte: what follows it is for another reader.
fn read_line(stream: &TcpStream) -> io::Result<String> {
    let mut line = String::new();
    let mut reader = BufReader::with_capacity(1, stream).take(MAX_LINE_BYTES);
    reader.read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Starts processes of `program` for any client, until the listener fails.
pub fn serve(listener: &TcpListener, program: &Path) -> io::Result<()> {
    let children = Mutex::new(HashMap::new());
    thread::scope(|scope| {
        loop {
            let stream = listener.accept()?.0;
            let children = &children;
            scope.spawn(move || {
                if let Err(error) = answer(&stream, program, children) {
                    eprintln!("a request was not understood: {error}");
                }
            });
        }
    })
}

type Children = Mutex<HashMap<u32, Child>>;

fn answer(mut stream: &TcpStream, program: &Path, children: &Children) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LINE_BOUND))?;
    let line = read_line(stream)?;
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["start", patience, template] => {
            stream.set_read_timeout(None)?;
            let input = OwnedFd::from(stream.try_clone()?);
            let output = input.try_clone()?;
            // Held until its id has been sent: the process may write as soon as it starts.
            let mut children = children.lock().unwrap_or_else(PoisonError::into_inner);
            children.retain(|_, child: &mut Child| matches!(child.try_wait(), Ok(None)));
            let mut command = Command::new(program);
            command.args(["peer", template]).env(PATIENCE_VARIABLE, patience);
            let child = command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).spawn()?;
            stream.write_all(format!("started {}\n", child.id()).as_bytes())?;
            children.insert(child.id(), child);
            Ok(())
        }
        ["kill", pid] => {
            let pid = pid.parse().map_err(|_| io::Error::other(line.clone()))?;
            let child = children.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
            // It may have ended by itself.
            if let Some(mut child) = child {
                child.kill()?;
                child.wait()?;
            }
            stream.write_all(b"killed\n")
        }
        _ => Err(io::Error::other(line)),
    }
}
