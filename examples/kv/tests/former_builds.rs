//! A build of a former commit and this one, either as server and as client, over every backend. `cargo xtask upgrades` makes the
//! former build and runs this.

mod common;

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{Running, finish, network_address, program, stderr, stdout};
use farcall_transports_conformance::ports;

/// Where the former build of this program is.
const FORMER: &str = "FARCALL_KV_FORMER";

fn former() -> Command {
    Command::new(PathBuf::from(env::var_os(FORMER).expect("`cargo xtask upgrades` sets it")))
}

/// What both builds know: one address for each backend, on the device that needs no setup and over the network.
fn addresses() -> Vec<String> {
    let over_device = |backend| {
        let [local, network] = [common::address(), network_address()];
        [format!("{local}?backend={backend}"), format!("{network}&backend={backend}")]
    };
    let backends = ["write_imm", "send_recv", "rfp", "scale", "datagram"];
    let of_stream = format!("tcp://127.0.0.1:{}", ports::claim());
    backends.into_iter().flat_map(over_device).chain([of_stream]).collect()
}

#[test]
#[ignore = "`cargo xtask upgrades` makes the former build that it needs"]
fn former_ends_and_these_understand_each_other() {
    for address in addresses() {
        for (server, client) in
            [(former as fn() -> Command, program as fn() -> Command), (program, former)]
        {
            serve_and_call(&address, server(), client);
        }
    }
}

/// A workload whose every answer is checked, and values of several sizes.
fn serve_and_call(address: &str, mut server: Command, client: fn() -> Command) {
    server.args(["serve", "--listen", address]);
    let serving = Running::spawn(server, false);
    serving.line_with("listening on");
    let call = |arguments: &[&str]| {
        let mut client = client();
        client.args(arguments).args(["--address", address]).stdin(Stdio::null());
        let child = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = finish(child);
        let told = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(0), "{address}: {arguments:?}: {told}");
        told
    };
    for len in [1, 1_000, 100_000] {
        let value = "x".repeat(len);
        call(&["put", "key", &value]);
        assert!(call(&["get", "key"]).contains(&value), "{address}: {len} bytes");
    }
    let workload =
        ["--workload", "a", "--records", "200", "--operations", "2000", "--clients", "2"];
    let told = call(&[&["ycsb"], &workload[..]].concat());
    assert!(told.contains(" 0 wrong"), "{address}: {told}");
}
