//! A server on one machine and its client on another: the address is an argument, and nothing else differs.
//!
//! ```sh
//! cargo run --release --features ibverbs --example machines -- serve rdma://10.0.0.1:7471     # on 10.0.0.1
//! cargo run --release --features ibverbs --example machines -- call rdma://10.0.0.1:7471      # on the other
//! ```
//!
//! `tcp://10.0.0.1:7471` needs neither the feature nor a device. Without arguments, both are in this process.

use std::error::Error;
use std::time::{Duration, Instant};

use farcall::{Bytes, RunningServer, Server};

#[farcall::service]
trait Echo {
    fn echo(&self, bytes: Bytes) -> Bytes;
}

struct Mirror;

impl Echo for Mirror {
    fn echo(&self, bytes: Bytes) -> Bytes {
        bytes
    }
}

fn serve(address: &str) -> Result<RunningServer, Box<dyn Error>> {
    let server = Server::builder().service(EchoServer::new(Mirror)).listen(address)?;
    // With port 0 in `address`, the system has chosen one.
    println!("serving at {}", server.address());
    Ok(server)
}

/// Times calls of several sizes.
fn call(address: &str) -> Result<(), Box<dyn Error>> {
    const CALLS: u32 = 100;
    let mut client =
        EchoPollClient::connect(address).dial_timeout(Duration::from_secs(5)).wait()?;
    for size in [32, 4 << 10, 256 << 10] {
        let bytes = Bytes::from(vec![1; size]);
        client.echo(bytes.clone())?;
        let begun = Instant::now();
        for _ in 0..CALLS {
            assert_eq!(client.echo(bytes.clone())?, bytes);
        }
        println!("{size} bytes there and back: {:?}", begun.elapsed() / CALLS);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => {
            // Until a thread of the server fails.
            Err(serve(address)?.wait().to_string().into())
        }
        ["call", address] => call(address),
        [] => both(),
        _ => Err("use `serve ADDRESS`, `call ADDRESS`, or no arguments".into()),
    }
}

fn both() -> Result<(), Box<dyn Error>> {
    let server = serve("tcp://127.0.0.1:0")?;
    call(server.address())?;
    server.shutdown();
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn Error>> {
    both()
}
