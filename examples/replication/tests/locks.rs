//! A change of a service is a change of its lock file, which `FARCALL_UPDATE_LOCK=1` writes.
#![forbid(unsafe_code)]

use farcall_replication::membership::ConfigurationRegisterClient;
use farcall_replication::replica::{GroupClient, PeerClient};

#[test]
fn the_services_are_as_their_clients_know_them() {
    farcall::lock::assert_unchanged::<ConfigurationRegisterClient>("configuration.lock");
    farcall::lock::assert_unchanged::<GroupClient>("group.lock");
    farcall::lock::assert_unchanged::<PeerClient>("peer.lock");
}
