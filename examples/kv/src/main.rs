//! A key-value store over farcall, with YCSB and a demo that checks every answer.

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}
