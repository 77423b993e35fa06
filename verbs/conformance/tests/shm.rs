//! The suite on the shared-memory device: between threads, between processes, and in one thread; there also when the
//! device promises no more than the usual NIC.

use std::process::ExitCode;

use farcall_verbs_conformance::{Harness, OneThread, Processes, Threads};

fn main() -> ExitCode {
    Harness::new()
        .suite("threads", Threads::on("shm"))
        .suite("processes", Processes::new(env!("CARGO_BIN_EXE_device-conformance"), "shm"))
        .suite("one_thread", OneThread::on("shm"))
        .suite("plain", OneThread::on("shm-plain"))
        .run()
}
