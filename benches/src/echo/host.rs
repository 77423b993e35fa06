//! Where the server runs: in a thread of this process, or in a separate process.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;

use anyhow::{Context, Result, bail};
use farcall::{IdlePolicy, RunningServer, Server};

use super::service::{EchoServer, EchoService};

/// The line prefix that a server process prints when it can be connected to, followed by its address.
const READY: &str = "ready ";

/// A server that can be told to rest, and to resume.
pub(crate) enum Host {
    /// A thread of this process.
    Thread {
        /// The server.
        server: Box<RunningServer>,
        /// Ends its rest.
        resume: mpsc::Sender<()>,
    },
    /// A separate process, which exits when its standard input ends.
    Process {
        /// The process.
        child: Child,
        /// A byte ends its rest.
        input: ChildStdin,
        /// Where it listens.
        address: String,
    },
}

impl Host {
    /// Starts a server at `address` in a thread on `core`.
    pub(crate) fn thread(address: &str, core: usize) -> Result<Self> {
        let (server, resume) = listen(address, core)?;
        Ok(Self::Thread { server: Box::new(server), resume })
    }

    /// Starts a server in another process, which runs this program's `serve`.
    pub(crate) fn process(address: &str, core: usize) -> Result<Self> {
        let program = env::current_exe().context("cannot find this program's own file")?;
        let mut child = Command::new(program)
            .args(["serve", "--address", address, "--core", &core.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server process")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the server process has no pipes");
        };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("cannot hear the server process")?;
        let Some(address) = line.trim().strip_prefix(READY) else {
            bail!("the server process did not start; its error is above");
        };
        Ok(Self::Process { child, input, address: address.to_owned() })
    }

    /// The address for clients, including a port that the system chose.
    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Thread { server, .. } => server.address(),
            Self::Process { address, .. } => address,
        }
    }

    /// Ends the rest that a call of `rest` began.
    pub(crate) fn resume(&mut self) -> Result<()> {
        match self {
            Self::Thread { resume, .. } => resume.send(()).context("the server is gone"),
            Self::Process { input, .. } => input.write_all(&[0]).context("the server is gone"),
        }
    }

    /// Stops the server and waits for it.
    pub(crate) fn stop(self) -> Result<()> {
        match self {
            Self::Thread { server, .. } => stop(*server)?,
            Self::Process { mut child, input, .. } => {
                drop(input);
                let status = child.wait().context("cannot wait for the server process")?;
                if !status.success() {
                    bail!("the server process failed: {status}");
                }
            }
        }
        Ok(())
    }
}

/// The main function of a server process: serves until its standard input ends.
pub fn serve(address: &str, core: usize) -> Result<()> {
    let (server, resume) = listen(address, core)?;
    println!("{READY}{}", server.address());
    for byte in io::stdin().lock().bytes() {
        byte.context("cannot read the standard input")?;
        resume.send(()).context("the server is gone")?;
    }
    stop(server)
}

fn stop(server: RunningServer) -> Result<()> {
    let drained = server.shutdown();
    if drained.aborted_calls > 0 || drained.stuck_threads > 0 {
        bail!("the server did not end in order: {drained:?}");
    }
    Ok(())
}

fn listen(address: &str, core: usize) -> Result<(RunningServer, mpsc::Sender<()>)> {
    let (parrot, resume) = EchoService::new();
    let server = Server::builder()
        .service(EchoServer::new(parrot))
        .threads(1)
        .pin([core])
        // Spin, because the core is not shared and rests are explicit. Over a slow device, the thread would otherwise
        // sleep in each call.
        .idle(IdlePolicy::SPIN)
        .listen(address)
        .with_context(|| format!("cannot listen at {address}"))?;
    Ok((server, resume))
}
