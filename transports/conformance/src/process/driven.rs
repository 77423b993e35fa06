//! The driven side: a process that reads commands line by line and answers each with a line.
//!
//! Servers: `serve ADDRESS SETUP`, `open GATE`, `metrics`, `holdings`, `shutdown`, `ended`. Clients: `connect ADDRESS`,
//! `visit ADDRESS TIMES`, `await_death`, `hold GATE COUNT`, `stream LEN`, `crowd ADDRESS CLIENTS CALLS`, `sessions ADDRESS COUNT`, `burst CALLS FIRST COUNT`, `leave`. Both: `quit`.

use std::{io::Write, process::exit, str::SplitWhitespace};

use farcall_core::{
    BindError, Connection, ConnectionOptions, PendingCall, PollClient, RpcError, Site,
};

use crate::{
    Fixture, Setup, World,
    fixture::Served,
    inspect::Holdings,
    patient, pattern,
    service::{SuitePollClient, silence_requested_panics},
    world::BOUND,
};

/// What the process has made so far.
struct Driven<'f> {
    fixture: &'f dyn Fixture,
    served: Option<Box<dyn Served>>,
    client: Option<SuitePollClient>,
    /// Its calls that stay in flight until it ends.
    held: Vec<PendingCall<Result<u64, RpcError>>>,
    /// Clients that share what connections of one thread can share.
    sessions: Vec<SuitePollClient>,
    /// Where these share it.
    site: Site,
}

/// Carries out the commands on standard input until it ends. Panics at an unknown command: that is an error of the suite.
pub fn main(fixture: &dyn Fixture) {
    silence_requested_panics();
    let (held, sessions, site) = (Vec::new(), Vec::new(), Site::new());
    let mut driven = Driven { fixture, served: None, client: None, held, sessions, site };
    let mut line = String::new();
    // Standard input is locked for each line only: a stream listens too.
    while std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        let order = std::mem::take(&mut line);
        let mut words = order.split_whitespace();
        let Some(order) = words.next() else { continue };
        if order == "quit" {
            return;
        }
        say(&driven.obey(order, words));
    }
    // The driver has died: end at once, whatever is held.
    exit(1);
}

fn say(answer: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{answer}").and_then(|()| out.flush()).is_err() {
        exit(1); // The driver is gone.
    }
}

fn word<'a>(words: &mut SplitWhitespace<'a>) -> &'a str {
    words.next().expect("the order has one more word")
}

fn number(words: &mut SplitWhitespace<'_>) -> u64 {
    word(words).parse().expect("a number")
}

