//! A replicated log and a key-value store on it, and a demo that kills, stops and replaces its replicas.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}
