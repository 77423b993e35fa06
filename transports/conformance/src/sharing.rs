//! Any fixture, with clients that share what their backend lets the connections of one site share.
//!
//! Cases with several threads use such connections from all of them: they contend, and the suite must pass nevertheless.

use std::{
    collections::HashMap,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, ThreadId},
    time::Duration,
};

use farcall_core::{
    BindError, ConnectError, ServiceDescription, Site,
    transport::{Dial, DialOptions, NewConnection},
};

use crate::{
    case::Case,
    fixture::{Capabilities, Fixture, Served},
    hostile::{RawConnection, RawListener},
    setup::Setup,
};

/// The fixture whose clients share.
pub struct Sharing {
    inner: Arc<dyn Fixture>,
    /// Of each thread that runs cases, during one case.
    sites: Mutex<HashMap<ThreadId, Site>>,
}

impl Sharing {
    /// Clients of that fixture share from now on.
    pub fn of(inner: Arc<dyn Fixture>) -> Sharing {
        Sharing { inner, sites: Mutex::default() }
    }
}

/// An address whose connections share.
struct SharingDial {
    inner: Box<dyn Dial>,
}

impl Dial for SharingDial {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        self.inner.dial(service, site, &DialOptions { share: true, ..options.clone() })
    }
}

impl Fixture for Sharing {
    fn begin(&self, case: &Case) {
        self.inner.begin(case);
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        sites.insert(thread::current().id(), self.inner.site());
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn fresh_address(&self, setup: &Setup) -> String {
        self.inner.fresh_address(setup)
    }

    fn parse(&self, address: &str) -> Result<Box<dyn Dial>, String> {
        let inner = self.inner.parse(address)?;
        Ok(Box::new(SharingDial { inner }))
    }

    fn serve(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError> {
        self.inner.serve(address, setup)
    }

    fn serve_in_process(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError> {
        self.inner.serve_in_process(address, setup)
    }

    fn peer(&self) -> Command {
        self.inner.peer()
    }

    fn seed(&self) -> u64 {
        self.inner.seed()
    }

    fn has_random_faults(&self) -> bool {
        self.inner.has_random_faults()
    }

    fn backend(&self) -> &str {
        self.inner.backend()
    }

    fn raw_connection(&self, address: &str) -> Option<RawConnection> {
        self.inner.raw_connection(address)
    }

    fn raw_listener(&self, address: &str) -> Option<RawListener> {
        self.inner.raw_listener(address)
    }

    fn site(&self) -> Site {
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        sites.entry(thread::current().id()).or_insert_with(|| self.inner.site()).clone()
    }

    fn turn(&self) {
        self.inner.turn();
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }
}