impl Driven<'_> {
    fn obey(&mut self, order: &str, mut words: SplitWhitespace<'_>) -> String {
        match order {
            "serve" => self.serve(word(&mut words), &Setup::from_words(words)),
            "open" => {
                self.server().open(number(&mut words));
                "opened".to_owned()
            }
            "metrics" => format!("metrics {:?}", self.server().metrics()),
            "holdings" => match Holdings::of(std::process::id()) {
                Ok(holdings) => format!("holdings {}", holdings.to_words()),
                Err(error) => format!("failed: {error}"),
            },
            "shutdown" => {
                self.server().begin_shutdown();
                "ending".to_owned()
            }
            "ended" => format!("ended {}", self.server().has_ended()),
            "connect" => match World::new(self.fixture).try_connect(word(&mut words)) {
                Ok(client) => {
                    self.client = Some(client);
                    "connected".to_owned()
                }
                Err(error) => format!("failed: {error}"),
            },
            "visit" => self.visit(word(&mut words), number(&mut words)),
            "await_death" => self.await_death(),
            "post" => self.post(number(&mut words)),
            "hold" => self.hold(number(&mut words), number(&mut words)),
            "stream" => self.stream(number(&mut words) as usize),
            "crowd" => {
                let address = word(&mut words);
                self.crowd(address, number(&mut words), number(&mut words))
            }
            "sessions" => self.open_sessions(word(&mut words), number(&mut words)),
            "burst" => {
                let [calls, first, count] = [(); 3].map(|()| number(&mut words));
                self.burst(calls, first as usize, count as usize)
            }
            "leave" => {
                self.sessions.clear();
                "left".to_owned()
            }
            _ => panic!("unknown order {order:?}"),
        }
    }

    fn server(&mut self) -> &mut dyn Served {
        &mut **self.served.as_mut().expect("the order `serve` came before")
    }

    fn client(&mut self) -> &mut SuitePollClient {
        self.client.as_mut().expect("the order `connect` came before")
    }

    fn serve(&mut self, address: &str, setup: &Setup) -> String {
        match self.fixture.serve(address, setup) {
            Ok(served) => {
                self.served = Some(served);
                "listening".to_owned()
            }
            Err(BindError::InUse { address }) => format!("in-use {address}"),
            Err(error) => format!("failed {error}"),
        }
    }

    /// Sends one call, and waits for nothing.
    fn post(&mut self, gate: u64) -> String {
        let world = World::new(self.fixture);
        let pending = world.start(self.client(), |c| c.start_hold(gate, 0));
        self.held.push(pending);
        self.client().connection().poll();
        "posted".to_owned()
    }

    /// Leaves calls in flight.
    fn hold(&mut self, gate: u64, count: u64) -> String {
        let world = World::new(self.fixture);
        for value in 0..count {
            let pending = world.start(self.client(), |c| c.start_hold(gate, value));
            self.held.push(pending);
        }
        let client = self.client();
        // A client notices a lost datagram only while it is polled.
        world.until("the server has them", || {
            let held: Result<u64, RpcError> = world.call(client, |c| c.start_held(gate));
            held.is_ok_and(|held| held >= count).then_some(())
        });
        "holding".to_owned()
    }

    /// Connects, calls and leaves, `times` times.
    fn visit(&self, address: &str, times: u64) -> String {
        let world = World::new(self.fixture);
        for seed in 0..times {
            let mut client: SuitePollClient = world.try_connect(address).expect("connect");
            for len in [20, 100_000] {
                let message = pattern::make(seed, len);
                let echoed = world.call(&mut client, |c| c.start_echo(&message)).expect("echo");
                pattern::assert_is(seed, len, &echoed);
            }
        }
        "visited".to_owned()
    }

    /// Waits until the server is dead, and drops the connection.
    fn await_death(&mut self) -> String {
        let world = World::new(self.fixture);
        let mut client = self.client.take().expect("the order `connect` came before");
        world.until("the server is gone", || {
            client.poll();
            client.connection().is_closed().then_some(())
        });
        "died".to_owned()
    }

    /// Sends and receives large messages until killed; says `streamed` for an empty line.
    fn stream(&mut self, len: usize) -> ! {
        let world = World::new(self.fixture);
        let client = self.client();
        let message = pattern::make(1, len);
        let echoed = world.call(client, |c| c.start_echo(&message)).expect("echo");
        pattern::assert_is(1, len, &echoed);
        say("streaming");
        let (send, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            while std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                if send.send(()).is_err() {
                    break;
                }
            }
            exit(1); // The driver is gone.
        });
        let mut pending = std::collections::VecDeque::new();
        loop {
            if lines.try_recv().is_ok() {
                say("streamed");
            }
            pending.push_back(world.start(client, |c| c.start_echo(&message)));
            if pending.len() == 4
                && let Some(oldest) = pending.pop_front()
            {
                let _ = world.finish(client, oldest).expect("echo");
            }
        }
    }

    /// Several clients of this process, polled in turn; every response is checked.
    fn crowd(&mut self, address: &str, clients: u64, calls: u64) -> String {
        let world = World::new(self.fixture);
        let connect = |_| world.try_connect(address).expect("connect");
        let mut clients: Vec<SuitePollClient> = (0..clients).map(connect).collect();
        for call in 0..calls {
            let mut pending = Vec::new();
            for (who, client) in (0u64..).zip(&mut clients) {
                let seed = call * 1_000 + who;
                let len = if seed % 50 == 9 { 20_000 } else { (seed % 90) as usize };
                let message = pattern::make(seed, len);
                pending.push((seed, len, world.start(client, |c| c.start_echo(&message))));
                client.poll();
            }
            for (client, (seed, len, pending)) in clients.iter_mut().zip(pending) {
                let echoed = world.finish(client, pending).expect("echo");
                pattern::assert_is(seed, len, &echoed);
            }
        }
        "served".to_owned()
    }

    /// Opens `count` connections of one client thread.
    fn open_sessions(&mut self, address: &str, count: u64) -> String {
        let endpoint = self.fixture.parse(address).expect("an address");
        let options = ConnectionOptions::default().timeout(patient(BOUND)).share(true);
        let options = options.site(&self.site);
        for _ in 0..count {
            let connection =
                Connection::connect(&*endpoint, SuitePollClient::DESCRIPTION, &options);
            match connection {
                Ok(connection) => self.sessions.push(SuitePollClient::from_connection(connection)),
                Err(error) => return format!("failed: {error}"),
            }
        }
        "opened".to_owned()
    }

    /// Each of so many sessions from the first on makes `calls` calls at once; every response is checked.
    fn burst(&mut self, calls: u64, first: usize, count: usize) -> String {
        let world = World::new(self.fixture);
        for client in &mut self.sessions[first..first + count] {
            let message = pattern::make(calls, 32);
            let pending: Vec<_> =
                (0..calls).map(|_| world.start(client, |c| c.start_echo(&message))).collect();
            for pending in pending {
                let echoed = world.finish(client, pending).expect("echo");
                pattern::assert_is(calls, 32, &echoed);
            }
        }
        "answered".to_owned()
    }
}
