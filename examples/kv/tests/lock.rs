//! The service that released clients rely on.

use farcall_kv::service::KvClient;

/// A change of the service is a change of the file `service.lock`, which `FARCALL_UPDATE_LOCK=1` writes.
#[test]
fn the_service_is_the_one_of_its_lock_file() {
    farcall::lock::assert_unchanged::<KvClient>("service.lock");
}
