//! Which calls may run more than once: the server's own description decides, on threads of each kind.

use super::CancelPolicy;
use super::dispatcher::Dispatcher;
use super::executor::Executor;
use super::quota::{Accounts, ClientQuota, SharedAccounts};
use super::stealing::{Giver, Shared};
use super::table::Table;
use super::turn::Turn;

use crate::metrics::{MethodTable, ThreadCounters};
use crate::service::{MethodDescription, ServiceDescription};
use crate::site::Site;
use crate::time::{Instant, Progress};
use crate::transport::{Replies, RequestSink, ServerTransport, WindDown};
use crate::wire::{HEADER_BYTES, RequestHeader};
use std::sync::{Arc, Mutex};

const ONCE: u32 = 1;
const AGAIN: u32 = 2;
const UNKNOWN: u32 = 3;

static SERVICE: ServiceDescription = ServiceDescription::new(
    "Idempotence",
    &[
        MethodDescription::new("once", ONCE, 0),
        MethodDescription::new("again", AGAIN, 0).idempotent(),
    ],
);

/// Asks the sink about requests, and keeps what it says.
struct Asks(Arc<Mutex<Vec<bool>>>);

impl ServerTransport for Asks {
    fn poll(&mut self, _now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let mut said = self.0.lock().expect("no panic");
        for method in [ONCE, AGAIN, UNKNOWN] {
            let mut request = [0; HEADER_BYTES];
            RequestHeader::new(method, 0).write(&mut request);
            said.push(sink.is_idempotent(&request));
        }
        said.push(sink.is_idempotent(&[0; HEADER_BYTES - 1]));
        Progress::IDLE
    }

    fn replies(&mut self) -> &mut dyn Replies {
        unreachable!("no request was given")
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        true
    }

    fn connections(&self) -> usize {
        0
    }

    fn wind_down(&mut self, _now: Instant, _step: WindDown) -> bool {
        true
    }
}

/// What a thread of this kind says of the four requests.
fn asked(accounts: Option<Accounts>, giver: Option<Giver>) -> Vec<bool> {
    let site = Site::new();
    let methods = Arc::new(MethodTable::new(&[&SERVICE]));
    let counters = Arc::new(ThreadCounters::new(&methods));
    let mut dispatcher = Dispatcher::new(
        Vec::new(),
        Table::new(&[&SERVICE]).expect("distinct ids"),
        methods.unknown(),
        Turn::new(site.clone(), counters, accounts),
        Executor::new(1, CancelPolicy::Abort, site),
        giver,
    );
    let said = Arc::default();
    let mut transports: [Box<dyn ServerTransport>; 1] = [Box::new(Asks(Arc::clone(&said)))];
    dispatcher.turn(Instant::ZERO, &mut transports);
    let said = said.lock().expect("no panic");
    said.clone()
}

#[test]
fn only_methods_that_the_server_declares_idempotent_may_run_again() {
    let expected = [false, true, false, false];
    assert_eq!(asked(None, None), expected);
    let quota = ClientQuota::new().calls_per_second(1);
    let accounts = Accounts::new(SharedAccounts::new(&quota).expect("it limits something"));
    assert_eq!(asked(Some(accounts), None), expected, "with quotas");
    let shared = Arc::new(Shared::new(&[Site::new(), Site::new()], 4));
    assert_eq!(asked(None, Some(Giver::new(shared, 0, 1))), expected, "with work stealing");
}
