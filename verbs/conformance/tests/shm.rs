//! The suite on the shared-memory device: between threads, between processes, and in one thread; there also when the
//! device promises no more than the usual NIC.

mod threads {
    use farcall_verbs_conformance::{Threads, device_conformance};

    device_conformance!(Threads::on("shm"));
}

mod processes {
    use farcall_verbs_conformance::{Processes, device_conformance};

    device_conformance!(Processes::new(env!("CARGO_BIN_EXE_device-conformance"), "shm"));
}

mod one_thread {
    use farcall_verbs_conformance::{OneThread, device_conformance};

    device_conformance!(OneThread::on("shm"));
}

mod plain {
    use farcall_verbs_conformance::{OneThread, device_conformance};

    device_conformance!(OneThread::on("shm-plain"));
}
