//! Servers and clients whose user is not root, or only in effect so: over shared memory, also from one pid namespace to another.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use farcall_transports_conformance::{
    Harness, backends,
    process::{Peer, pid_namespace},
};
use rustix::process::geteuid;
use tempfile::TempDir;

/// No user of this machine is needed that has a name.
const USER: u32 = 54_321;

/// Changes the user of a program that it then runs.
const SETPRIV: &str = "setpriv";

/// Who runs a program, and where.
#[derive(Clone, Copy)]
enum As {
    /// A user that is not root.
    User,
    /// The same, as `seteuid` makes a process of root's.
    EffectiveUser,
    /// The user in a pid namespace of its own.
    UserInNamespace,
}

impl As {
    fn command(self, program: &Path) -> Command {
        let mut command = match self {
            As::User | As::EffectiveUser => Command::new(SETPRIV),
            As::UserInNamespace => pid_namespace::command(SETPRIV),
        };
        let real = if let As::EffectiveUser = self { 0 } else { USER };
        command.args([format!("--ruid={real}"), format!("--euid={USER}")]);
        command.arg("--clear-groups").arg(program);
        command
    }
}

/// A copy of the suite's program that any user may run.
fn program() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    let program = folder.path().join("peer");
    fs::copy(env!("CARGO_BIN_EXE_backend-conformance"), &program).expect("a copy");
    (folder, program)
}

/// A server and a client that run this program like this connect, and calls of all sizes pass.
fn assert_they_connect(program: &Path, (name, backend): (&str, &str), server: As, client: As) {
    let address = format!("shm://users-{name}-{backend}-{}?backend={backend}", std::process::id());
    let start = |who: As| {
        let mut command = who.command(program);
        command.args(["peer", &address]);
        Peer::start(command)
    };
    let mut server = start(server);
    server.ask(&format!("serve {address} threads=1"), "listening");
    let mut client = start(client);
    client.ask(&format!("visit {address} 3"), "visited");
    client.finish();
    server.finish();
}

fn missing() -> Option<&'static str> {
    let has = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    if !geteuid().is_root() {
        return Some("needs root, to run programs as other users");
    }
    (!has(Command::new(SETPRIV).arg("--version")))
        .then_some("needs the program setpriv (util-linux)")
}

fn main() -> ExitCode {
    let pairs = [
        ("effective_users_connect", As::EffectiveUser, As::EffectiveUser),
        ("an_effective_user_is_served", As::User, As::EffectiveUser),
        ("an_effective_user_serves", As::EffectiveUser, As::User),
        ("a_client_in_a_container_is_served", As::User, As::UserInNamespace),
        ("a_server_in_a_container_serves", As::UserInNamespace, As::User),
        ("two_containers_connect", As::UserInNamespace, As::UserInNamespace),
    ];
    // Once, and before any test starts a process: the copy cannot be run while a child of another test has it open for writing, between its
    // fork and its exec.
    let (_folder, program) = program();
    let program: &'static Path = Box::leak(program.into_boxed_path());
    let (no_users, no_namespaces) = (missing(), pid_namespace::missing());
    let mut harness = Harness::new();
    for backend in backends::ALL.iter().filter(|backend| !backend.runs_on_stream()) {
        for (name, server, client) in pairs {
            let is_within = [server, client].iter().any(|who| matches!(who, As::UserInNamespace));
            let missing = no_users.or(no_namespaces.filter(|_| is_within));
            let test = move || assert_they_connect(program, (name, backend.name), server, client);
            harness = harness.test(missing, format!("{}::{name}", backend.name), test);
        }
    }
    harness.run()
}
