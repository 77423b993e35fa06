//! Keys: who may call, what a handler knows of the caller, and what a stranger is told.
//!
//! ```sh
//! cargo run --release --example keys
//! ```

use std::error::Error;

use farcall::{Authentication, CallContext, Key, Server};

#[farcall::service]
trait Orders {
    /// The name of the caller, as the server knows it.
    fn who_am_i(&self) -> Option<String>;
}

/// A service that only some may use.
#[farcall::service]
trait Ledger {
    fn balance(&self) -> u64;
}

struct Shop;

impl Orders for Shop {
    fn who_am_i(&self) -> Option<String> {
        let identity = CallContext::current()?.identity()?;
        Some(identity.name().to_owned())
    }
}

impl Ledger for Shop {
    fn balance(&self) -> u64 {
        1_000
    }
}

/// A program reads its secret from a file, 32 random bytes that both ends have: `Key::from_file`.
fn key(name: &str, secret: u8) -> Result<Key, Box<dyn Error>> {
    Ok(Key::new(name, [secret; 32])?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let authentication = Authentication::new()
        .key(key("billing", 1)?)
        .key(key("web", 2)?)
        // Asked when a client connects, for each service that it names.
        .permit(|client, service| client.name() == "billing" || service != "Ledger");
    let server = Server::builder()
        .service(OrdersServer::new(Shop))
        .service(LedgerServer::new(Shop))
        .authenticate(authentication)
        .listen("tcp://127.0.0.1:0")?;
    let address = server.address();

    // Both ends prove that they have the key; it is not sent.
    let billing =
        OrdersClient::connect(address).also::<LedgerClient>().key(key("billing", 1)?).wait()?;
    assert_eq!(billing.who_am_i().wait()?.as_deref(), Some("billing"));
    let ledger = LedgerClient::on(billing.channel())?;
    println!("billing sees the balance: {}", ledger.balance().wait()?);

    let web = OrdersClient::connect(address).key(key("web", 2)?).wait()?;
    assert_eq!(web.who_am_i().wait()?.as_deref(), Some("web"));

    let refusals = [
        (
            "web asks for the ledger",
            LedgerClient::connect(address).key(key("web", 2)?).wait().err(),
        ),
        ("a wrong secret", LedgerClient::connect(address).key(key("billing", 3)?).wait().err()),
        ("no key", LedgerClient::connect(address).wait().err()),
    ];
    for (what, refusal) in refusals {
        println!("{what}: {}", refusal.ok_or("it was let in")?);
    }
    server.shutdown();
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn Error>> {
    main()
}
