//! A log whose acknowledged writes survive a killed process, a power cut and a torn disk, and a demo that proves it.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}
