//! Addresses for tests that run over everything that needs no setup.

/// One for each backend on shared memory, and one over TCP. The name is that of the test.
pub(crate) fn each_kind_of_address(name: &str) -> Vec<String> {
    let name = format!("shm://{name}-{}", std::process::id());
    let shm = ["write_imm", "send_recv", "datagram", "rfp", "scale"];
    let shm = shm.map(|backend| format!("{name}-{backend}?backend={backend}"));
    shm.into_iter().chain(["tcp://127.0.0.1:0".to_owned()]).collect()
}
