//! How programs connect: addresses of every kind, blocking and on executors, and services whose methods have the names of
//! the clients' own functions.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use farcall::ping::{PingClient, PingPollClient};
use farcall::{Address, ConnectError, Endpoint, PollClient, RpcError, Server, ServiceClient};

/// Services with methods that are named like functions of the clients.
#[farcall::service]
trait Named {
    fn channel(&self, channel: u8) -> u8;
    fn connection(&self, connection: u8) -> u8;
    fn poll(&self) -> u8;
    fn take(&self) -> u8;
    fn wait(&self) -> u8;
    fn timeout(&self, timeout: u8) -> u8;
}

struct Names;

impl Named for Names {
    fn channel(&self, channel: u8) -> u8 {
        channel + 1
    }

    fn connection(&self, connection: u8) -> u8 {
        connection + 2
    }

    fn poll(&self) -> u8 {
        3
    }

    fn take(&self) -> u8 {
        4
    }

    fn wait(&self) -> u8 {
        5
    }

    fn timeout(&self, timeout: u8) -> u8 {
        timeout + 6
    }
}

/// A unique name, also among concurrent test runs.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("farcall-door-{}-{next}", std::process::id())
}

#[test]
fn text_and_addresses_name_a_server_alike() {
    let name = name();
    let text = format!("shm://{name}?backend=datagram&window=8");
    let built = Address::shm(&name).backend("datagram").option("window", 8);
    let parsed: Address = text.parse().unwrap();
    assert_eq!(built.build().unwrap(), parsed);
    let server = Server::builder().service(NamedServer::new(Names)).listen(&built).unwrap();
    assert_eq!(server.address(), text);

    assert!(PingClient::connect(text.as_str()).wait().is_ok());
    assert!(PingClient::connect(&text).wait().is_ok());
    assert!(PingClient::connect(text).wait().is_ok());
    assert!(PingClient::connect(&parsed).wait().is_ok());
    assert!(PingPollClient::connect(parsed).wait().is_ok());
    assert!(PingPollClient::connect(&built).wait().is_ok());
    assert!(PingPollClient::connect(built).wait().is_ok());

    let wrong = Address::shm("no name").option("window", 8);
    let error = PingClient::connect(&wrong).wait().unwrap_err();
    assert!(matches!(error, ConnectError::InvalidAddress(_)), "{error}");
    assert!(error.to_string().contains("`no name` cannot name a service"), "{error}");
    let error = Server::builder().service(NamedServer::new(Names)).listen(wrong).unwrap_err();
    assert!(error.to_string().contains("`no name` cannot name a service"), "{error}");
}

#[tokio::test]
async fn clients_connect_and_call_on_one_executor_thread() {
    let address = format!("shm://{}", name());
    let server = Server::builder().service(NamedServer::new(Names)).listen(&address).unwrap();
    let endpoint = Endpoint::new();
    let connecting = (0..8).map(|n| {
        let connecting = NamedClient::connect(&address).endpoint(&endpoint).max_calls(4);
        tokio::spawn(async move { connecting.await.unwrap().connection(n).await.unwrap() })
    });
    for (n, task) in connecting.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), n as u8 + 2);
    }
    let error = NamedClient::connect("shm://nobody-listens-here").await.unwrap_err();
    assert!(matches!(error, ConnectError::NoServer { .. }), "{error}");
    let error = NamedClient::connect("kv").await.unwrap_err();
    assert!(matches!(error, ConnectError::InvalidAddress(_)), "{error}");
    server.shutdown();
}

#[test]
fn methods_may_have_names_of_the_clients_own_functions() {
    let address = format!("shm://{}", name());
    let _server = Server::builder().service(NamedServer::new(Names)).listen(&address).unwrap();
    let client = NamedClient::connect(&address).wait().unwrap();
    assert_eq!(client.channel(1).wait(), Ok(2));
    assert_eq!(client.connection(1).wait(), Ok(3));
    assert_eq!(client.wait().wait(), Ok(5));
    assert_eq!(client.timeout(1).timeout(Duration::from_secs(10)).wait(), Ok(7));
    // What a method hides is there by the trait.
    assert_eq!(ServiceClient::channel(&client).metrics().snapshot().calls(), 4);

    let mut client = NamedPollClient::connect(&address).wait().unwrap();
    assert_eq!(client.channel(1), Ok(2));
    assert_eq!(client.connection(1), Ok(3));
    assert_eq!(client.poll(), Ok(3));
    assert_eq!(client.take(), Ok(4));
    assert!(!PollClient::connection(&mut client).is_closed());
}

#[test]
fn a_call_ends_at_its_deadline_or_after_its_timeout_whichever_was_set_last() {
    let address = format!("shm://{}", name());
    let _server = Server::builder().service(NamedServer::new(Names)).listen(&address).unwrap();
    let client = NamedClient::connect(&address).timeout(Duration::ZERO).wait().unwrap();
    let too_late =
        Err(RpcError::DeadlineExceeded { may_have_run: false, waited: farcall::Waited::Nowhere });
    let (past, later) = (Instant::now(), Instant::now() + Duration::from_secs(30));
    assert_eq!(client.take().wait(), too_late);
    assert_eq!(client.take().deadline(later).wait(), Ok(4));
    assert_eq!(client.take().deadline(past).wait(), too_late);
    assert_eq!(client.take().timeout(Duration::from_secs(30)).wait(), Ok(4));
    assert_eq!(client.take().deadline(past).timeout(Duration::from_secs(30)).wait(), Ok(4));
    assert_eq!(client.take().timeout(Duration::from_secs(30)).deadline(past).wait(), too_late);
    let patient = NamedClient::from_channel(
        ServiceClient::channel(&client).with_timeout(Duration::from_secs(30)),
    );
    assert_eq!(patient.take().wait(), Ok(4));
    // A call that is dropped before it is sent leaves no deadline to the next one.
    drop(patient.take().deadline(past));
    assert_eq!(patient.take().wait(), Ok(4));
}
