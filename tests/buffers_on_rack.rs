//! Buffers that programs own, on a simulated rack, where NICs move the bytes.

use farcall::buffers::{Buffers, LargeMessageCounts};
use farcall::rack::Rack;
use farcall::{Bytes, Server};

#[farcall::service]
trait Echo {
    /// Gives a copy of the bytes, in a buffer of the server's.
    fn copy(&self, bytes: Bytes) -> Bytes;
}

struct Service(Buffers);

impl Echo for Service {
    fn copy(&self, bytes: Bytes) -> Bytes {
        self.0.copy_of(&bytes).unwrap().freeze()
    }
}

fn filled(buffers: &Buffers, len: usize, seed: usize) -> Bytes {
    let mut buffer = buffers.buffer(len).unwrap();
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = ((at + seed).wrapping_mul(0x9e37_79b9) >> 8) as u8;
    }
    buffer.freeze()
}

/// A NIC moves the bytes: each end's CPU copies none of them.
#[test]
fn what_is_in_buffers_is_read_in_place_on_a_simulated_rack() {
    for backend in ["write_imm", "rfp", "scale", "send_recv"] {
        let mut rack = Rack::new(11);
        let [server, client] = [(); 2].map(|()| rack.add_node());
        let of_node = |node| Buffers::on(&rack.node(node).device(), 64 << 20).unwrap();
        let (of_server, buffers) = (of_node(server), of_node(client));
        let address = format!("sim://{server}/buffers?backend={backend}");
        let builder = Server::builder().service(EchoServer::new(Service(of_server.clone())));
        let _serving = rack.serve(&address, builder).unwrap();
        let pool = buffers.clone();
        let ended = rack.run(client, async move |host| {
            let client: EchoClient = host.connect(&address).await.unwrap();
            for (seed, len) in [40_000, 300_000, 3 << 20].into_iter().enumerate() {
                let before = LargeMessageCounts::now().sent_in_place;
                let sent = filled(&pool, len, seed);
                assert!(client.copy(sent.clone()).await.unwrap() == sent, "{len}");
                assert_eq!(LargeMessageCounts::now().sent_in_place - before, 2, "{len}");
                // Memory of the other node, or of none.
                let heap = Bytes::from(sent.to_vec());
                assert!(client.copy(heap.clone()).await.unwrap() == heap, "{len}");
            }
            // The server has been told that the last result is read.
            client.copy(Bytes::from_static(b"last")).await.unwrap();
        });
        assert!(ended.is_some(), "{backend}: it did not end");
        assert_eq!((buffers.snapshot().used, of_server.snapshot().used), (0, 0), "{backend}");
    }
}
