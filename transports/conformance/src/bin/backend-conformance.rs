//! Runs the backend conformance suite from the command line, where no test harness is at hand, and is the other
//! processes and machines of the suite.

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;

use farcall_transports_conformance::addresses::{AddressFixture, Placement};
use farcall_transports_conformance::{
    COMMON, Case, Fixture, backends, cases_of, ignored, process, run_all,
};

const USAGE: &str = "\
usage: backend-conformance list [TEMPLATE]
       backend-conformance run TEMPLATE [threads|processes|namespaces|ADDRESS:PORT] [FILTER]...
       backend-conformance run sim://NAME?OPTIONS [seed=N] [FILTER]...
       backend-conformance serve ADDRESS:PORT

`run` runs every case whose name contains one of the FILTERs over addresses like TEMPLATE, such as
shm://suite or rdma://10.0.0.1:0?device=rxe0, with other names or ports. Servers are threads of
this process, or processes of their own, or each in a pid namespace (as root), or processes of the
machine where `serve` listens at ADDRESS:PORT. Cases that do not apply there are ignored, with the reason; it exits with 0 only if all
others passed. At sim:// everything is on the nodes of a simulated rack, in virtual time, and a seed
gives the same run again. `list` shows all cases, or those of the backend that TEMPLATE names, with
the reasons for which some are ignored there.

`serve` starts servers for any machine that can reach it: use it only in a network that you trust.

FARCALL_CONFORMANCE_PATIENCE=20 makes every bound in time 20 times as long, for slow machines;
FARCALL_CONFORMANCE_GIGABYTES=1 lets the cases with messages of 1 GiB run.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => {
            COMMON.iter().for_each(|case| println!("{}", case.name));
            for backend in backends::ALL {
                backend.cases.iter().for_each(|case| println!("{} ({})", case.name, backend.name));
            }
            ExitCode::SUCCESS
        }
        ["list", template] => list(template),
        ["run", template, rest @ ..] if template.starts_with("sim://") => on_rack(template, rest),
        ["run", template] => run(template, "threads", &[]),
        ["run", template, servers, filters @ ..] => run(template, servers, filters),
        ["serve", address] => serve(address),
        ["peer", template] => match AddressFixture::new(template) {
            Ok(fixture) => {
                process::main(&fixture);
                ExitCode::SUCCESS
            }
            Err(error) => failed(&format!("{template}: {error}")),
        },
        _ => failed(USAGE),
    }
}

fn run(template: &str, servers: &str, filters: &[&str]) -> ExitCode {
    let placement = match servers {
        "threads" => Placement::SameProcess,
        "processes" => Placement::OtherProcess,
        "namespaces" => Placement::OtherPidNamespace,
        address => match address.parse::<SocketAddr>() {
            Ok(address) => Placement::OtherMachine(address),
            Err(_) => return failed(USAGE),
        },
    };
    let fixture = match AddressFixture::new(template) {
        Ok(fixture) => fixture.placement(placement),
        Err(error) => return failed(&format!("{template}: {error}")),
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return failed(&format!("cannot find this program: {error}")),
    };
    let place = format!("{template}, servers in {servers}");
    play(&place, Arc::new(fixture.peer(program)), filters)
}

fn list(template: &str) -> ExitCode {
    let fixture =
        match std::env::current_exe().map(|program| (AddressFixture::new(template), program)) {
            Ok((Ok(fixture), program)) => fixture.peer(program),
            Ok((Err(error), _)) => return failed(&format!("{template}: {error}")),
            Err(error) => return failed(&format!("cannot find this program: {error}")),
        };
    let show = |case: &Case| match ignored(&fixture, case) {
        None => println!("{}", case.name),
        Some(reason) => println!("{} (ignored: {reason})", case.name),
    };
    cases_of(fixture.backend()).for_each(show);
    ExitCode::SUCCESS
}

fn play(place: &str, fixture: Arc<dyn Fixture>, filters: &[&str]) -> ExitCode {
    for filter in filters {
        if !cases_of(fixture.backend()).any(|case| case.name.contains(filter)) {
            return failed(&format!("no case's name contains {filter:?}; see `list`"));
        }
    }
    let tally = run_all(&fixture, filters, std::io::stdout());
    println!("{place}: {tally}");
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(feature = "sim")]
fn on_rack(template: &str, words: &[&str]) -> ExitCode {
    use farcall_transports_conformance::rack::RackFixture;

    let (seed, filters) = match words {
        [first, filters @ ..] if first.starts_with("seed=") => {
            (first.trim_start_matches("seed="), filters)
        }
        filters => ("1", filters),
    };
    let Ok(seed) = seed.parse() else { return failed(&format!("seed={seed}: expected a number")) };
    match RackFixture::new(template, seed) {
        Ok(fixture) => play(&format!("{template}, seed {seed}"), Arc::new(fixture), filters),
        Err(error) => failed(&format!("{template}: {error}")),
    }
}

#[cfg(not(feature = "sim"))]
fn on_rack(template: &str, _: &[&str]) -> ExitCode {
    failed(&format!("{template}: this program was built without its feature `sim`"))
}

fn serve(address: &str) -> ExitCode {
    let served = std::env::current_exe().and_then(|program| {
        let listener = TcpListener::bind(address)?;
        println!("ready at {}", listener.local_addr()?);
        process::serve(&listener, &program)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&format!("cannot serve on {address}: {error}")),
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(2)
}
