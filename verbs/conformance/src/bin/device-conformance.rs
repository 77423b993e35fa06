//! Runs the device conformance suite from the command line, where no test harness is at hand.

use std::net::TcpListener;
use std::process::ExitCode;

use farcall_verbs_conformance::{Fixture, Machines, OneThread, Processes, Threads, Verdict};
use farcall_verbs_conformance::{cases, faults, open_as_child, play_as_child, run_all, serve};

const USAGE: &str = "\
usage: device-conformance list
       device-conformance run DEVICE [processes|threads|one-thread|layers|ADDRESS:PORT] [FILTER]
       device-conformance serve DEVICE ADDRESS:PORT
       device-conformance faults DEVICE NETDEV [FILTER]

`run` runs every case whose name contains FILTER, each with its two ends in two processes
(or in two threads, or in one thread, or with the target on the machine where `serve` runs),
and exits with 0 only if none failed. `layers` is one thread, with the device inside layers of
faults that change nothing (feature `faults`). Cases that do not apply are ignored, with the reason. `faults`, for a machine of its own, takes permissions, addresses and
the link from an RDMA device and shows what it makes of that; NETDEV is its network interface.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => {
            cases().iter().for_each(|case| println!("{}", case.name));
            ExitCode::SUCCESS
        }
        ["run", device] => run(device, "processes", ""),
        ["run", device, ends] => run(device, ends, ""),
        ["run", device, ends, filter] => run(device, ends, filter),
        ["serve", device, address] => {
            match TcpListener::bind(address).and_then(|listener| serve(&listener, device)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => failed(&format!("cannot serve on {address}: {error}")),
            }
        }
        ["faults", device, netdev] => show_faults(device, netdev, ""),
        ["faults", device, netdev, filter] => show_faults(device, netdev, filter),
        ["open", device, limits @ ..] => open(device, limits),
        ["end", ..] => match play_as_child(&arguments[1..]) {
            Ok(Verdict::Failed(_) | Verdict::PeerLeft(_)) => ExitCode::FAILURE,
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => failed(&error.to_string()),
        },
        _ => failed(USAGE),
    }
}

fn run(device: &str, ends: &str, filter: &str) -> ExitCode {
    let fixture: Box<dyn Fixture> = match ends {
        "threads" => Box::new(Threads::on(device)),
        "one-thread" => Box::new(OneThread::on(device)),
        #[cfg(feature = "faults")]
        "layers" => Box::new(OneThread::in_layers(device)),
        #[cfg(not(feature = "faults"))]
        "layers" => return failed("this program was built without the feature `faults`"),
        "processes" => match std::env::current_exe() {
            Ok(program) => Box::new(Processes::new(program, device)),
            Err(error) => return failed(&format!("cannot find this program: {error}")),
        },
        address => match address.parse() {
            Ok(server) => Box::new(Machines::new(device, server)),
            Err(_) => return failed(USAGE),
        },
    };
    let tally = run_all(&*fixture, filter, |case, outcome| println!("{:<72} {outcome}", case.name));
    println!("{}: {tally}", fixture.name());
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show_faults(device: &str, netdev: &str, filter: &str) -> ExitCode {
    let tally = faults(device, netdev, filter, |name, outcome| println!("{name:<72} {outcome}"));
    println!("{device} on {netdev}: {tally}");
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What `faults` runs as a user without rights.
fn open(device: &str, limits: &[&str]) -> ExitCode {
    let limits = match limits {
        [limit, bytes] => limit.parse().ok().zip(bytes.parse().ok()),
        _ => None,
    };
    match open_as_child(device, limits) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(2)
}
