//! Lent memory on simulated racks: the cases of the suite, by calls and one-sided, and what only a rack shows.

use farcall::memory::{Carrier, Memory, MemoryServer, RemoteMemory, Rights};
use farcall::rack::{Host, Rack};
use farcall::{ChannelOptions, Server, ServiceClient};
use farcall_core::server::DrivenServer;
use farcall_verbs::sim::{FaultRates, Landing, NodeId, SimConfig};

use crate::lender::{Borrowed, Lender, LenderClient, LenderServer};

/// A rack with a server that lends memory of its node's NIC.
struct Lending {
    rack: Rack,
    client: NodeId,
    address: String,
    lender: Lender,
    _serving: DrivenServer,
}

impl Lending {
    fn new(seed: u64, config: SimConfig, backend: &str) -> Lending {
        let mut rack = Rack::with_config(seed, config);
        let [server, client] = [(); 2].map(|()| rack.add_node());
        let address = format!("sim://{server}/memory?backend={backend}");
        let lender = Lender::of(Memory::on(&rack.node(server).device()).unwrap());
        let builder = Server::builder()
            .service(LenderServer::new(lender.clone()))
            .service(MemoryServer::new(lender.memory.clone()));
        let _serving = rack.serve(&address, builder).unwrap();
        Lending { rack, client, address, lender, _serving }
    }

    fn run<T: 'static>(&mut self, program: impl AsyncFnOnce(Host, Borrowed) -> T + 'static) -> T {
        let address = self.address.clone();
        let ended = self.rack.run(self.client, async move |host| {
            let client = connect(&host, &address).await;
            program(host, client).await
        });
        ended.expect("it ends")
    }
}

async fn connect(host: &Host, address: &str) -> Borrowed {
    let options = ChannelOptions::default().also(RemoteMemory::DESCRIPTION);
    let lender: LenderClient = host.connect_with(address, &options).await.unwrap();
    let memory = RemoteMemory::on(lender.channel()).unwrap();
    Borrowed { memory, lender }
}

/// The same client, with one-sided operations: a lane is open.
async fn one_sided(client: Borrowed) -> Borrowed {
    let memory = client.memory.one_sided();
    let word = client.lender.lend(0, 8, Rights::READ.bits(), None).await.unwrap();
    for _ in 0..2 {
        memory.read(&word).await.unwrap();
    }
    assert_eq!(memory.caps().carrier, Carrier::OneSided);
    Borrowed { memory, ..client }
}

/// Runs a case over some backends.
pub(crate) fn run<F: Future<Output = ()> + 'static>(case: impl Fn(Borrowed) -> F + Copy + 'static) {
    for backend in ["write_imm", "datagram", "rfp"] {
        println!("{backend}");
        let mut lending = Lending::new(11, SimConfig::default(), backend);
        lending.run(async move |_, client| case(client).await);
    }
}

/// Runs a case with one-sided operations, also where bytes land in any order and late, and where messages are lost.
pub(crate) fn run_one_sided<F: Future<Output = ()> + 'static>(
    case: impl Fn(Borrowed) -> F + Copy + 'static,
) {
    for (what, seed, config, rates) in conditions() {
        for backend in ["write_imm", "datagram"] {
            println!("{backend}, {what}");
            let mut lending = Lending::new(seed, config.clone(), backend);
            lending.rack.set_fault_rates(rates);
            lending.run(async move |_, client| case(one_sided(client).await).await);
            assert!(lending.lender.memory.snapshot().lanes >= 1, "{what}");
        }
    }
}

/// Where one-sided operations are tried: a name, a seed, a rack, and what goes wrong there.
fn conditions() -> [(&'static str, u64, SimConfig, FaultRates); 3] {
    let permuted = SimConfig::default().landing(Landing::AnyOrder);
    let lossy = FaultRates::default().reliable_loss(0.02).connected_delay(0.05);
    [
        ("all goes well", 11, SimConfig::default(), FaultRates::default()),
        ("bytes land in any order", 12, permuted.clone(), FaultRates::default()),
        ("messages are lost", 13, permuted, lossy),
    ]
}
