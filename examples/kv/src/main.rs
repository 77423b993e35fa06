//! A key-value store over farcall, with YCSB and a demo that checks every answer.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}
