//! Connections and servers that cannot be made: each has its own error, which names the cause.

use farcall_core::{BindError, ConnectError, MethodMismatch, MissingMethod};

use crate::{
    pattern,
    service::{AbsentPollClient, OtherPollClient, SuitePollClient, changed},
    setup::Setup,
    world::World,
};

/// An error names the address, with or without the options that the case gave it.
#[track_caller]
fn assert_names(named: &str, address: &str) {
    let without_options = |text: &str| text.split('?').next().map(str::to_owned);
    assert_eq!(without_options(named), without_options(address));
}

/// Nothing listens at the address.
pub fn no_server_at_the_address(world: &World) {
    let address = world.fresh_address(&Setup::default());
    match world.try_connect::<SuitePollClient>(&address).err() {
        Some(ConnectError::NoServer { address: named, .. }) => assert_names(&named, &address),
        other => panic!("{other:?}"),
    }
}

/// The address is in use; it is free again once its server has ended.
pub fn an_address_in_use(world: &World) {
    let server = world.serve(Setup::default());
    match world.try_serve_at(&server.address, Setup::default()).err() {
        Some(BindError::InUse { address: named }) => assert_names(&named, &server.address),
        other => panic!("{other:?}"),
    }
    let mut client = world.client(&server);
    assert_eq!(world.call(&mut client, |c| c.start_tally(1)), Ok(1), "the first server lives");
    drop(client);
    let address = server.address.clone();
    server.shutdown(world);
    let server = world.try_serve_at(&address, Setup::default()).expect("the address is free");
    let mut client = world.client(&server);
    assert_eq!(world.call(&mut client, |c| c.start_tally(1)), Ok(1), "this is the second server");
}

/// Invalid addresses are refused with an error that names the wrong part.
pub fn wrong_addresses_name_what_is_wrong(world: &World) {
    let good = world.fresh_address(&Setup::default());
    let (scheme, rest) = good.split_once("://").expect("an address has a scheme");
    let joint = if rest.contains('?') { '&' } else { '?' };
    for (address, named) in [
        (format!("nosuch://{rest}"), "nosuch"),
        (rest.to_owned(), "scheme"),
        (format!("{scheme}://"), "``"),
        (format!("{good}{joint}nosuchoption=3"), "nosuchoption"),
        (format!("{scheme}://x?backend=nosuchbackend"), "nosuchbackend"),
        (format!("{scheme}://x?window=many"), "many"),
        (format!("{scheme}://x?window=0"), "window"),
    ] {
        let error = world.parse(&address).err().unwrap_or_else(|| panic!("{address} is accepted"));
        assert!(error.contains(named), "{address}: {error:?} does not name {named:?}");
    }
}

/// The server does not serve that service; the error says what it does serve, except to strangers in a network.
pub fn a_service_that_is_not_served(world: &World) {
    let server = world.serve(Setup::default());
    match world.try_connect::<AbsentPollClient>(&server.address).err() {
        Some(ConnectError::NoSuchService { asked, served, .. }) => {
            assert_eq!(asked, "Absent");
            let is_told = server.address.starts_with("shm://");
            assert_eq!(served.iter().any(|name| name == "Suite"), is_told, "{served:?}");
            assert_eq!(served.is_empty(), !is_told, "{served:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// A service of the same name that has no method in common with the server's: the error names the methods.
pub fn a_service_with_no_method_in_common(world: &World) {
    let server = world.serve(Setup::default());
    match world.try_connect::<changed::SuitePollClient>(&server.address).err() {
        Some(ConnectError::IncompatibleService { service, methods, .. }) => {
            assert_eq!(service, "Suite");
            let echo = MissingMethod { method: "Suite.echo".into(), why: MethodMismatch::Absent };
            assert_eq!(methods, [echo]);
        }
        other => panic!("{other:?}"),
    }
    // The refused client left the server as it was.
    let mut client = world.client(&server);
    let echoed = world.call(&mut client, |c| c.start_echo(b"here")).expect("echo");
    assert_eq!(echoed, b"here");
}

/// Two services of one server, each with clients of its own, at once.
pub fn two_services_of_one_server(world: &World) {
    let server = world.serve(Setup::default().with_other());
    let mut suite = world.client(&server);
    let mut other = world.connect::<OtherPollClient>(&server);
    for i in 0..100u64 {
        let sum = world.start(&mut other, |c| c.start_add(i, 1));
        let message = pattern::make(i, 60);
        let echoed = world.call(&mut suite, |c| c.start_echo(&message)).expect("echo");
        pattern::assert_is(i, 60, &echoed);
        assert_eq!(world.finish(&mut other, sum), Ok(i + 1));
    }
}

/// Two servers of one process do not mix their clients.
pub fn two_servers_side_by_side(world: &World) {
    let servers = [world.serve(Setup::default()), world.serve(Setup::default())];
    let mut clients = servers.each_ref().map(|server| world.client(server));
    for count in 1..=50 {
        for client in &mut clients {
            assert_eq!(world.call(client, |c| c.start_tally(1)), Ok(count));
        }
    }
}
