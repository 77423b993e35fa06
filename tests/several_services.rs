//! One connection with the calls of several services, over every backend.

#[path = "support/addresses.rs"]
mod addresses;

use farcall::ping::{PingClient, PingPollClient};
use farcall::{
    Authentication, ChannelOptions, ConnectError, Key, MethodDescription, PollClient, RpcError,
    RunningServer, Server, ServerBuilder, ServiceClient, ServiceDescription,
};

#[farcall::service]
trait Adder {
    fn add(&self, left: u64, right: u64) -> u64;
}

#[farcall::service]
trait Speller {
    fn upper(&self, text: &str) -> String;
    async fn reversed(&self, text: String) -> String;
}

/// Not served by anyone here.
#[expect(dead_code)]
#[farcall::service]
trait Absent {
    fn nothing(&self);
}

#[derive(Clone)]
struct Both;

impl Adder for Both {
    fn add(&self, left: u64, right: u64) -> u64 {
        left + right
    }
}

impl Speller for Both {
    fn upper(&self, text: &str) -> String {
        text.to_uppercase()
    }

    async fn reversed(&self, text: String) -> String {
        text.chars().rev().collect()
    }
}

fn serve(address: &str, change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> RunningServer {
    let builder =
        Server::builder().service(AdderServer::new(Both)).service(SpellerServer::new(Both));
    change(builder).listen(address).unwrap()
}

#[test]
fn the_clients_of_three_services_share_a_connection_on_every_backend() {
    for address in addresses::each_kind_of_address("several") {
        let server = serve(&address, |builder| builder);
        let adder = AdderClient::connect(server.address())
            .also::<SpellerClient>()
            .also::<PingClient>()
            .wait()
            .unwrap();
        let speller = SpellerClient::on(adder.channel()).unwrap();
        let ping = PingClient::on(speller.channel()).unwrap();
        assert_eq!(adder.add(2, 3).wait(), Ok(5), "{address}");
        assert_eq!(speller.upper("spelled").wait(), Ok("SPELLED".into()), "{address}");
        assert_eq!(ping.ping("here?".into()).wait(), Ok("here?".into()), "{address}");
        let long = "ab".repeat(100_000);
        let (sum, text) = (adder.add(1, 1), speller.reversed(long));
        assert_eq!(sum.wait(), Ok(2));
        assert!(text.wait().unwrap().starts_with("baba"));
        assert_eq!(server.connections(), 1, "{address}");
        let metrics = adder.channel().metrics().snapshot();
        let called: Vec<_> = metrics.methods.iter().filter(|it| it.calls() > 0).collect();
        assert_eq!(called.len(), 4, "{called:?}");
    }
}

#[test]
fn a_polling_client_gives_its_connection_to_the_next() {
    let address = format!("shm://several-polled-{}", std::process::id());
    let server = serve(&address, |builder| builder);
    let mut adder =
        AdderPollClient::connect(server.address()).also::<SpellerPollClient>().wait().unwrap();
    assert_eq!(adder.add(2, 3), Ok(5));
    let mut speller = SpellerPollClient::from_connection(adder.into_connection());
    assert_eq!(speller.upper("a"), Ok("A".into()));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_client_of_a_service_that_the_connection_was_not_made_for_is_refused() {
    let address = format!("shm://several-other-{}", std::process::id());
    let server = serve(&address, |builder| builder);
    let adder = AdderClient::connect(server.address()).also::<PingClient>().wait().unwrap();
    let refused = SpellerClient::on(adder.channel()).unwrap_err();
    let ConnectError::NotCarried { service, carried } = &refused else { panic!("{refused:?}") };
    assert_eq!((*service, &carried[..]), ("Speller", &["Adder", "farcall.ping"][..]));
    assert!(refused.to_string().contains("add it with `also`"), "{refused}");
}

#[test]
fn a_service_that_the_server_has_not_is_named() {
    let address = format!("shm://several-absent-{}", std::process::id());
    let server = serve(&address, |builder| builder);
    let connecting = AdderClient::connect(server.address()).also::<SpellerClient>();
    let refused = connecting.also::<AbsentClient>().wait().unwrap_err();
    let ConnectError::NoSuchService { asked, served, .. } = &refused else { panic!("{refused:?}") };
    assert!(asked == "Absent" && served.iter().any(|it| it == "Speller"), "{refused}");
}

#[test]
fn too_many_services_are_refused_before_the_server_hears_of_them() {
    let address = format!("shm://several-many-{}", std::process::id());
    let server = serve(&address, |builder| builder);
    let with = |count: usize, name: &dyn Fn(usize) -> String| {
        let options = (0..count).fold(ChannelOptions::default(), |options, number| {
            let name: &'static str = name(number).leak();
            let service =
                ServiceDescription::new(name, const { &[MethodDescription::new("m", 1, 1)] });
            options.also(Box::leak(Box::new(service)))
        });
        AdderClient::connect(server.address()).options(options).wait().unwrap_err()
    };
    let many = with(32, &|number| format!("Number{number}"));
    assert!(many.to_string().contains("33 services on one connection; it carries 32"), "{many}");
    let long = with(8, &|number| format!("{number}{}", "x".repeat(1_000)));
    assert!(long.to_string().contains("too long"), "{long}");
    let few = with(31, &|number| format!("Number{number}"));
    assert!(matches!(few, ConnectError::NoSuchService { .. }), "{few}");
}

/// A client could call methods that it may not use, as services share their ids' table: it finds none.
#[test]
fn what_a_client_may_not_use_it_cannot_call_either() {
    let secret = *b"sixteen secret b";
    let key = Key::new("clerk", secret).unwrap();
    for address in addresses::each_kind_of_address("permits") {
        let authentication = Authentication::new()
            .key(key.clone())
            .permit(|_, service| service == "Adder" || service == "farcall.ping");
        let server = serve(&address, |builder| builder.threads(2).authenticate(authentication));
        let connect = || AdderClient::connect(server.address()).key(key.clone());

        let refused = connect().also::<SpellerClient>().wait().unwrap_err();
        let ConnectError::NotPermitted { reason, .. } = &refused else { panic!("{refused:?}") };
        assert!(reason.contains("clerk may not use Speller"), "{reason}");

        let adder = connect().also::<PingClient>().wait().unwrap();
        // No client of good will: it does not check what the connection carries.
        let speller = SpellerClient::from_channel(adder.channel().clone());
        let ping = PingClient::on(adder.channel()).unwrap();
        for _ in 0..3 {
            assert_eq!(adder.add(1, 2).wait(), Ok(3), "{address}");
            assert_eq!(ping.ping("a".into()).wait(), Ok("a".into()), "{address}");
            let upper = speller.upper("a").wait();
            assert!(matches!(upper, Err(RpcError::NoSuchMethod { .. })), "{address}: {upper:?}");
            let reversed = speller.reversed("a".into()).wait();
            assert!(matches!(reversed, Err(RpcError::NoSuchMethod { .. })), "{reversed:?}");
        }
        let mut ping = PingPollClient::connect(server.address()).key(key.clone()).wait().unwrap();
        assert_eq!(ping.ping("a".into()), Ok("a".into()));
        let mut adder = AdderPollClient::from_connection(ping.into_connection());
        let sum = adder.add(1, 2);
        assert!(matches!(sum, Err(RpcError::NoSuchMethod { .. })), "it was permitted: {sum:?}");
    }
}
