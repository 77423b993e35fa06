//! Listening on an address.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use farcall_core::error::BindError;
use farcall_core::home;
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::transport::{BindOptions, BindTls, Binding, Bound, BoundHalf};
use farcall_verbs::PeerCredentials;
use rustix::io::Errno;

use super::accept::Accepting;
use super::admission::{Admission, NewIds};
use super::descriptors;
use super::device;
use super::dial::NO_TLS_ON_THIS_MACHINE;
use super::follow_time::{self, AcceptingInSharedTime};
use super::moving;
use super::nonce;
use super::renewal::AtAddress;
use super::server_halves::{ServerHalves, bind_error, check_services, places};
use super::socket::resolve::ResolveError;
use super::socket::{Listener, tcp, unix};
use crate::address::{Address, NetworkPlace, Place};
use crate::hybrid;
use crate::tls::{self, Failure};

impl Binding for Address {
    fn bind(
        &self,
        sites: &[Site],
        services: &[&'static ServiceDescription],
        options: &BindOptions,
    ) -> Result<Bound, BindError> {
        home::tell_processes_by(farcall_verbs::process_word());
        check_services(sites.len(), services)?;
        if options.raise_descriptor_limit {
            // First: what is made from here on has a share of it.
            descriptors::raise_limit();
        }
        if let Some(tls) = &options.tls {
            check_tls(self, tls)?;
        }
        // The place first: a second server should not have made anything.
        let (listener, address) = listen(self, options)?;
        let address = address.to_string();
        let devices = self
            .open_devices(sites.len())
            .map_err(|error| BindError::Device { address: address.clone(), cause: error.into() })?;
        for (site, device) in sites.iter().zip(&devices) {
            device::count_refusals(device.as_ref(), site);
        }
        let refused = |error| bind_error(&address, error);
        let shared = self.offered().map(|(backend, config)| backend.shared_slices(config));
        let shared = shared.collect::<Result<Vec<_>, _>>().map_err(refused)?;
        let slices = shared.into_iter().flatten().next();
        let follower = follow_time::follower(self, slices.as_ref()).map_err(refused)?;
        let clock = follower.as_ref().map(|(_, follower)| follower.clock());
        if options.tls.is_some() && follower.is_some() {
            let what = "slices_of cannot name another server where clients speak TLS: servers ask each other for the time \
                        without; leave one of the two away";
            return Err(BindError::Unsupported { address, what: what.into() });
        }
        let places = places(sites, self.config(), options.into());
        let (mut halves, mut backends) = (Vec::new(), Vec::new());
        for (backend, config) in self.offered() {
            let fabrics = devices.iter().map(|device| device::fabric_for(backend, device));
            let threads = sites.iter().zip(fabrics).zip(&places);
            let threads = threads.map(|((site, fabric), places)| (site, fabric, places));
            let ServerHalves { transports, intakes } =
                ServerHalves::make(&address, (backend, config), threads, options.into(), clock)?;
            let renewal = AtAddress {
                address: self.clone(),
                backend,
                config: config.clone(),
                places: places.clone(),
                text: address.clone(),
                intakes: Arc::clone(&intakes),
                most_clients: options.into(),
                clock: clock.cloned(),
            };
            halves.push(BoundHalf { transports, renewal: Some(Arc::new(renewal)) });
            backends.push((backend, config, intakes));
        }
        let of_connections = (places, NewIds::from(nonce::connection_id));
        let admission = Admission::new(backends, services, of_connections, &sites[0])
            .with_authentication(options.authentication.clone());
        let (timeout, tls) = (options.handshake_timeout, options.tls.clone());
        let acceptor =
            Accepting::start(listener, (admission, tls), (timeout, &sites[0]), &address)?;
        let acceptor = AcceptingInSharedTime::start(acceptor, follower, &sites[0])
            .map_err(follow_time::no_thread(&address))?;
        let moves = self.backend_name() == hybrid::NAME;
        let adviser = moves.then(|| moving::adviser(self.offered(), sites.len(), &address));
        Ok(Bound { halves, acceptor, address, adviser })
    }
}

/// Refuses TLS where there can be none.
fn check_tls(address: &Address, settings: &BindTls) -> Result<(), BindError> {
    let what = match address.place().in_network() {
        None => NO_TLS_ON_THIS_MACHINE.to_owned(),
        Some(_) => match tls::knows(settings) {
            Ok(()) => return Ok(()),
            Err(Failure(what)) => what,
        },
    };
    Err(BindError::Unsupported { address: address.to_string(), what })
}

/// A socket that listens there, and the address with the port that the system chose.
fn listen(
    address: &Address,
    options: &BindOptions,
) -> Result<(Box<dyn Listener>, Address), BindError> {
    match address.place() {
        Place::Shm { name } => match unix::listen(name) {
            Ok(listener) => Ok((Box::new(listener), address.clone())),
            Err((_, Errno::ADDRINUSE)) => Err(in_use(address.to_string(), unix::holder(name))),
            Err((doing, error)) => {
                Err(BindError::Io { address: address.to_string(), doing, cause: error.into() })
            }
        },
        Place::Rdma(place) | Place::Tcp(place) => {
            let listener = tcp::listen(place, options.handshake_timeout)
                .map_err(|why| no_tcp(address, place, why))?;
            let chosen = TcpListener::local_addr(&listener).map_err(|cause| BindError::Io {
                address: address.to_string(),
                doing: "asking for the port",
                cause,
            })?;
            Ok((Box::new(listener), address.with_port(chosen.port())))
        }
    }
}

/// A name of this user's that another process has.
#[cold]
fn in_use(address: String, holder: Option<PeerCredentials>) -> BindError {
    match holder {
        Some(PeerCredentials { process, user }) if user != rustix::process::geteuid().as_raw() => {
            BindError::HeldByOtherUser { address, process, user }
        }
        _ => BindError::InUse { address },
    }
}

#[cold]
fn no_tcp(address: &Address, place: &NetworkPlace, why: tcp::Failed) -> BindError {
    let (NetworkPlace { host, port, .. }, address) = (place, address.to_string());
    let error = match why {
        tcp::Failed::Resolve(ResolveError::Thread { source: cause, .. }) => {
            return BindError::Io {
                address,
                doing: "starting a thread to resolve the host's name",
                cause,
            };
        }
        tcp::Failed::Resolve(error) => {
            return BindError::InvalidAddress(format!("{address}: {error}").into());
        }
        tcp::Failed::TimedOut => io::ErrorKind::TimedOut.into(),
        tcp::Failed::Io(error) => error,
    };
    match error.kind() {
        io::ErrorKind::AddrInUse if *port == 0 => {
            let cause = "none of net.ipv4.ip_local_port_range is free; widen it, or name a port";
            BindError::Io {
                address,
                doing: "choosing a port",
                cause: io::Error::new(error.kind(), cause),
            }
        }
        io::ErrorKind::AddrInUse => BindError::InUse { address },
        io::ErrorKind::AddrNotAvailable => BindError::Unsupported {
            address,
            what: format!(
                "this machine has no address {host}; listen at one of its own, or at 0.0.0.0 for all"
            ),
        },
        io::ErrorKind::PermissionDenied => BindError::NotPermitted {
            address,
            reason: format!("port {port} is not for this user; choose one from 1024 on"),
        },
        _ => BindError::Io { address, doing: "listening on TCP", cause: error },
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use rustix::process::geteuid;

    use super::*;

    fn tcp_error(address: &str, why: tcp::Failed) -> BindError {
        let address = address.parse::<Address>().unwrap();
        let Place::Tcp(place) = address.place() else { panic!("{address}") };
        no_tcp(&address, place, why)
    }

    #[test]
    fn a_name_that_does_not_resolve_is_a_wrong_address() {
        let source = io::ErrorKind::NotFound.into();
        let why = tcp::Failed::Resolve(ResolveError::Unknown { name: "nosuch".into(), source });
        let error = tcp_error("tcp://nosuch:7", why);
        let text = error.to_string();
        assert!(matches!(error, BindError::InvalidAddress(_)), "{text}");
        assert!(text.contains("nosuch") && text.contains("spelling"), "{text}");
    }

    #[test]
    fn a_machine_without_a_free_port_is_told_apart_from_a_port_in_use() {
        let in_use = || tcp::Failed::Io(Errno::ADDRINUSE.into());
        assert!(matches!(tcp_error("tcp://node:7", in_use()), BindError::InUse { .. }));
        let text = tcp_error("tcp://node:0", in_use()).to_string();
        assert!(text.contains("ip_local_port_range"), "{text}");
    }

    #[test]
    fn who_holds_the_name_of_a_service_is_told() {
        let name = format!("held-{}", std::process::id());
        let listener = unix::listen(&name).unwrap();
        let holder = unix::holder(&name).unwrap();
        let [process, user] = [std::process::id(), geteuid().as_raw()];
        assert_eq!(holder, PeerCredentials { process: NonZeroU32::new(process), user });
        let address = || format!("shm://{name}");
        assert!(matches!(in_use(address(), Some(holder)), BindError::InUse { .. }));
        let user = user + 7;
        let text = in_use(address(), Some(PeerCredentials { user, ..holder })).to_string();
        assert!(text.contains(&format!("process {process} of user {user}")), "{text}");
        let hidden = PeerCredentials { process: None, user };
        let text = in_use(address(), Some(hidden)).to_string();
        assert!(
            text.contains(&format!("a process of another pid namespace, of user {user}")),
            "{text}"
        );
        drop(listener);
        assert!(unix::holder(&name).is_none());
        assert!(matches!(in_use(address(), None), BindError::InUse { .. }));
    }
}
