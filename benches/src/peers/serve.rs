//! The main function of server processes.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Result, bail};

use super::child::{Process, READY};
use super::kind::{Kind, kinds};
use super::{Setup, farcall_clients, tarpc, tonic};
use crate::cores;

/// Of the hidden command `serve-peer`.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The name of the kind.
    pub peer: String,
    /// The server's core.
    pub core: usize,
    /// An address, or the path of a socket.
    pub at: String,
}

/// Serves until the standard input ends.
///
/// # Errors
///
/// A server that cannot start, and kinds that are programs of their own.
pub fn serve(options: &ServeOptions) -> Result<()> {
    let ServeOptions { peer, core, at } = options;
    let kinds = kinds(peer).map_err(anyhow::Error::msg)?;
    let [kind] = kinds[..] else { bail!("`{peer}` is a group") };
    cores::pin_child(*core)?;
    match kind {
        Kind::TarpcUnix => exit_with_input().and_then(|()| tarpc::serve_unix(at)),
        Kind::TarpcTcp => exit_with_input().and_then(|()| tarpc::serve_tcp()),
        Kind::TonicUnix => exit_with_input().and_then(|()| tonic::serve_unix(at)),
        Kind::Ucx | Kind::UcxUnread | Kind::Iceoryx2 => bail!("`{peer}` has a program of its own"),
        _ => farcall_clients::serve(at, *core),
    }
}

/// Says that clients can connect.
pub(super) fn say_ready(address: &str) {
    println!("{READY} {address}");
}

/// The servers of other libraries are not told when to end.
fn exit_with_input() -> Result<()> {
    thread::Builder::new().name("input".into()).spawn(|| {
        wait_for_end_of_input();
        process::exit(0);
    })?;
    Ok(())
}

/// Blocks as long as the parent wants this process.
pub(super) fn wait_for_end_of_input() {
    // Nothing is written to it; an error is an end too.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
}

/// Starts a process of this program that serves `kind`.
pub(super) fn start(kind: Kind, at: &str, setup: &Setup<'_>) -> Result<Process> {
    let mut command = Command::new(&setup.programs.bench);
    command.args(["serve-peer", "--peer", kind.name(), "--at", at]);
    Process::start(command.args(["--core", &setup.cores[0].to_string()]))
}

/// The path of a Unix socket that is not there yet.
pub(super) fn socket_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("farcall-peers-{}-{number}.sock", process::id());
    Path::new(&std::env::temp_dir()).join(name)
}
